"""The disk tier: which artifacts this node keeps, within so many bytes, and what the heartbeat reports of them.

The cache is shared by every agent of the node, and each agent knows only what its own engine needs. So each writes that
down: `<cache>/leases/<replica>.json`, the artifacts that its engine has loaded, is loading, or has let go only lately.
An eviction takes away what no lease names, the least recently used first. A lease is a file and not a lock, since the
engine lives on when its agent is killed, and an engine that reads a directory which is gone dies
(`functions.engines.sim`, as vLLM does); it counts for LEASE_S after it was last written, longer than any agent is away
whose engine still gets requests. When that was it says itself, by the node's monotonic clock, which all agents of the
node share and nobody sets: by the wall clock, a step of twenty minutes would end the leases of engines that live.
Between the moment when an agent is given a directory and its next lease, the time of
use protects it: nothing that was used within IN_HAND_S is taken away. All calls block on the disk.
"""

import asyncio
import errno
import json
import logging
import math
import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NewType

from functions.api.ids import ENGINE_NAME_HEX_DIGITS, Digest, EngineName, ReplicaId
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.errors import CacheFailed
from functions.decisions.distribution import bloom
from functions.replica.daemon_threads import in_daemon_thread
from functions.replica.status import AgentStatus, Disk

# Which artifacts an engine may still read: what it has loaded, and what it was made to unload only lately.
#
# Unloading is the front end's affair alone (vLLM 0.32): the name is forgotten at once, the weights stay in the engine
# until others need the room, and a request that was accepted in the same moment is still to be served. Were its adapter
# evicted from host memory meanwhile, the engine would read the files again inside its step, and die of their absence.
# So the files stay for LINGER_S more.
#
# A load that its agent no longer waits for goes on in the engine: its files stay as long.
#
# Artifacts go by the first 16 hex digits of their digest: all that the name of an adapter in the engine tells of one
# that an agent before us loaded and no snapshot names any more.


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


LEASE_S = 900.0
IN_HAND_S = 30.0  # a lease is written within 3 s of a load's beginning (disk_keeper)
LEASE_MAX_BYTES = 256 * 1024  # 4,096 adapters, each by 16 digits, and room
_RENEW_EVERY_S = 60.0
_STAMP = "monotonic_s="  # an entry beside the artifacts: an older agent of the node takes it for one that it has not
_NEARLY_FULL_RATIO = 0.9  # the rest is for what is being fetched, which the cache counts when it evicts

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class DiskTier:
    cache: ArtifactCache
    replica_id: ReplicaId
    max_bytes: int
    wall_clock: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic  # the node's: the same for each of its processes
    _leased: frozenset[DigestStart] = frozenset()
    _leased_s: float = -math.inf

    def lease(self, needed: frozenset[DigestStart]) -> None:
        """Nobody on this node takes these away. Written when they change, and once a minute."""
        now_s = self.clock()
        if needed == self._leased and now_s - self._leased_s < _RENEW_EVERY_S:
            return
        self._leased, self._leased_s = needed, -math.inf  # also where it cannot be written: tried again next time
        try:
            self._leases.mkdir(parents=True, exist_ok=True)
            aside = self._leases / f".{self.replica_id}"
            aside.write_text(json.dumps([f"{_STAMP}{now_s:.3f}", *sorted(needed)]))
            aside.replace(self._leases / f"{self.replica_id}.json")
        except OSError as error:
            raise CacheFailed(f"the lease on {self.cache.root} cannot be written: {error.strerror}") from error
        self._leased_s = now_s

    def tend(self) -> Disk:
        """Make room within `max_bytes`, and look what is left."""
        held = self.cache.digests()
        if sum(artifact.size_bytes for artifact in held) > self.max_bytes * _NEARLY_FULL_RATIO:
            self._evict([artifact.digest for artifact in held])
            held = self.cache.digests()
        for artifact in held:
            if start_of(artifact.digest) in self._leased:
                self.cache.touch(artifact.digest, self.wall_clock())
        told = bloom.build([artifact.digest for artifact in held])
        return Disk(
            artifacts=len(held),
            size_bytes=sum(artifact.size_bytes for artifact in held),
            bloom=told.encode() if told is not None else "",
        )

    def _evict(self, held: list[Digest]) -> None:
        used_before_unix_s = self.wall_clock() - IN_HAND_S
        needed = self._needed_by_anyone()
        pinned = {digest for digest in held if start_of(digest) in needed}
        evicted = self.cache.evict(self.max_bytes, pinned, used_before_unix_s=used_before_unix_s)
        if evicted:
            _log.info("%d artifacts left the disk, which is bounded to %d bytes", len(evicted), self.max_bytes)

    @property
    def _leases(self) -> Path:
        return self.cache.root / "leases"

    def _needed_by_anyone(self) -> set[DigestStart]:
        """One that nobody has renewed for long is removed."""
        needed = set(self._leased)
        for path in _leases_in(self._leases):
            stamp_s, starts = _read(path)
            with suppress(FileNotFoundError):
                if self._counts(path, stamp_s):
                    needed.update(starts)
                else:
                    path.unlink()
        return needed

    def _counts(self, path: Path, stamp_s: float | None) -> bool:
        """A stamp that is still to come was written before the node was started anew: its engine is gone as well.
        A lease without a stamp is an older agent's, and as old as its file."""
        if stamp_s is None:
            return self.wall_clock() - path.stat().st_mtime <= LEASE_S
        return 0 <= self.clock() - stamp_s <= LEASE_S


def _leases_in(directory: Path) -> list[Path]:
    try:
        return [path for path in directory.iterdir() if path.suffix == ".json"]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CacheFailed(f"the leases cannot be listed, so nothing is taken away: {error.strerror}") from error


def _read(path: Path) -> tuple[float | None, list[DigestStart]]:
    """When a lease was written, and what it names; one that is none protects nothing. CacheFailed where that cannot be
    told: nothing may be taken away then.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            found = json.loads(file.read(LEASE_MAX_BYTES))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP, errno.EISDIR):  # gone, a link, a directory
            raise CacheFailed(f"the lease {path.name} cannot be read: {error.strerror}") from error
        return None, []
    except (ValueError, RecursionError) as error:
        _log.warning("the lease %s cannot be read: %s", path.name, error)
        return None, []
    texts = [text for text in found if isinstance(text, str)] if isinstance(found, list) else []
    stamps = [stamp for text in texts if (stamp := _stamp_in(text)) is not None]
    return next(iter(stamps), None), [DigestStart(text) for text in texts]


def _stamp_in(text: str) -> float | None:
    if not text.startswith(_STAMP):
        return None
    with suppress(ValueError):
        return float(text[len(_STAMP) :])
    return None


# The keeper of the disk tier: says what this engine needs, makes room, and tells the heartbeat what is there.
#
# One pass at a time, soon after something changed and every few seconds anyway, since the other agents of the node fill
# the same disk. A disk that refuses keeps nobody from being served: it is said, and tried again.


LOOK_EVERY_S = 10.0
NOT_MORE_OFTEN_THAN_S = 2.0  # a look walks the whole cache: 80 ms of CPU for 2,000 artifacts


class DiskKeeper:
    def __init__(self, status: AgentStatus, disk: DiskTier, needs: DiskNeeds) -> None:
        self._status = status
        self._disk = disk
        self._needs = needs
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Something came to the disk, or is needed no more."""
        self._changed.set()

    async def run(self) -> None:
        while True:
            self._changed.clear()
            await self.tend()
            await asyncio.sleep(NOT_MORE_OFTEN_THAN_S)
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def tend(self) -> None:
        """One pass; none before the engine has said what it holds: the lease of the agent before us is what counts."""
        if not self._status.adapters.known:
            return
        needed = self._needs.needed(self._status.clock())

        def work() -> None:
            try:
                self._disk.lease(needed)
            finally:  # a disk too full for a lease is one that room must be made on
                self._status.disk = self._disk.tend()

        try:
            await in_daemon_thread("disk tier", work)
        except CacheFailed as error:
            _log.warning("the disk tier: %s", error)
