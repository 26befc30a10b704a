"""One pass of the autoscaler on a cluster: a real API server, a real registry, and agents that record requests."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from functions.api.loader import Loaded
from functions.controller.autoscaling.clients import RoleNotifier
from functions.controller.kubernetes.api import KubeApi
from functions.controller.kubernetes.objects import AUTOSCALER_MANAGER, Body
from functions.controller.kubernetes.ownership import FIELD, owners
from functions.controller.kubernetes.run.conditions import ScalingStatus
from functions.controller.kubernetes.run.metrics import ControllerMetrics
from functions.controller.kubernetes.run.scaling_reconciler import NoTotals, ScalingReconciler
from functions.controller.kubernetes.run.settings import KubernetesSettings
from functions.controller.kubernetes.scaling import ReplicaWrite
from functions.controller.snapshot.registry_client import RegistryClient
from functions.fleet import heartbeat as heartbeats
from functions.fleet import pool_heartbeat
from functions.fleet.pool_heartbeat import PoolHeartbeat, PoolStats
from tests.controller.kubernetes.fixtures import Space
from tests.controller.kubernetes.fleet import Fleet, Leader, load, pool
from tests.fleet.builders import beat as heartbeat
from tests.registry.rig import TOKEN, serving
from tests.registry.rig import Rig as RegistryRig

pytestmark = pytest.mark.servers

POLICY = """\
apiVersion: shoal.dev/v1alpha1
kind: AutoscalingPolicy
metadata: {name: a}
spec: {pool: a, replicas: {min: 2, max: 6}, warm: 1, scaleUp: ["queue_seconds > 0.5: +2"]}
"""


class OnItsWay(NoTotals):
    """Pools whose base moves between versions, with the total size requested for each."""

    def __init__(self) -> None:
        super().__init__()
        self.totals: dict[str, int] = {}

    def total_of(self, pool: str) -> int | None:
        return self.totals.get(pool)

    def request_total(self, pool: str, total: int) -> ReplicaWrite:
        changed, self.totals[pool] = self.totals[pool] != total, total
        return ReplicaWrite(total, changed=changed)


@dataclass
class Rig:
    fleet: Fleet
    registry_rig: RegistryRig
    settings: KubernetesSettings
    told: list[tuple[int, str]] = field(default_factory=list)
    stood: list[Mapping[str, ScalingStatus]] = field(default_factory=list)
    wanted: tuple[str, Loaded] | None = None
    metrics: ControllerMetrics = field(default_factory=ControllerMetrics)
    totals: OnItsWay = field(default_factory=OnItsWay)

    def __post_init__(self) -> None:
        registry = RegistryClient(self.registry_rig.client, self.registry_rig.url, TOKEN)
        self.reconciler = ScalingReconciler(
            self.settings,
            registry,
            self.metrics,
            wanted=lambda: self.wanted,
            is_suspended=lambda: False,
            on_status=self.stood.append,
            totals=self.totals,
        )
        self.agents = httpx.AsyncClient(transport=httpx.MockTransport(self._agent))

    def _agent(self, request: httpx.Request) -> httpx.Response:
        self.told.append((request.url.port or 0, request.content.decode()))
        return httpx.Response(200)

    def send_heartbeats(self, *phases: str, queue_s: float = 0.0, sequence: int = 1) -> None:
        self.registry_rig.fleet.link.set(True)
        for number, phase in enumerate(phases):
            replica = heartbeat(
                replica_id=f"a-{number}",
                pool="a",
                phase=phase,
                sequence=sequence,
                peer_port=9000 + number,
                host="127.0.0.1",
            )
            self.registry_rig.fleet.receive_message(heartbeats.encode(replica))
        stats = PoolStats("a", 30.0, queue_s=queue_s)
        self.registry_rig.fleet.pools.receive_message(
            pool_heartbeat.encode(PoolHeartbeat("gw", 1, sequence, 1.0, (stats,)))
        )

    async def step(self) -> int:
        """Run one pass; return the number of replicas that the service then has."""
        await self.reconciler.step(self.fleet.api, RoleNotifier(self.agents, TOKEN))
        return int(self.fleet.replicas("a"))


@pytest.fixture
async def rig(space: Space, tmp_path: Path) -> AsyncIterator[Rig]:
    fleet = Fleet(space)
    fleet.converge(fleet.desired(pool("a", replicas=2), POLICY))
    (tmp_path / "token").write_text(TOKEN)
    settings = KubernetesSettings(
        namespace=space.system, models_namespace=space.models, internal_token_file=tmp_path / "token"
    )
    async with serving(tmp_path) as registry_rig:
        made = Rig(fleet, registry_rig, settings)
        made.wanted = ("main@1", load(pool("a", replicas=2), POLICY))
        yield made
        await made.agents.aclose()


async def test_autoscaler_writes_nothing_before_publication_and_heartbeats(rig: Rig) -> None:
    wanted, rig.wanted = rig.wanted, None
    assert await rig.step() == 2
    rig.wanted = wanted
    assert await rig.step() == 2, "no replica and no gateway was heard"


async def test_warm_replicas_are_requested_beside_serving_ones(rig: Rig) -> None:
    rig.send_heartbeats("ready", "ready")
    assert await rig.step() == 3
    assert rig.told == []


async def test_pool_without_a_number_gets_its_policys(rig: Rig) -> None:
    rig.fleet.edit("a", {"spec": {"predictor": {"minReplicas": None}}})
    rig.send_heartbeats("ready")
    assert await rig.step() == 3, "two that serve, one that is warm"
    assert rig.stood == [{"a": ScalingStatus(2, 1)}]
    assert await rig.step() == 3
    assert len(rig.stood) == 1, "the same again is not told"


async def test_scale_up_rule_promotes_warm_replicas_and_requests_more(rig: Rig) -> None:
    rig.send_heartbeats("ready", "ready", "warm", queue_s=0.9)
    assert await rig.step() == 5
    assert rig.told == [(9002, '{"standby":false}')]
    found = rig.metrics.registry.get_sample_value("shoal_autoscaler_desired_replicas", {"pool": "a", "reason": "rule"})
    assert found == 4


async def test_surplus_serving_replica_becomes_warm(rig: Rig) -> None:
    rig.send_heartbeats("ready", "ready", "ready")
    await rig.step()
    assert rig.told == [(9002, '{"standby":true}')]


async def test_desired_size_goes_to_the_version_reconciler_during_a_base_rollout(rig: Rig) -> None:
    """During the move the version reconciler writes the pool's number, so there is one writer. A warm replica is
    promoted, and replicas of both versions count as serving.
    """
    rig.totals.totals["a"] = 3
    rig.send_heartbeats("ready", "ready", "warm", queue_s=0.9)
    assert await rig.step() == 2, "the service's own number is left alone"
    assert rig.totals.totals["a"] == 5
    assert rig.told == [(9002, '{"standby":false}')]
    rig.send_heartbeats(*["ready"] * 5, sequence=2)
    await rig.step()
    assert rig.totals.totals["a"] <= 6, "within its policy, whatever is warm of others"
    assert len(rig.told) == 1, "none becomes warm"
    rig.totals.totals.clear()
    assert await rig.step() > 2, "the number is the autoscaler's again"


async def test_accelerators_of_a_surge_are_reserved(rig: Rig) -> None:
    rig.reconciler._settings = rig.settings.model_copy(update={"max_accelerators": 4})
    rig.totals.totals["a"], rig.totals.surges = 2, {"a": 1}
    rig.send_heartbeats("ready", "ready", queue_s=0.9)
    await rig.step()
    assert rig.totals.totals["a"] == 3, "of four, one is the surge's"


MANY = """\
apiVersion: shoal.dev/v1alpha1
kind: AutoscalingPolicy
metadata: {name: a}
spec: {pool: a, replicas: {min: 2, max: 8}, warm: 4}
"""


async def test_new_warm_policy_removes_no_serving_replica(rig: Rig) -> None:
    rig.fleet.edit("a", {"spec": {"predictor": {"minReplicas": 6, "maxReplicas": 12}}})
    rig.wanted = ("main@2", load(pool("a", replicas=2), MANY))
    rig.send_heartbeats(*["ready"] * 6)
    assert await rig.step() == 10, "six serve, and four more are asked for"
    assert rig.told == []


async def test_warm_replicas_do_not_count_as_serving(rig: Rig) -> None:
    rig.fleet.edit("a", {"spec": {"predictor": {"minReplicas": 8, "maxReplicas": 12}}})
    rig.wanted = ("main@2", load(pool("a", replicas=2), MANY))
    rig.send_heartbeats(*["ready"] * 5, *["warm"] * 3)
    assert await rig.step() == 9, "five serve, three are warm, and one more is asked for"
    assert rig.told == []


def _with_at_most(rig: Rig, accelerators: int) -> ScalingReconciler:
    return ScalingReconciler(
        rig.settings.model_copy(update={"max_accelerators": accelerators}),
        RegistryClient(rig.registry_rig.client, rig.registry_rig.url, TOKEN),
        rig.metrics,
        wanted=lambda: rig.wanted,
        is_suspended=lambda: False,
    )


async def test_total_size_of_all_pools_is_bounded(rig: Rig) -> None:
    rig.reconciler = _with_at_most(rig, 3)
    rig.send_heartbeats("ready", "ready", queue_s=0.9)
    assert await rig.step() == 3


async def test_size_limit_counts_accelerators_not_replicas(rig: Rig) -> None:
    """Seven accelerators are allowed and a replica takes two: three replicas, not seven."""
    rig.fleet.edit("a", {"spec": {"predictor": {"model": {"resources": {"limits": {"nvidia.com/gpu": "2"}}}}}})
    rig.reconciler = _with_at_most(rig, 7)
    rig.send_heartbeats("ready", "ready", queue_s=5.0)
    for _ in range(5):
        count = await rig.step()
    assert count == 3


async def test_unreachable_registry_changes_no_size(rig: Rig) -> None:
    rig.send_heartbeats("ready", "ready")
    assert await rig.step() == 3
    rig.reconciler = ScalingReconciler(
        rig.settings,
        RegistryClient(rig.registry_rig.client, "http://127.0.0.1:9", TOKEN),
        rig.metrics,
        wanted=lambda: rig.wanted,
        is_suspended=lambda: False,
    )
    assert await rig.step() == 3


class Overtaken(KubeApi):
    """The API server of a test, on which Flux applies another number between our read and our first write."""

    def __init__(self, fleet: Fleet, theirs: Body) -> None:
        super().__init__(fleet.space.client, Leader(), timeout_s=60.0)
        self._fleet = fleet
        self._theirs: Body | None = theirs

    def server_side_apply(self, body: Body, **how: Any) -> Body:
        if self._theirs is not None:
            theirs, self._theirs = self._theirs, None
            self._fleet.apply_as("flux", theirs)
        return super().server_side_apply(body, **how)


def declared(rig: Rig, replicas: int) -> Body:
    body = rig.fleet.desired(pool("a")).objects[-1].body
    model = {"modelFormat": {"name": "vLLM"}}
    return {**body, "spec": {"predictor": {"minReplicas": replicas, "model": model}}}


async def test_number_declared_meanwhile_is_kept_and_the_pass_continues(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """The server answers 409 twice: to the desired number, and to a shared apply of the number that was read."""
    rig.fleet.apply_as("flux", declared(rig, 3), force=True)
    rig.send_heartbeats(*["ready"] * 4)
    rig.fleet.api = Overtaken(rig.fleet, declared(rig, 5))
    assert await rig.step() == 5, "theirs, as it is now"
    assert rig.told == [(9003, '{"standby":true}')], "agents are told in the same pass"
    assert "flux" in caplog.text
    assert await rig.step() == 5, "shared from the next pass on"
    assert ("flux", "Apply") in (holders := owners(rig.fleet.service("a") or {}, *FIELD))
    assert (AUTOSCALER_MANAGER, "Apply") in holders
    seen = rig.stood[-1]["a"]
    assert seen.contested.startswith("flux")
    assert "4 replicas are wanted; leave minReplicas out" in seen.contested
    assert seen.live == 4
