"""Asking in a caller's name when the caller is gone: a batch's lines hours after the batch was made.

The caller's key is not kept. In its place the gateway makes a token of its own, for one piece of work, known to this
process alone and only while the work lasts; a request that shows it is what the key's own would be: the same tenant,
the same limits, refused once the key is revoked or expired. It takes the place of the key in `authorization`, so that
such a request goes the way of every other.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from functions.api.ids import KeyId, TenantId
from functions.decisions.catalogue import Catalogue
from functions.decisions.request.access import Caller, caller_of

_PREFIX = "Mandate "
_BYTES = 32


class Mandates:
    """Owned by one event loop. As many as there is work under way, which its owner bounds."""

    def __init__(self) -> None:
        self._given: dict[str, tuple[TenantId, KeyId]] = {}

    @contextmanager
    def given(self, tenant: TenantId, key_id: KeyId) -> Iterator[str]:
        """An `authorization` that stands for the key until the block ends."""
        token = _PREFIX + secrets.token_hex(_BYTES)
        self._given[token] = (tenant, key_id)
        try:
            yield token
        finally:
            del self._given[token]

    def caller(self, catalogue: Catalogue, authorization: str | None, now_unix_s: float) -> Caller | None:
        """Whose work it is; None where the token is none, or what it stands for is valid no more."""
        found = self._given.get(authorization) if authorization is not None else None
        return caller_of(catalogue, *found, now_unix_s) if found is not None else None
