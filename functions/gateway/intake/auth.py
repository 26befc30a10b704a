"""Authentication: keys that have proven themselves, and delegated credentials for work done in a caller's name.

A caller who asks all day is not put to the proof each time (4 us). What is kept of a key is a hash of the header, never
the key, and only of headers that were right: nobody can fill the memory with inventions, and a wrong key takes the
whole proof each time. A new snapshot forgets everything, which is how a revoked key ends; an expiry is looked at every
time.

A batch's lines are asked hours after the batch was made, when its caller is gone and its key is not kept. In the key's
place the gateway makes a credential of its own, for one piece of work, known to this process alone and only while the
work lasts. A request that shows it in `authorization` is what the key's own would be: the same tenant, the same limits,
refused once the key is revoked or expired.
"""

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from functions.api.ids import KeyId, TenantId
from functions.decisions.catalogue import Catalogue
from functions.decisions.request.access import Caller, authenticate, caller_of

_MAX_KNOWN = 10_000
_NEVER_S = float("inf")


class KnownKeys:
    """Owned by one event loop."""

    def __init__(self, pepper: bytes) -> None:
        self._pepper = pepper
        self._catalogue: Catalogue | None = None
        self._known: dict[bytes, tuple[Caller, float]] = {}  # with the key's expiry, unix seconds

    def caller(self, catalogue: Catalogue, authorization: str | None, now_unix_s: float) -> Caller | None:
        """As `authenticate`, which is asked where the answer is not known."""
        if authorization is None:
            return None
        if catalogue is not self._catalogue:
            self._catalogue = catalogue
            self._known.clear()
        name = hashlib.sha256(authorization.encode()).digest()
        known = self._known.get(name)
        if known is not None:
            return known[0] if now_unix_s < known[1] else None
        caller = authenticate(catalogue, authorization, self._pepper, now_unix_s)
        if caller is not None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            expires_unix_s = catalogue.keys[caller.key_id].expires_unix_s
            self._known[name] = (caller, _NEVER_S if expires_unix_s is None else expires_unix_s)
        return caller


_PREFIX = "Delegated "
_BYTES = 32


class DelegatedCredentials:
    """Owned by one event loop. As many as there is work under way, which its owner bounds."""

    def __init__(self) -> None:
        self._issued: dict[str, tuple[TenantId, KeyId]] = {}

    @contextmanager
    def issued(self, tenant: TenantId, key_id: KeyId) -> Iterator[str]:
        """An `authorization` that stands for the key until the block ends."""
        token = _PREFIX + secrets.token_hex(_BYTES)
        self._issued[token] = (tenant, key_id)
        try:
            yield token
        finally:
            del self._issued[token]

    def caller(self, catalogue: Catalogue, authorization: str | None, now_unix_s: float) -> Caller | None:
        """Whose work it is; None where the token is none, or what it stands for is valid no more."""
        found = self._issued.get(authorization) if authorization is not None else None
        return caller_of(catalogue, *found, now_unix_s) if found is not None else None
