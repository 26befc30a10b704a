"""Which artifacts an engine may still read: what it has loaded, and what it was made to unload only lately.

Unloading is the front end's affair alone (vLLM 0.32): the name is forgotten at once, the weights stay in the engine
until others need the room, and a request that was accepted in the same moment is still to be served. Were its adapter
evicted from host memory meanwhile, the engine would read the files again inside its step, and die of their absence. So
the files stay for LINGER_S more.

A load that its agent no longer waits for goes on in the engine: its files stay as long.

Artifacts go by the first 16 hex digits of their digest: all that the name of an adapter in the engine tells of one that
an agent before us loaded and no snapshot names any more.
"""

from collections.abc import Collection
from typing import NewType

from functions.api.ids import ENGINE_NAME_HEX_DIGITS, Digest, EngineName

DigestStart = NewType("DigestStart", str)

LINGER_S = 120.0  # longer than a request waits in an engine's queue
_SCHEME = "sha256:"


def start_of(digest: Digest) -> DigestStart:
    return DigestStart(digest.removeprefix(_SCHEME)[:ENGINE_NAME_HEX_DIGITS])


def start_in(name: EngineName) -> DigestStart:
    """Of the artifact that an engine's name for an adapter, `id@sha256:<16 hex>`, stands for."""
    return start_of(Digest(name.rpartition("@")[2]))


class DiskNeeds:
    """Owned by one event loop; times are monotonic seconds."""

    def __init__(self) -> None:
        self._loaded: frozenset[DigestStart] = frozenset()
        self._loading: frozenset[DigestStart] = frozenset()
        self._left_s: dict[DigestStart, float] = {}

    def observe(self, listed: Collection[EngineName], loading: Collection[EngineName], now_s: float) -> bool:
        """Take in the engine's own list, and what is on its way there; whether anything came or went."""
        loaded, coming = frozenset(map(start_in, listed)), frozenset(map(start_in, loading))
        changed = (loaded, coming) != (self._loaded, self._loading)
        self._left_s = {start: left_s for start, left_s in self._left_s.items() if now_s - left_s < LINGER_S}
        self._left_s |= dict.fromkeys((self._loaded | self._loading) - loaded - coming, now_s)
        self._loaded, self._loading = loaded, coming
        return changed

    def needed(self, now_s: float) -> frozenset[DigestStart]:
        lingering = {start for start, left_s in self._left_s.items() if now_s - left_s < LINGER_S}
        return self._loaded | self._loading | lingering
