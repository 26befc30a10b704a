"""A base's new version that no replica has any more: the driver measures for how long, and reacts."""

from dataclasses import dataclass, field

import pytest

from functions.api.ids import RolloutId
from functions.controller.rollouts.book import Book, fold_page
from functions.controller.rollouts.driver import RolloutDriver
from functions.controller.rollouts.following import RowsFollower
from functions.controller.snapshot.registry_client import LastHeartbeat
from functions.decisions.rollout.codec import Command
from functions.decisions.rollout.events import Breached, VersionLoaded
from functions.decisions.rollout.evidence import TrialEvidence
from functions.decisions.rollout.lifecycle import Rollout, transition
from tests.controller.rollouts.test_book import page
from tests.controller.rollouts.test_residency import replica
from tests.decisions.rollout.rollouts import POOL, rollout

ROW = rollout(VersionLoaded(), model=POOL)


@dataclass
class Registry:
    """A registry with one rollout."""

    posted: list[Command] = field(default_factory=list)

    async def evidence(self, rollout: RolloutId) -> TrialEvidence:
        return TrialEvidence()

    async def post_event(self, rollout: RolloutId, command: Command) -> Rollout:
        self.posted.append(command)
        return transition(ROW, command.event, 0.0)


@dataclass
class Rig:
    registry: Registry = field(default_factory=Registry)
    versions: tuple[str, ...] = ("v1", "v2")
    now_s: float = 1000.0

    def __post_init__(self) -> None:
        self.start_controller()

    def start_controller(self) -> None:
        """Start another controller."""
        rows = RowsFollower(self.client, None)  # type: ignore[arg-type]
        rows.book = fold_page(Book(), page(1, ROW))
        self.driver = RolloutDriver(rows, self.client, self.fleet, wall_clock=lambda: 70.0, clock=lambda: self.now_s)  # type: ignore[arg-type]

    async def client(self) -> Registry:
        return self.registry

    async def fleet(self) -> tuple[LastHeartbeat, ...]:
        return tuple(LastHeartbeat(replica(version), age_s=0.1) for version in self.versions)

    async def after(self, seconds: float, *versions: str) -> str:
        """Step after so many seconds with these versions ready; return the reason of the verdict."""
        self.now_s += seconds
        self.versions = versions
        await self.driver.judge_rollouts()
        return self.driver.verdicts[ROW.id].reason


async def test_version_without_replicas_is_rolled_back_at_the_deadline() -> None:
    rig = Rig()
    assert "no replica has v2" not in await rig.after(0.0, "v1", "v2")
    assert "no replica has v2: v1 serves its share" in await rig.after(1.0, "v1")
    await rig.after(599.0, "v1")
    assert rig.registry.posted == []
    await rig.after(1.0, "v1")
    (command,) = rig.registry.posted
    assert command.event == Breached("stage 1 of 4 (1%): no replica has had v2 for 10m 0s")


@pytest.mark.parametrize("meanwhile", [("v1", "v2"), ()], ids=["back", "nobody-ready"])
async def test_deadline_restarts_when_a_replica_returns_and_while_none_is_ready(meanwhile: tuple[str, ...]) -> None:
    rig = Rig()
    await rig.after(0.0, "v1")
    await rig.after(599.0, *meanwhile)
    await rig.after(1.0, "v1")
    await rig.after(599.0, "v1")
    assert rig.registry.posted == []
    await rig.after(1.0, "v1")
    assert len(rig.registry.posted) == 1


async def test_restarted_controller_rolls_back_later_but_not_earlier() -> None:
    rig = Rig()
    await rig.after(0.0, "v1")
    rig.start_controller()
    await rig.after(599.0, "v1")
    await rig.after(599.0, "v1")
    assert rig.registry.posted == []
