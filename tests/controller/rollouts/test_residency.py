"""Location of a rollout's two versions, as replicas report it."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from functions.api.ids import ModelId
from functions.controller.rollouts.driver import RolloutDriver, residency_of
from functions.controller.snapshot.registry_client import LastHeartbeat
from functions.decisions.rollout.evaluation import Residency
from functions.decisions.rollout.events import VersionLoaded
from functions.decisions.rollout.lifecycle import Rollout
from functions.decisions.rollout.replica_shares import wanted_shares
from functions.fleet.heartbeat import Heartbeat
from tests.decisions.rollout.rollouts import CAREFUL, POOL, Traffic, digest, evidence, rollout
from tests.decisions.rollout.test_replica_shares import base
from tests.fleet.builders import beat

LAST_IS_NEXT = msgspec.structs.replace(CAREFUL, stages=(CAREFUL.stages[1], CAREFUL.stages[-1]))  # 10 and 100 %
BOT = "acme/bot@sha256:" + "a" * 64
OTHER = "acme/other@sha256:" + "b" * 64


def replica(version: str, *adapters: str, **failures: str) -> Heartbeat:
    reasons = {BOT if name == "bot" else OTHER: reason for name, reason in failures.items()}
    return beat(pool=POOL, weights_digest=digest(version), adapters=adapters, adapter_failures=reasons)


def residency(*replicas: Heartbeat) -> Residency:
    return residency_of(rollout(model=POOL), replicas)


def test_base_versions_are_counted_by_reported_weights() -> None:
    where = residency(replica("v1"), replica("v1"), replica("v2"), replica("v3"))
    assert (where.ready, where.with_control, where.with_candidate, where.refusing) == (4, 2, 1, 0)


def test_adapter_the_new_base_cannot_load_is_reported_with_its_reason() -> None:
    old = replica("v1", BOT)
    where = residency(old, replica("v2", other="no such store", bot="its rank 64 is over 16"), replica("v2", BOT))
    assert (where.refusing, where.refusal) == (1, f"{BOT}: its rank 64 is over 16")
    assert residency(old, replica("v2", other="no such store")).refusing == 0, "the old one has not loaded it either"
    assert residency(replica("v1", BOT, bot="later"), replica("v2", BOT)).refusing == 0


@dataclass
class Registry:
    """Rows and evidence of one rollout and the replicas' reports: the driver's only inputs."""

    row: Rollout
    replicas: tuple[Heartbeat, ...]
    posted: list[str] = field(default_factory=list)

    @property
    def book(self) -> "Registry":
        return self

    @property
    def active(self) -> tuple[Rollout, ...]:
        return (self.row,)

    async def client(self) -> Any:
        return self

    async def fleet(self) -> tuple[LastHeartbeat, ...]:
        return tuple(LastHeartbeat(each, 0.0) for each in self.replicas)

    async def evidence(self, _: str) -> Any:
        return evidence((200, Traffic()), (2000, Traffic()), 70.0)

    async def post_event(self, _: str, command: Any) -> Rollout:
        self.posted.append(type(command.event).__name__)
        return self.row

    async def add_rows(self, *_: Rollout) -> None:
        return None


async def test_a_stage_waits_for_as_many_replicas_as_its_target_aims_at() -> None:
    """Two replicas, of which one is being changed: otherwise the last stage would begin on the only one left."""
    row = rollout(VersionLoaded(), model=ModelId(POOL), policy=LAST_IS_NEXT)
    registry = Registry(row, (replica("v1"), replica("v2")))
    driver = RolloutDriver(registry, registry.client, registry.fleet, wall_clock=lambda: 70.0)  # type: ignore[arg-type]
    published = base("v1", "v2", split=row, stable="v1")
    shares = wanted_shares(published, [row], {row.id}, 2, 1)
    assert shares is not None
    driver.set_aim(published, shares)
    await driver.judge_rollouts()
    assert (registry.posted, driver.widening) == ([], {row.id})
    registry.replicas = (replica("v1"), replica("v2"), replica("v2"))
    await driver.judge_rollouts()
    assert registry.posted == ["StagePassed"]


async def test_a_stage_that_has_passed_keeps_its_replicas_while_one_is_lost() -> None:
    """The first new replica was killed, or the registry had just started without heartbeats. The target fell to one and
    the second replica was stopped during its start. The rollout then completed on the first, which did not exist.
    """
    row = rollout(VersionLoaded(), model=ModelId(POOL), policy=LAST_IS_NEXT)
    registry = Registry(row, (replica("v1"), replica("v2")))
    driver = RolloutDriver(registry, registry.client, registry.fleet, wall_clock=lambda: 70.0)  # type: ignore[arg-type]
    published = base("v1", "v2", split=row, stable="v1")
    for replicas in ((replica("v1"), replica("v2")), (replica("v1"),), (replica("v1"), replica("v2"))):
        shares = wanted_shares(published, [row], driver.widening or {row.id}, 2, 1)
        assert shares is not None and shares.others == {"v2": 2}
        driver.set_aim(published, shares)
        registry.replicas = replicas
        await driver.judge_rollouts()
        assert (registry.posted, driver.widening) == ([], {row.id})
    registry.row = msgspec.structs.replace(row, stage=1)
    await driver.judge_rollouts()
    assert driver.widening == frozenset(), "the next stage has to pass by itself"
