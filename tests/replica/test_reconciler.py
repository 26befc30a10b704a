"""The reconciler beside a minimal engine: what delays readiness, and races between two awaits."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import pytest

from functions.api.ids import Digest, EngineName, ModelId, TenantId
from functions.decisions.adapters.plan import AdapterPolicy
from functions.decisions.catalogue import Catalogue
from functions.decisions.health.engine import HealthPolicy
from functions.engines.client import EngineClient
from functions.fleet.tasks import Supervised
from functions.replica.disk_tier import DiskNeeds
from functions.replica.load_spans import LoadEnd
from functions.replica.monitor import EngineProber, Monitor
from functions.replica.reconciler import BUSY_KNOWN_S, AdapterReconciler, Reports
from functions.replica.source import Obtained
from functions.replica.status import Adapters, AgentStatus
from functions.replica.warm_up import WarmUp
from tests.replica.snapshots import make_snapshot, name_of
from tests.replica.statuses import Clock, make_status

A, B, C, D, E, F = (ModelId(f"acme/{letter}") for letter in "abcdef")


def digest(model: ModelId, version: str = "v1") -> Digest:
    return Digest("sha256:" + hashlib.sha256(f"{model}/{version}".encode()).hexdigest())


def name(model: ModelId, version: str = "v1") -> EngineName:
    return name_of(digest(model, version), model)


@dataclass
class EngineOfAFewLines:
    """Engine that lists, loads and unloads by name; while away it refuses connections."""

    names: set[str] = field(default_factory=set)
    unloads: list[str] = field(default_factory=list)
    before_unload: Callable[[], Awaitable[None]] | None = None
    away: bool = False

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.away:
            raise httpx.ConnectError("nobody listens")
        if request.method == "GET":
            cards = [{"id": name, "root": "/", "parent": "smollm2-135m"} for name in sorted(self.names)]
            return httpx.Response(200, json={"data": cards})
        asked = json.loads(request.content)["lora_name"]
        if request.url.path.endswith("/load_lora_adapter"):
            self.names.add(asked)
        else:
            self.unloads.append(asked)
            if self.before_unload is not None:
                await self.before_unload()
            self.names.discard(asked)
        return httpx.Response(200)


@dataclass
class Source:
    """Source with every adapter on disk; slow ones arrive once the test releases them."""

    slow: Collection[Digest] = ()
    let: asyncio.Event = field(default_factory=asyncio.Event)
    broken: bool = False
    asked: list[Digest] = field(default_factory=list)
    hurried: list[Digest] = field(default_factory=list)

    async def obtain(self, digest: Digest, tenant: TenantId | None, *, urgent: bool = False) -> Obtained:
        self.asked.append(digest)
        if digest in self.slow:
            await self.let.wait()
        if self.broken:
            raise OSError("no thread can be started")
        return Obtained(Path("/") / digest, "disk")

    def hurry(self, digest: Digest) -> None:
        self.hurried.append(digest)


@dataclass
class Rig:
    policy: AdapterPolicy
    client: EngineClient
    engine: EngineOfAFewLines
    tasks: Supervised
    clock: Clock = field(default_factory=Clock)
    source: Source = field(default_factory=Source)

    def __post_init__(self) -> None:
        self.status: AgentStatus = make_status(clock=self.clock)
        self.status.adapters = Adapters()
        self.status.load_read_s = self.clock.now_s
        self.ends: list[LoadEnd] = []
        reports = Reports(
            loaded=lambda tier, seconds: None,
            failed=lambda outcome: None,
            disk_changed=lambda: None,
            ended=self.ends.append,
        )
        self.reconciler = AdapterReconciler(
            self.status,
            self.client,
            self.source,
            self.policy,
            self.tasks,
            reports=reports,
            needs=DiskNeeds(),
            heard=lambda: True,
        )

    def follow(self, *models: ModelId, versions: tuple[str, ...] = ("v1",)) -> None:
        named = {model: {version: digest(model, version) for version in versions} for model in models}
        channels = {"stable": "v1"} | ({"incoming": versions[-1]} if len(versions) > 1 else {})
        self.reconciler.follow(Catalogue(make_snapshot(named, channels=channels), "hash"))

    async def passes(self, count: int = 2, seconds: float = 0.0) -> None:
        """Run `count` passes, each followed by the loads that it starts, as far as they can proceed."""
        for _ in range(count):
            self.clock.now_s += seconds
            self.status.judged_s = self.status.load_read_s = self.clock.now_s
            await self.reconciler.reconcile()
            await settled()


async def settled() -> None:
    """Let every task run as far as it can without a clock or a socket."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    engine, tasks = EngineOfAFewLines(), Supervised()
    async with httpx.AsyncClient(transport=httpx.MockTransport(engine)) as http:
        yield Rig(AdapterPolicy(max_adapters=4, hold_s=0.0), EngineClient(http, "http://engine"), engine, tasks)
        await tasks.close()


async def test_only_the_first_load_delays_readiness(rig: Rig) -> None:
    rig.source.slow = {digest(A)}
    assert rig.status.not_ready().startswith("no snapshot yet")
    rig.follow(A, B)
    await rig.passes()
    assert rig.status.not_ready() == f"loading {name(A)}"
    rig.source.slow = {digest(A), digest(A, "v2"), digest(B, "v2")}
    rig.follow(A, B, versions=("v1", "v2"))
    await rig.passes()
    assert rig.status.not_ready() == f"loading {name(A)}", "what came after the start is not waited for"
    rig.source.let.set()
    await rig.passes()
    assert rig.status.not_ready() == ""


async def test_a_slow_candidate_leaves_a_ready_replica_ready(rig: Rig) -> None:
    rig.follow(A, B)
    await rig.passes()
    assert rig.status.not_ready() == ""
    rig.source.slow = {digest(A, "v2"), digest(B, "v2")}
    rig.follow(A, B, versions=("v1", "v2"))
    for _ in range(5):
        await rig.passes(1)
        assert rig.status.not_ready() == ""
    assert digest(A, "v2") in rig.source.asked
    assert rig.engine.names == {name(A), name(B)}
    rig.source.let.set()
    await rig.passes()
    assert len(rig.engine.names) == 4


async def test_restarted_engine_advertises_no_adapters_until_reloaded(rig: Rig) -> None:
    """The heartbeat may say `ready` before the next pass; a request for a lost adapter would get a 404."""
    rig.follow(A, B)
    await rig.passes()
    assert rig.status.adapters.advertised == tuple(sorted([name(A), name(B)]))
    prober = EngineProber(rig.client, "smollm2-135m", 1.0, rig.clock)
    monitor = Monitor(
        rig.status, rig.client, prober, HealthPolicy(), rig.tasks, warm_up=WarmUp(rig.client, "base", rig.status, 0)
    )
    rig.engine.away = True
    await monitor.tick()
    assert rig.status.health.phase == "dead"
    rig.engine.away, rig.engine.names = False, set()
    rig.status.health = replace(rig.status.health, phase="ready")
    assert (rig.status.adapters.advertised, rig.status.not_ready() != "") == ((), True)
    assert (await rig.reconciler.load(name(A), 0.1)).answer == "not_ready"
    rig.source.slow = {digest(A)}
    await rig.passes()
    assert rig.status.not_ready() == f"loading {name(A)}"
    rig.source.let.set()
    await rig.passes()
    assert rig.status.not_ready() == ""


async def test_adapter_promised_to_a_gateway_is_not_unloaded_in_the_same_pass(rig: Rig) -> None:
    rig.engine.names = {name(model) for model in (A, B, C, D)}
    rig.follow(A, B, C, D, E, F)
    rig.status.busy_adapters = frozenset(name(model) for model in (A, B, C, D))
    await rig.passes(1)
    rig.status.busy_adapters = frozenset({name(C), name(D)})
    for cold in (E, F):
        rig.tasks.once("a cold load", wait_for_it(rig, cold))
    await settled()
    await rig.passes(1, seconds=1.0)
    assert len(rig.status.adapters.advertised) == 2, "two leave together"
    promised: list[str] = []

    async def ask_for_the_other() -> None:
        rig.engine.before_unload = None
        (other,) = {name(A), name(B)} - set(rig.engine.unloads)
        promised.append((await rig.reconciler.load(other, 5.0)).answer)

    rig.engine.before_unload = ask_for_the_other
    while not rig.engine.unloads:
        await rig.passes(1, seconds=1.0)
    assert promised == ["loaded"]
    assert len(rig.engine.unloads) == 1


async def wait_for_it(rig: Rig, model: ModelId) -> None:
    await rig.reconciler.load(name(model), 60.0)


async def test_a_fault_of_our_own_is_a_failed_load_with_pauses(rig: Rig) -> None:
    rig.source.broken = True
    rig.follow(A)
    await rig.passes(20)
    assert rig.source.asked == [digest(A)]
    assert "a fault of the agent's own: OSError" in rig.status.adapters.reason
    assert (await rig.reconciler.load(name(A), 0.1)).answer == "failed"
    (end,) = rig.ends
    assert (end.name, end.outcome, end.tier) == (name(A), "failed", None) and "OSError" in end.reason


async def test_finished_load_is_reported_with_duration_and_urgency(rig: Rig) -> None:
    rig.source.slow = {digest(A)}
    rig.follow(A)
    await rig.passes()
    assert rig.ends == []
    rig.clock.now_s += 3.0
    rig.source.let.set()
    await rig.passes()
    (end,) = rig.ends
    assert (end.name, end.digest, end.outcome, end.tier) == (name(A), digest(A), "loaded", "disk")
    assert (end.took_s, end.urgent) == (3.0, False)
    rig.source.broken = False
    await rig.passes(2, seconds=60.0)
    assert rig.engine.names == {name(A)}


async def test_nothing_is_unloaded_while_the_running_adapters_are_unknown(rig: Rig) -> None:
    rig.follow(A)
    await rig.passes()
    rig.follow(B)
    await rig.passes(1)
    for _ in range(20):
        rig.clock.now_s += 10.0
        rig.status.judged_s = rig.clock.now_s
        await rig.reconciler.reconcile()
    assert rig.engine.unloads == []
    await rig.passes(3, seconds=BUSY_KNOWN_S)
    assert rig.engine.unloads == [name(A)]


async def test_prefetch_with_a_waiting_request_becomes_urgent(rig: Rig) -> None:
    rig.source.slow = {digest(A)}
    rig.follow(A)
    await rig.passes(1)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(rig.reconciler.load(name(A), 30.0))
        await rig.passes(1)
        assert rig.source.hurried == [digest(A)]
        rig.source.let.set()
    assert waiting.result().answer == "loaded"
    assert rig.source.asked == [digest(A)]
