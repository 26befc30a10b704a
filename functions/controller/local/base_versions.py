"""Which replica of a pool is started from which version of its base, on one machine.

Replicas are numbered from 0; the highest numbers have the new version, so that a replica keeps its name and its ports
for as long as it exists, and one that changes its version is drained and started in its place. While a rollout is under
way there is one replica more, where YAML, ports and memory allow it; it is the first of the new version.

    N = 4, stage 10 %     0 1 2 3 | 4           rolled back      0 1 2 3
    then 50 %             0 1 2 | 3 4           completed        | 0 1 2 3 4, and 4 goes when all have changed

What was decided is kept on disk before anything is changed by it: a controller that is killed in between finds the
replicas as it left them, and ends none of them.

Neighbours: `functions.decisions.rollout.replica_shares` says how many of each, `reconciler` changes the processes.
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
    """Folders below the models directory, and how many replicas are started from each."""

    main: str
    others: tuple[tuple[str, int], ...] = ()
    extra: int = 0  # replicas beyond what the pool should have

    def by_number(self, replicas: int) -> tuple[str, ...]:
        """The folder of each replica of a pool that should have so many."""
        total = replicas + self.extra
        others = [folder for folder, count in self.others for _ in range(count)][: max(0, total - 1)]
        return (self.main,) * (total - len(others)) + tuple(others)

    @property
    def folders(self) -> frozenset[str]:
        return frozenset({self.main, *(folder for folder, _ in self.others)})


Folders = Mapping[str, PoolFolders]  # by pool


def read_folders(path: Path) -> dict[str, PoolFolders]:
    """What an earlier controller has decided; nothing where there is no such file, or none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes()[:_FILE_MAX_BYTES], type=dict[str, PoolFolders])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        _log.warning("%s is not read, so that pools begin with their storageUri: %s", path.name, error)
        return {}


def write_folders(path: Path, folders: Folders) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, msgspec.json.encode(dict(folders), order="deterministic"))


def folder_of(base: ModelEntry, version: str) -> str | None:
    """Where a version lies; None where it is no folder of this machine."""
    uri = next((each.artifact_uri for each in base.versions if each.name == version), "")
    return folder_at(uri)


def next_folders(
    before: PoolFolders | None, base: ModelEntry, shares: VersionShares, surge: int, *, settled: bool
) -> PoolFolders | None:
    """`settled`: the replicas are as `before` says. None where the version that most have is not on this machine.

    One replica more while versions move, and until all have changed to the one that won.
    """
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
    """Owned by one event loop."""

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
        """`published` is what the registry holds now; `may_surge`: there is a place for one replica more. It looks at
        engines' memory, which costs them and us: it is asked only while versions move."""
        self._kept = kept
        self._reconciler = reconciler
        self._rows = rows
        self._driver = driver
        self._published = published
        self._is_suspended = is_suspended
        self._may_surge = may_surge
        self._folders = read_folders(kept)
        reconciler.divide({name: each.by_number for name, each in self._folders.items()}, self.known_folders())

    def known_folders(self) -> dict[str, frozenset[str]]:
        """By pool, of what its replicas may have been started from."""
        return {name: each.folders for name, each in self._folders.items()}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if not self._is_suspended():
                await self.look()
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def look(self) -> None:
        """Write down first, then act."""
        snapshot = self._published()
        if snapshot is None or not self._rows.book.is_known:
            return
        bases = {model.pool: model for model in snapshot.models if model.type == "base"}
        declared, active = self._reconciler.wanted.pools, self._rows.book.active
        folders = dict(self._folders)
        for pool in declared:
            base = bases.get(PoolName(pool.name))
            following = self._next(pool, base, active) if base is not None else None
            if following is not None:
                folders[pool.name] = following
        folders = {name: folders[name] for name in {pool.name for pool in declared} & folders.keys()}
        if folders == self._folders:
            return
        for name, each in sorted(folders.items()):
            if self._folders.get(name) != each:
                _log.info("%s: replicas of %s%s", name, each.main, _in_words(each))
        former = self.known_folders()
        await asyncio.to_thread(write_folders, self._kept, folders)
        self._folders = folders
        known = {name: each | former.get(name, frozenset()) for name, each in self.known_folders().items()}
        self._reconciler.divide({name: each.by_number for name, each in folders.items()}, known)

    def _next(self, pool: Pool, base: ModelEntry, active: Iterable[Rollout]) -> PoolFolders | None:
        before = self._folders.get(pool.name)
        replicas, widening = self._reconciler.replicas_of(pool.name), self._driver.widening
        surge = before.extra if before is not None else 0
        shares = wanted_shares(base, active, widening, replicas, surge)
        if shares is not None and shares.is_moving and not surge and self._may_surge(pool):
            surge = 1
            shares = wanted_shares(base, active, widening, replicas, surge)
        if shares is None:
            return before
        self._driver.aim(base, shares)
        return next_folders(before, base, shares, surge, settled=self._reconciler.wanted.settled)


def _in_words(folders: PoolFolders) -> str:
    words = [f"{count} of {folder}" for folder, count in folders.others]
    return ", ".join(["", *words, *(["one more meanwhile"] if folders.extra else [])])
