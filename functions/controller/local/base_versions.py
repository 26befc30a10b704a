"""Assign a version of the base weights to each replica of a pool on one machine.

Replicas are numbered from 0. The highest numbers get the new version, so a replica keeps its name and ports for as
long as it exists. A replica that changes its version is drained and started again under the same name. During a
rollout there is one extra replica, if YAML, ports and memory allow it; it is the first with the new version.

    N = 4, stage 10 %     0 1 2 3 | 4           rolled back      0 1 2 3
    then 50 %             0 1 2 | 3 4           completed        | 0 1 2 3 4; 4 ends when all have changed

Each decision is stored on disk before any process is changed. A controller that starts after a kill in between finds
the replicas as they were left, and ends none of them.

Neighbours: `functions.decisions.rollout.replica_shares` computes how many replicas get each version; `reconciler`
changes the processes.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from functions.api.ids import PoolName
from functions.api.snapshot import ModelEntry, Snapshot
from functions.controller.local.files import replace_file
from functions.controller.local.pools import Pool, folder_at
from functions.controller.local.reconciler import Reconciler
from functions.controller.rollouts.driver import RolloutDriver
from functions.controller.rollouts.following import RowsFollower
from functions.decisions.rollout.lifecycle import Rollout
from functions.decisions.rollout.replica_shares import VersionShares, wanted_shares

LOOK_INTERVAL_S = 0.5
_FILE_MAX_BYTES = 1024 * 1024

_log = logging.getLogger(__name__)


class PoolFolders(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Weight folders of one pool, relative to the models directory, and the number of replicas for each."""

    main: str
    others: tuple[tuple[str, int], ...] = ()
    extra: int = 0  # replicas above the pool's normal size

    def by_number(self, replicas: int) -> tuple[str, ...]:
        """Return the folder of each replica, by number, for a pool of `replicas` replicas plus `extra`."""
        total = replicas + self.extra
        others = [folder for folder, count in self.others for _ in range(count)][: max(0, total - 1)]
        return (self.main,) * (total - len(others)) + tuple(others)

    @property
    def folders(self) -> frozenset[str]:
        return frozenset({self.main, *(folder for folder, _ in self.others)})


Folders = Mapping[str, PoolFolders]  # by pool


def read_folders(path: Path) -> dict[str, PoolFolders]:
    """Return the stored folders by pool, or none if the file is missing or, which is logged, unreadable."""
    try:
        return msgspec.json.decode(path.read_bytes()[:_FILE_MAX_BYTES], type=dict[str, PoolFolders])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        _log.warning("%s cannot be read, so pools start with the version of their storageUri: %s", path.name, error)
        return {}


def write_folders(path: Path, folders: Folders) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, msgspec.json.encode(dict(folders), order="deterministic"))


def folder_of(base: ModelEntry, version: str) -> str | None:
    """Return the name, below the models directory, of the folder for a base's version (also before its weights are
    fetched), or None if the base has no such version or its artifact URI names neither base weights nor a folder of
    the models volume."""
    uri = next((each.artifact_uri for each in base.versions if each.name == version), "")
    return folder_at(uri)


def next_folders(
    before: PoolFolders | None, base: ModelEntry, shares: VersionShares, surge: int, *, settled: bool
) -> PoolFolders | None:
    """Return the folders that the pool should have next. `settled` means that the replicas match `before`. If the
    version with the most replicas has no folder on this machine, `before` is returned. The extra replica stays while
    versions change, and then until all replicas have the winning version."""
    main = folder_of(base, shares.main)
    if main is None:
        return before
    found = [(folder_of(base, version), count) for version, count in sorted(shares.others.items())]
    others = tuple((folder, count) for folder, count in found if folder is not None)
    if shares.is_moving:
        return PoolFolders(main, others, surge)
    if before is None or not before.extra:
        return PoolFolders(main, others)
    is_through = before.main != main or (not before.others and not settled)
    return PoolFolders(main, others, before.extra if is_through else 0)


class BaseVersions:
    """Versions of the base weights that each pool's replicas are started from. Owned by one event loop."""

    def __init__(
        self,
        kept: Path,
        *,
        reconciler: Reconciler,
        rows: RowsFollower,
        driver: RolloutDriver,
        published: Callable[[], Snapshot | None],
        is_suspended: Callable[[], bool],
        may_surge: Callable[[Pool], bool],
    ) -> None:
        """`published` returns the snapshot that the registry holds now. `may_surge` returns True if the pool may have
        one extra replica. It measures the engines' memory, which is expensive, so it is called only while versions
        change."""
        self._kept = kept
        self._reconciler = reconciler
        self._rows = rows
        self._driver = driver
        self._published = published
        self._is_suspended = is_suspended
        self._may_surge = may_surge
        self._folders = read_folders(kept)
        reconciler.assign_folders({name: each.by_number for name, each in self._folders.items()}, self.known_folders())

    def known_folders(self) -> dict[str, frozenset[str]]:
        """Return, for each pool, the folders that its replicas are or are to be started from."""
        return {name: each.folders for name, each in self._folders.items()}

    async def run(self) -> None:
        """Update the folders every LOOK_INTERVAL_S, unless suspended, until cancelled."""
        while True:
            if not self._is_suspended():
                await self.update_folders()
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def update_folders(self) -> None:
        """Compute the folders of each pool; if any changed, store them on disk, then pass them to the reconciler. Do
        nothing while the registry's snapshot or rows are unknown."""
        snapshot = self._published()
        if snapshot is None or not self._rows.book.is_known:
            return
        bases = {model.pool: model for model in snapshot.models if model.type == "base"}
        declared, active = self._reconciler.wanted.pools, self._rows.book.active
        folders = dict(self._folders)
        for pool in declared:
            base = bases.get(PoolName(pool.name))
            following = self._next_folders(pool, base, active) if base is not None else None
            if following is not None:
                folders[pool.name] = following
        folders = {name: folders[name] for name in {pool.name for pool in declared} & folders.keys()}
        if folders == self._folders:
            return
        for name, each in sorted(folders.items()):
            if self._folders.get(name) != each:
                _log.info("%s: replicas of %s%s", name, each.main, _folders_text(each))
        former = self.known_folders()
        await asyncio.to_thread(write_folders, self._kept, folders)
        self._folders = folders
        known = {name: each | former.get(name, frozenset()) for name, each in self.known_folders().items()}
        self._reconciler.assign_folders({name: each.by_number for name, each in folders.items()}, known)

    def _next_folders(self, pool: Pool, base: ModelEntry, active: Iterable[Rollout]) -> PoolFolders | None:
        before = self._folders.get(pool.name)
        replicas, widening = self._reconciler.replicas_of(pool.name), self._driver.widening
        surge = before.extra if before is not None else 0
        shares = wanted_shares(base, active, widening, replicas, surge)
        if shares is not None and shares.is_moving and not surge and self._may_surge(pool):
            surge = 1
            shares = wanted_shares(base, active, widening, replicas, surge)
        if shares is None:
            return before
        self._driver.set_aim(base, shares)
        return next_folders(before, base, shares, surge, settled=self._reconciler.wanted.settled)


def _folders_text(folders: PoolFolders) -> str:
    words = [f"{count} of {folder}" for folder, count in folders.others]
    return ", ".join(["", *words, *(["one extra replica until the change is done"] if folders.extra else [])])
