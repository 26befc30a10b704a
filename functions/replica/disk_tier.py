"""The disk tier: which artifacts this node keeps, within so many bytes, and what the heartbeat says of them.

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

import errno
import json
import logging
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from functions.api.ids import Digest, ReplicaId
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.errors import CacheFailed
from functions.decisions.distribution import bloom
from functions.replica.disk_needs import DigestStart, start_of
from functions.replica.status import Disk

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
