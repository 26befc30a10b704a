"""The base version that each replica of a local pool starts from: step by step, and after a kill."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from functions.api import snapshot as snapshots
from functions.api.ids import EngineName, ModelId, PoolName
from functions.api.snapshot import ModelEntry, PoolEntry, Snapshot, SplitEntry, VersionEntry
from functions.controller.local.adoption import plan_adoption
from functions.controller.local.base_versions import BaseVersions, PoolFolders, read_folders, write_folders
from functions.controller.local.found import Found
from functions.controller.local.instances import ProcessLedger
from functions.controller.local.layout import StateLayout
from functions.controller.local.plan import plan_fleet
from functions.controller.local.pools import Pool, Target
from functions.controller.local.reconciler import Reconciler
from functions.controller.local.settings import LocalSettings
from functions.controller.local.spec import ProcessSpec
from functions.controller.local.surge import one_more
from functions.decisions.rollout.evaluation import RolloutVerdict
from functions.decisions.rollout.events import Breached, StagePassed, VersionLoaded
from functions.decisions.rollout.lifecycle import Rollout
from functions.decisions.rollout.replica_shares import VersionShares
from tests.controller.test_plan import CONTEXT
from tests.decisions.rollout.rollouts import CAREFUL, digest, rollout

POOL = PoolName("base")


@dataclass
class Rows:
    """The registry's rows, as far as they are read here."""

    active: tuple[Rollout, ...] = ()
    is_known: bool = True

    @property
    def book(self) -> "Rows":
        return self


@dataclass
class Judge:
    widening: frozenset[str] = frozenset()
    aimed: tuple[ModelId, VersionShares] | None = None
    verdicts: dict[str, RolloutVerdict] = field(default_factory=dict)

    def set_aim(self, base: ModelEntry, shares: VersionShares) -> None:
        self.aimed = base.id, shares


class Rig:
    """A pool with so many replicas, and the registry's rows of its base."""

    def __init__(self, folder: Path, replicas: int = 4, *, surge: bool = True) -> None:
        self.layout = StateLayout(folder)
        self.rows, self.judge, self.surge = Rows(), Judge(), surge
        self.stable, self.split = "v1", None
        self.replicas, self.asked_for_room = replicas, 0
        self.start_controller()

    def start_controller(self) -> None:
        """Start another controller."""
        self.reconciler = Reconciler(
            self.layout, LocalSettings(), Target(engine="sim"), until_published=_at_once, on_done=lambda *_: None,
            is_paused=lambda: False, counts={},
        )  # fmt: skip
        self.versions = BaseVersions(
            self.layout.base_versions_file, reconciler=self.reconciler, rows=self.rows, driver=self.judge,  # type: ignore[arg-type]
            published=self.published, is_suspended=lambda: False, may_surge=self.may_surge,
        )  # fmt: skip
        self.reconciler.set_desired("main@1", (Pool(POOL, self.replicas, "v1"),))

    def may_surge(self, pool: Pool) -> bool:
        self.asked_for_room += 1
        return self.surge

    def published(self) -> Snapshot:
        versions = tuple(
            VersionEntry(name, digest(name), EngineName(POOL), f"pvc://shoal-models/{name}") for name in ("v1", "v2")
        )
        splits = tuple(
            SplitEntry("stable", row.id, row.trial, row.percent, row.to_version)
            for row in self.rows.active
            if row.percent
        )
        base = ModelEntry(ModelId(POOL), POOL, "base", versions, {"stable": self.stable}, splits=splits)
        return Snapshot(snapshots.SCHEMA_VERSION, 1, "r", 0.0, (), (), (base,), (PoolEntry(POOL, 2048),))

    async def at(self, *events: object, widens: bool = False, settled: bool = False) -> str:
        """Return the replicas' folders by number while the rollout is in the state after these events."""
        row = rollout(*events, model=POOL, policy=CAREFUL)  # type: ignore[arg-type]
        self.rows.active = (row,) if row.is_active else ()
        return await self.now(frozenset({row.id}) if widens else frozenset(), settled=settled)

    async def now(self, widening: frozenset[str] = frozenset(), *, settled: bool = False) -> str:
        self.judge.widening = widening
        self.reconciler.wanted.settled = settled
        await self.versions.update_folders()
        (pool,) = self.reconciler.wanted.pools
        return " ".join(pool.folders)


async def _at_once(revision: str) -> None:
    return None


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


async def test_a_rollout_from_one_version_to_the_next(rig: Rig) -> None:
    """One extra replica runs from the start until all have changed; the highest numbers change first."""
    assert await rig.now() == "v1 v1 v1 v1"
    assert await rig.at() == "v1 v1 v1 v1 v2", "while it loads"
    assert await rig.at(VersionLoaded()) == "v1 v1 v1 v1 v2"
    assert await rig.at(VersionLoaded(), StagePassed(), StagePassed()) == "v1 v1 v1 v2 v2"
    assert await rig.at(VersionLoaded(), StagePassed(), StagePassed(), widens=True) == "v1 v2 v2 v2 v2"
    assert rig.judge.aimed == (POOL, VersionShares("v1", {"v2": 4}, is_moving=True)), "so many are waited for"
    rig.stable, rig.rows.active = "v2", ()
    assert await rig.now() == "v2 v2 v2 v2 v2", "the last one changes, with one more beside it"
    assert await rig.now() == "v2 v2 v2 v2 v2", "it has not changed yet"
    assert await rig.now(settled=True) == "v2 v2 v2 v2"
    assert await rig.now(settled=True) == "v2 v2 v2 v2"


async def test_rolled_back_replicas_end_at_once(rig: Rig) -> None:
    assert await rig.at(VersionLoaded(), StagePassed(), StagePassed()) == "v1 v1 v1 v2 v2"
    assert await rig.at(VersionLoaded(), Breached("slow")) == "v1 v1 v1 v1"


async def test_rollout_without_surge_has_no_extra_replica(tmp_path: Path) -> None:
    rig = Rig(tmp_path, surge=False)
    assert await rig.at(VersionLoaded()) == "v1 v1 v1 v2"
    assert await rig.at(VersionLoaded(), StagePassed(), StagePassed(), widens=True) == "v1 v2 v2 v2"
    rig.stable, rig.rows.active = "v2", ()
    assert await rig.now() == "v2 v2 v2 v2"


async def test_engine_memory_is_not_measured_without_a_rollout(rig: Rig) -> None:
    """Twice a second, for engines of some gigabytes, the measurement took a tenth of a core."""
    assert await rig.now() == "v1 v1 v1 v1"
    assert rig.asked_for_room == 0
    assert await rig.at(VersionLoaded()) == "v1 v1 v1 v1 v2"
    assert rig.asked_for_room == 1


async def test_replicas_do_not_change_before_the_rows_are_published(rig: Rig) -> None:
    before = await rig.at(VersionLoaded(), StagePassed(), StagePassed())
    split = rig.published()
    rig.rows.active = ()  # completed: the channel still points at v1
    rig.versions._published = lambda: split
    assert await rig.now() == before


async def test_restarted_controller_restores_replica_versions(rig: Rig) -> None:
    """Otherwise it would not know the processes of the new version, and end them as foreign ones."""
    await rig.at(VersionLoaded(), StagePassed(), StagePassed())
    ran = engines(plan_fleet(CONTEXT, rig.reconciler.wanted.pools, Target(engine="sim"), {}))
    rig.start_controller()
    (pool,) = rig.reconciler.wanted.pools
    assert " ".join(pool.folders) == "v1 v1 v1 v2 v2"
    assert engines(plan_fleet(CONTEXT, [pool], Target(engine="sim"), {})) == ran


async def test_replica_in_the_middle_of_a_change_is_drained_not_ended(rig: Rig) -> None:
    """The plan was stored and the controller killed before replica 3 changed: it still runs v1 and should run v2."""
    await rig.at(VersionLoaded())
    before = plan_fleet(rig.reconciler.context(), rig.reconciler.wanted.pools, Target(engine="sim"), {})
    await rig.at(VersionLoaded(), StagePassed(), StagePassed())
    slots = {f"{POOL}-{number}": number for number in range(5)}
    runs = [found(number, spec) for number, spec in enumerate(before.values())]
    for known in (rig, None):
        if known is None:
            rig.start_controller()
        plan = plan_adoption(
            runs, {each.pid: each.pid for each in runs}, ProcessLedger(), rig.reconciler.candidates(slots)
        )
        assert plan.end == ()


def found(number: int, spec: ProcessSpec) -> Found:
    return Found(pid=100 + number, name=spec.name, spec_hash=spec.spec_hash, leads=True, started_at=float(number))


def engines(specs: dict[str, ProcessSpec]) -> dict[str, str]:
    """Return the weights of each replica's engine and agent, which must agree."""
    told = {
        spec.replica_id: dict(spec.env)["SHOAL_REPLICA_WEIGHTS_DIR"] for spec in specs.values() if spec.role == "agent"
    }
    started = {
        spec.replica_id: spec.argv[spec.argv.index("--model") + 1] for spec in specs.values() if spec.role == "engine"
    }
    assert told == started, "the agent tells of what its engine was started from"
    return {name or "": folder for name, folder in started.items()}


async def test_pool_in_a_rollout_has_no_second_extra_replica(rig: Rig) -> None:
    """The rollout's surge is the only extra replica allowed."""
    await rig.now()
    (pool,) = rig.reconciler.wanted.pools
    assert pool.may_surge and one_more(CONTEXT, [pool], Target(engine="sim"), {}, POOL).keys() == {
        "engine-base-4",
        "agent-base-4",
    }
    await rig.at(VersionLoaded())
    (pool,) = rig.reconciler.wanted.pools
    assert one_more(CONTEXT, [pool], Target(engine="sim"), {}, POOL) == {}


def test_invalid_versions_file_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "kept" / "base-versions.json"
    assert read_folders(file) == {}
    write_folders(file, {"a": PoolFolders("x", (("y", 2),), 1)})
    assert read_folders(file) == {"a": PoolFolders("x", (("y", 2),), 1)}
    file.write_text('{"a": {"main": 7}}')
    assert read_folders(file) == {} and "base-versions.json" in caplog.text


@pytest.mark.parametrize(
    ("folders", "replicas", "expected"),
    [
        (PoolFolders("a"), 2, "a a"),
        (PoolFolders("a", (("b", 1), ("c", 1)), 1), 2, "a b c"),
        (PoolFolders("a", (("b", 9),)), 2, "a b"),
        (PoolFolders("a", (("b", 9),)), 0, ""),
    ],
)
def test_majority_version_gets_the_lowest_numbers(folders: PoolFolders, replicas: int, expected: str) -> None:
    named: Sequence[str] = folders.by_number(replicas)
    assert " ".join(named) == expected
