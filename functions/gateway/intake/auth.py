"""Authentication: a cache of verified keys, and delegated credentials for work in a caller's name.

A verified key is not verified again for each request (4 us). The cache holds a hash of the header, never the key, and
only headers that were valid: invented keys cannot fill the memory, and a wrong key is fully verified each time. A new
snapshot clears the cache, which is how a revoked key ends; an expiry is checked every time.

A batch's lines are sent hours after the batch was made, when the caller is gone and its key is not stored. Instead of
the key, the gateway issues a credential for one piece of work. Only this process knows it, and only while the work
lasts. A request with it in `authorization` has the same tenant and limits as the key, and is rejected once the key is
revoked or expired.
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
    """Cache of verified keys. Owned by one event loop."""

    def __init__(self, pepper: bytes) -> None:
        self._pepper = pepper
        self._catalogue: Catalogue | None = None
        self._known: dict[bytes, tuple[Caller, float]] = {}  # caller, and the key's expiry in unix seconds

    def caller(self, catalogue: Catalogue, authorization: str | None, now_unix_s: float) -> Caller | None:
        """Return the caller as `authenticate` does, or None for an invalid or expired key. Valid keys are cached."""
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
    """Credentials for work under way, whose number the owner of the work bounds. Owned by one event loop."""

    def __init__(self) -> None:
        self._issued: dict[str, tuple[TenantId, KeyId]] = {}

    @contextmanager
    def issued(self, tenant: TenantId, key_id: KeyId) -> Iterator[str]:
        """Yield an `authorization` value that represents the key until the block ends."""
        token = _PREFIX + secrets.token_hex(_BYTES)
        self._issued[token] = (tenant, key_id)
        try:
            yield token
        finally:
            del self._issued[token]

    def caller(self, catalogue: Catalogue, authorization: str | None, now_unix_s: float) -> Caller | None:
        """Return the caller of the credential, or None if the credential or its key is not valid."""
        found = self._issued.get(authorization) if authorization is not None else None
        return caller_of(catalogue, *found, now_unix_s) if found is not None else None
