"""ColdLoads: one call for many requests, another replica if one cannot load, and bounds on everything."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from functions.api.ids import EngineName, ReplicaId
from functions.decisions.catalogue_policies import DEFAULT_ROUTING
from functions.decisions.routing.choice import ReplicaView, RouteRequest
from functions.decisions.routing.own_load import OwnLoad
from functions.fleet.tasks import Supervised
from functions.fleet.view import FleetView
from functions.gateway.routing.adapter_loads import MAX_CALLS, ColdFailed, ColdLoads
from functions.gateway.routing.load_client import LoadState
from tests.gateway.loader_rig import PlayedLoader
from tests.gateway.rig import POOL, Clock, heartbeat, limits

COLD = EngineName("acme/cold@sha256:0123456789abcdef")
OTHER = EngineName("acme/other@sha256:0123456789abcdef")


class Request:
    """A waiting request that records its outcome."""

    def __init__(self) -> None:
        self.told: list[ReplicaView | ColdFailed] = []

    def adapter_loaded(self, replica: ReplicaView) -> None:
        self.told.append(replica)

    def adapter_not_loaded(self, failed: ColdFailed) -> None:
        self.told.append(failed)

    @property
    def outcome(self) -> str:
        assert len(self.told) == 1, self.told
        return self.told[0].outcome if isinstance(self.told[0], ColdFailed) else f"loaded on {self.told[0].id}"


class Floor:
    """Three replicas with room, whose agents the test plays."""

    def __init__(self, *replicas: str, **bounds: Any) -> None:
        self.clock = Clock()
        self.loader = PlayedLoader()
        self.tasks = Supervised()
        self.fleet = FleetView()
        self.ended: list[tuple[str, float]] = []
        self.overloaded, self.gateways = False, 1
        for name in replicas or ("r0", "r1", "r2"):
            self.heartbeats(name)
        self.loads = ColdLoads(
            self.loader,
            limits=limits(**bounds),
            clock=self.clock,
            tasks=self.tasks,
            fleet=self.fleet,
            own=OwnLoad(),
            on_end=lambda outcome, seconds: self.ended.append((outcome, seconds)),
            is_overloaded=lambda _: self.overloaded,
            gateways=lambda: self.gateways,
        )

    def heartbeats(self, name: str, sequence: int = 1, **changes: Any) -> None:
        beat = heartbeat(name, sequence=sequence, **{"adapters": (), "peer_port": 9, "adapter_room": 1, **changes})
        self.fleet.fold(beat, self.clock())

    def wait(self, name: EngineName = COLD, tried: tuple[str, ...] = ()) -> Request:
        """Add a request that must wait."""
        request = Request()
        assert self.request_load(request, name, tried) is None
        return request

    def request_load(self, request: Request, name: EngineName = COLD, tried: tuple[str, ...] = ()) -> ColdFailed | None:
        asked = RouteRequest(engine_name=name, is_adapter=True, prompt_tokens=10, tie_key="r")
        return self.loads.wait(request, asked, POOL, DEFAULT_ROUTING, frozenset(map(ReplicaId, tried)))

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def answer(self, state: LoadState, reason: str = "") -> ReplicaId:
        """Answer the call that is under way, or the next one."""
        call = await self.loader.next()
        call.answers(state, reason)
        await self.settle()
        return call.replica


@pytest.fixture
async def floor() -> AsyncIterator[Floor]:
    made = Floor()
    yield made
    await made.tasks.close()


@contextlib.asynccontextmanager
async def a_floor(*replicas: str, **bounds: Any) -> AsyncIterator[Floor]:
    made = Floor(*replicas, **bounds)
    yield made
    await made.tasks.close()


async def test_fifty_concurrent_requests_make_one_load_call(floor: Floor) -> None:
    requests = [floor.wait() for _ in range(50)]
    assert floor.loads.waiting == 50
    floor.clock.forward(0.4)
    replica = await floor.answer("loaded")
    assert [request.outcome for request in requests] == [f"loaded on {replica}"] * 50
    assert len(floor.loader.asked) == 1 and floor.loads.waiting == 0
    assert floor.ended == [("loaded", pytest.approx(0.4))]
    known = floor.fleet.replica(replica)
    assert known is not None and COLD in known.adapters, "known before the heartbeat says so"


async def test_two_adapters_make_two_load_calls(floor: Floor) -> None:
    first, second = floor.wait(), floor.wait(OTHER)
    await floor.settle()
    assert {call.engine_name for call in floor.loader.calls} == {COLD, OTHER}
    await floor.answer("loaded")
    await floor.answer("loaded")
    assert first.outcome.startswith("loaded") and second.outcome.startswith("loaded")


async def test_an_overloaded_pool_loads_one_adapter_at_a_time_in_their_order() -> None:
    async with a_floor(cold_pause_s=0.001) as floor:
        floor.overloaded = True
        first, second, third = (floor.wait(EngineName(f"acme/bot@sha256:{number:016x}")) for number in range(3))
        call = await floor.loader.next()
        await asyncio.sleep(0.02)
        assert not floor.loader.calls and call.engine_name.endswith("0"), "the others wait for their turn"
        call.answers("loaded")
        call = await floor.loader.next()
        assert first.outcome.startswith("loaded") and call.engine_name.endswith("1")
        floor.overloaded = False
        assert (await floor.loader.next()).engine_name.endswith("2"), "the ladder is left: all at once again"
        assert not second.told and not third.told


async def test_four_gateways_load_a_quarter_each_into_an_overloaded_pool() -> None:
    async with a_floor(cold_pause_s=0.001) as floor:
        floor.overloaded, floor.gateways = True, 4
        floor.wait()
        call = await floor.loader.next()
        second = floor.wait(OTHER)
        floor.clock.forward(0.2)
        call.answers("loaded")
        await asyncio.sleep(0.02)  # real time: the load polls for its turn
        assert not floor.loader.calls, "the other three have their turns"
        floor.clock.forward(0.59)
        await asyncio.sleep(0.02)
        assert not floor.loader.calls
        floor.clock.forward(0.02)
        (await floor.loader.next()).answers("loaded")
        await floor.settle()
        assert second.outcome.startswith("loaded")


async def test_pool_no_longer_overloaded_loads_at_once() -> None:
    async with a_floor(cold_pause_s=0.001) as floor:
        floor.overloaded, floor.gateways = True, 4
        floor.wait()
        call = await floor.loader.next()
        floor.clock.forward(0.2)
        call.answers("loaded")
        floor.overloaded = False
        floor.wait(OTHER)
        assert (await floor.loader.next()).engine_name == OTHER


async def test_load_without_a_turn_in_time_ends_as_held_back() -> None:
    async with a_floor(cold_pause_s=0.001) as floor:
        floor.overloaded = True
        floor.wait()
        late = floor.wait(OTHER)
        await floor.loader.next()
        floor.clock.forward(15.0)
        while not late.told:
            await asyncio.sleep(0.001)
        assert late.outcome == "held_back" and floor.ended == [("held_back", 15.0)]


async def test_loads_between_two_heartbeats_use_free_slots_on_different_replicas(floor: Floor) -> None:
    for number in range(3):
        floor.wait(EngineName(f"acme/bot@sha256:{number:016x}"))
        await floor.settle()
    assert sorted(floor.loader.asked) == ["r0", "r1", "r2"], "each has room for one"


@pytest.mark.parametrize("state", ["no_room", "unknown", "not_ready", "unreachable"])
async def test_load_moves_on_from_a_replica_that_cannot(floor: Floor, state: LoadState) -> None:
    request = floor.wait()
    first = await floor.answer(state)
    assert request.told == []
    second = await floor.answer("loaded")
    assert second != first and request.outcome == f"loaded on {second}"


async def test_replicas_are_retried_until_the_time_is_over(floor: Floor) -> None:
    request = floor.wait()
    asked = [await floor.answer("no_room") for _ in range(3)]
    assert sorted(asked) == ["r0", "r1", "r2"]
    asked.append(await floor.answer("no_room"))
    floor.clock.forward(15.0)
    await floor.answer("no_room")
    assert request.outcome == "no_room"
    assert len(floor.loader.asked) == 5


async def test_calls_are_bounded() -> None:
    async with a_floor(cold_pause_s=0.0) as floor:
        request = floor.wait()
        while not request.told:
            await floor.answer("unknown")
        assert request.outcome == "no_replica" and len(floor.loader.asked) <= MAX_CALLS


@pytest.mark.parametrize(("state", "outcome"), [("refused", "refused"), ("slow", "slow")])
async def test_some_answers_are_final(floor: Floor, state: LoadState, outcome: str) -> None:
    request = floor.wait()
    await floor.answer(state, "rank 64 is over 16")
    assert request.told == [ColdFailed(outcome, "rank 64 is over 16")]  # type: ignore[arg-type]
    assert len(floor.loader.asked) == 1


async def test_refused_artifact_is_retried_only_after_a_pause(floor: Floor) -> None:
    floor.wait()
    await floor.answer("refused", "no such file")
    assert floor.request_load(Request()) == ColdFailed("refused", "no such file")
    floor.clock.forward(2.0)
    floor.wait()
    await floor.settle()
    assert len(floor.loader.asked) == 2


async def test_each_load_call_gets_the_remaining_time(floor: Floor) -> None:
    floor.wait()
    first = await floor.loader.next()
    floor.clock.forward(6.0)
    first.answers("no_room")
    second = await floor.loader.next()
    assert (first.wait_s, second.wait_s) == (pytest.approx(15.0), pytest.approx(9.0))


async def test_load_moves_on_from_a_lost_replica(floor: Floor) -> None:
    request = floor.wait()
    first = await floor.loader.next()
    floor.heartbeats(first.replica, sequence=2, phase="dead")
    floor.loads.replica_lost(first.replica)
    second = await floor.loader.next()
    assert second.replica != first.replica
    second.answers("loaded")
    await floor.settle()
    assert request.outcome == f"loaded on {second.replica}"


async def test_loss_of_another_replica_does_not_affect_a_load(floor: Floor) -> None:
    request = floor.wait()
    call = await floor.loader.next()
    other = next(name for name in ("r0", "r1", "r2") if name != call.replica)
    floor.loads.replica_lost(ReplicaId(other))
    await floor.settle()
    call.answers("loaded")
    await floor.settle()
    assert request.outcome == f"loaded on {call.replica}"


async def test_replicas_already_tried_get_no_load_call(floor: Floor) -> None:
    floor.wait(tried=("r0", "r2"))
    assert (await floor.loader.next()).replica == "r1"


async def test_replica_that_got_the_adapter_meanwhile_is_used(floor: Floor) -> None:
    request = floor.wait()
    call = await floor.loader.next()
    other = next(name for name in ("r0", "r1", "r2") if name != call.replica)
    floor.heartbeats(other, sequence=2, adapters=(COLD,))
    call.answers("no_room")
    await floor.settle()
    assert request.outcome == f"loaded on {other}" and len(floor.loader.asked) == 1


async def test_load_continues_without_notifying_requests_that_left(floor: Floor) -> None:
    left, stays = floor.wait(), floor.wait()
    floor.loads.leave(left, POOL, COLD)
    floor.loads.leave(left, POOL, COLD)
    assert floor.loads.waiting == 1
    await floor.answer("loaded")
    assert left.told == [] and stays.outcome.startswith("loaded")


async def test_load_is_not_retried_after_all_requests_left(floor: Floor) -> None:
    request = floor.wait()
    call = await floor.loader.next()
    floor.loads.leave(request, POOL, COLD)
    call.answers("no_room")
    await floor.settle()
    assert len(floor.loader.asked) == 1 and floor.ended == [("no_room", 0.0)]


async def test_waiting_requests_are_bounded_per_adapter_tenant_and_in_total() -> None:
    async with a_floor(cold_waiting_per_adapter=2, cold_waiting=5) as floor:
        rival = EngineName("globex/cold@sha256:0123456789abcdef")
        for name in (COLD, rival, rival):
            floor.wait(name)
        assert floor.request_load(Request(), rival) == ColdFailed("too_many"), "two wait for it"
        floor.wait(OTHER)
        assert floor.request_load(Request(), COLD) == ColdFailed("too_many"), "acme has its half"
        floor.wait(EngineName("initech/cold@sha256:0123456789abcdef"))
        assert floor.request_load(Request(), EngineName("hooli/cold@sha256:0123456789abcdef")) == ColdFailed("too_many")
        assert floor.loads.waiting == 5
        await floor.settle()


async def test_abandoned_loads_are_bounded() -> None:
    """If a client requests one adapter after another and leaves, its loads fill its tenant's half; the other half stays
    free."""
    async with a_floor(cold_loads=4) as floor:
        names = [EngineName(f"acme/a{number}@sha256:0123456789abcdef") for number in range(10)]
        outcomes = []
        for name in names:
            request = Request()
            outcomes.append(floor.request_load(request, name))
            await floor.settle()
            floor.loads.leave(request, POOL, name)
        assert outcomes == [None, None] + [ColdFailed("too_many")] * 8 and len(floor.loader.calls) == 2
        for owner in ("globex", "initech"):
            floor.wait(EngineName(f"{owner}/cold@sha256:0123456789abcdef"))
        assert floor.request_load(Request(), EngineName("hooli/cold@sha256:0123456789abcdef")) == ColdFailed("too_many")
        await floor.settle()


async def test_load_without_reachable_agent_fails_at_once(floor: Floor) -> None:
    for name in ("r0", "r1", "r2"):
        floor.heartbeats(name, sequence=2, peer_port=0)
    request = floor.wait()
    await floor.settle()
    assert request.outcome == "no_replica" and floor.loader.asked == []


async def test_loader_exception_is_a_failed_load(caplog: pytest.LogCaptureFixture, floor: Floor) -> None:
    request = floor.wait()
    (await floor.loader.next()).answer.set_exception(RuntimeError("a bug"))
    await floor.settle()
    assert request.outcome == "failed" and "a bug" in caplog.text
    again = floor.wait()
    await floor.answer("loaded")
    assert again.outcome.startswith("loaded"), "the next request begins anew"
