"""The disk tier: the artifacts that this node stores, within a byte limit, and what the heartbeat reports of them.

All agents of the node share the cache, but each agent knows only its own engine's needs. Each therefore writes a
lease, `<cache>/leases/<replica>.json`: the artifacts that its engine has loaded, is loading, or unloaded only
recently. An eviction deletes artifacts without a lease, least recently used first.

A lease is a file and not a lock, because the engine lives on when its agent is killed, and dies if it reads a missing
directory (`functions.engines.sim`, as vLLM does). A lease counts for LEASE_S after it was written, longer than any
agent whose engine still gets requests is away. Its time is from the node's monotonic clock, which all agents of the
node share: a wall-clock step of twenty minutes would end the leases of running engines. Between the fetch of a
directory and the agent's next lease, the time of use protects it: nothing used within IN_HAND_S is deleted.

All calls block on the disk.
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

# Artifacts that an engine may still read: those that it has loaded, and those unloaded only recently.
#
# Unloading affects the front end only (vLLM 0.32): the name is forgotten, but the weights stay until their memory is
# needed, and a request accepted in the same moment must still be served. If the adapter were evicted from host memory
# meanwhile, the engine would read the files again inside its step, and die if they were missing. The files therefore
# stay for LINGER_S more. So do those of a load that its agent no longer waits for: it continues in the engine.
#
# Artifacts are identified by the first 16 hex digits of their digest. An adapter's name in the engine has no more,
# and an adapter that a former agent loaded may be in no snapshot.


DigestStart = NewType("DigestStart", str)

LINGER_S = 120.0  # longer than a request waits in an engine's queue
_SCHEME = "sha256:"


def start_of(digest: Digest) -> DigestStart:
    return DigestStart(digest.removeprefix(_SCHEME)[:ENGINE_NAME_HEX_DIGITS])


def start_in(name: EngineName) -> DigestStart:
    """Return the digest start in an engine's name for an adapter, `id@sha256:<16 hex>`."""
    return start_of(Digest(name.rpartition("@")[2]))


class DiskNeeds:
    """Artifacts that the engine may still read. Owned by one event loop; times are monotonic seconds."""

    def __init__(self) -> None:
        self._loaded: frozenset[DigestStart] = frozenset()
        self._loading: frozenset[DigestStart] = frozenset()
        self._left_s: dict[DigestStart, float] = {}

    def observe(self, listed: Collection[EngineName], loading: Collection[EngineName], now_s: float) -> bool:
        """Record the adapters that the engine lists and the loads under way; those that left count as needed for
        LINGER_S more. Return True if the listed or loading ones changed."""
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
LEASE_MAX_BYTES = 256 * 1024  # 4,096 adapters at 16 digits each, with reserve
_RENEW_EVERY_S = 60.0
_STAMP = "monotonic_s="  # an entry among the artifacts: an older agent of the node takes it for an unknown artifact
_NEARLY_FULL_RATIO = 0.9  # the rest is for fetches under way, which the cache counts when it evicts

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class DiskTier:
    cache: ArtifactCache
    replica_id: ReplicaId
    max_bytes: int
    wall_clock: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic  # the node's: shared by all its processes
    _leased: frozenset[DigestStart] = frozenset()
    _leased_s: float = -math.inf

    def lease(self, needed: frozenset[DigestStart]) -> None:
        """Protect these artifacts, and no others, from eviction by agents on this node. The lease file is written on
        changes and once a minute. Raise CacheFailed if that fails."""
        now_s = self.clock()
        if needed == self._leased and now_s - self._leased_s < _RENEW_EVERY_S:
            return
        self._leased, self._leased_s = needed, -math.inf  # reset also if writing fails, so that it is retried
        try:
            self._leases.mkdir(parents=True, exist_ok=True)
            aside = self._leases / f".{self.replica_id}"
            aside.write_text(json.dumps([f"{_STAMP}{now_s:.3f}", *sorted(needed)]))
            aside.replace(self._leases / f"{self.replica_id}.json")
        except OSError as error:
            raise CacheFailed(f"the lease on {self.cache.root} cannot be written: {error.strerror}") from error
        self._leased_s = now_s

    def tend(self) -> Disk:
        """Evict down to `max_bytes` if the cache is nearly full, sparing artifacts that are leased by any agent or were
        used in the last IN_HAND_S seconds; mark those leased here as used, and return what is left."""
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
            _log.info("%d artifacts evicted from the disk, which is limited to %d bytes", len(evicted), self.max_bytes)

    @property
    def _leases(self) -> Path:
        return self.cache.root / "leases"

    def _needed_by_anyone(self) -> set[DigestStart]:
        """Return the artifacts that this agent's lease and other valid leases on the node name, and delete expired
        lease files."""
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
        """Return True if the lease is at most LEASE_S old. A future stamp is from before a reboot and invalid; for
        older agents, which write none, the file's modification time counts."""
        if stamp_s is None:
            return self.wall_clock() - path.stat().st_mtime <= LEASE_S
        return 0 <= self.clock() - stamp_s <= LEASE_S


def _leases_in(directory: Path) -> list[Path]:
    try:
        return [path for path in directory.iterdir() if path.suffix == ".json"]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CacheFailed(f"the leases cannot be listed, so nothing is evicted: {error.strerror}") from error


def _read(path: Path) -> tuple[float | None, list[DigestStart]]:
    """Return the time in a lease file (None if it has none) and the artifacts that it names; a missing or malformed
    file has neither. Raise CacheFailed if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            found = json.loads(file.read(LEASE_MAX_BYTES))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP, errno.EISDIR):  # missing, a link, a directory
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


# Keeper of the disk tier: writes this engine's lease, evicts, and reports the rest to the heartbeat. It runs one pass
# at a time, soon after a change and every few seconds, because other agents of the node fill the same disk. A failing
# disk does not stop serving: it is logged and tried again.


LOOK_EVERY_S = 10.0
NOT_MORE_OFTEN_THAN_S = 2.0  # a pass walks the whole cache: 80 ms of CPU for 2,000 artifacts


class DiskKeeper:
    def __init__(self, status: AgentStatus, disk: DiskTier, needs: DiskNeeds) -> None:
        self._status = status
        self._disk = disk
        self._needs = needs
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Request a pass: an artifact was added, or is no longer needed."""
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
        """Renew the lease and evict, once, and record what is on the disk; failures are logged. Before the engine's
        adapters are known nothing is done: the former agent's lease counts."""
        if not self._status.adapters.known:
            return
        needed = self._needs.needed(self._status.clock())

        def work() -> None:
            try:
                self._disk.lease(needed)
            finally:  # a full disk may have no room for the lease, but must still be evicted
                self._status.disk = self._disk.tend()

        try:
            await in_daemon_thread("disk tier", work)
        except CacheFailed as error:
            _log.warning("the disk tier: %s", error)
