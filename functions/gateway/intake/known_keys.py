"""Keys that have proven themselves, so that a caller who asks all day is not put to the proof each time (4 us).

What is kept is a hash of the header, never the key, and only of headers that were right: nobody can fill the memory
with inventions, and a wrong key takes the whole proof each time. A new snapshot forgets everything, which is how a
revoked key ends; an expiry is looked at every time.
"""

import hashlib

from functions.decisions.catalogue import Catalogue
from functions.decisions.request.access import Caller, authenticate

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
