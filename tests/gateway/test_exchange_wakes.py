"""The exchange while its pool is at zero: it waits for the first replica and ends exactly once, whatever happens."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from functions.api.ids import PoolName
from functions.api.snapshot import AutoscalingEntry, FallbackEntry, PoolEntry
from functions.fleet.pool_heartbeat import PoolDemand
from tests.gateway.engine_rig import Play
from tests.gateway.hello import PUBLIC_END, PUBLIC_HELLO, finishes
from tests.gateway.rig import GLOBEX_KEY, IMPOSTOR_KEY, POOL, catalogue, heartbeat, limits, routing

ZERO = AutoscalingEntry("zero", POOL, 0, 4)
SLEEPY = frozenset({POOL})


class Asleep:
    """A pool that may be at zero, and is."""

    def __init__(self, **settings: object) -> None:
        known = {"limits": limits(quarantine_after_replicas=0), **settings}
        self.p = Play(autoscaling=(ZERO,), **known)  # type: ignore[arg-type]
        self.beats = 0

    @property
    def wakes(self) -> object:
        return self.p.gateway.services.pool_wakes

    def waking(self) -> list[PoolDemand]:
        return list(self.p.gateway.services.pool_wakes.demand(SLEEPY, {}))

    async def serves(self, replica: str = "r0", **changes: object) -> None:
        self.beats += 1
        self.p.gateway.receive_heartbeat(heartbeat(replica, sequence=self.beats, **changes))
        await self.swept()

    async def swept(self, after_s: float = 0.0) -> None:
        self.p.rig.clock.forward(after_s)
        self.p.gateway.sweep()
        await self.p.settle()

    def shed(self, reason: str = "pool_at_zero") -> float:
        registry = self.p.gateway.services.metrics.registry
        return registry.get_sample_value("shoal_shed_total", {"reason": reason}) or 0.0


@pytest.fixture
async def asleep() -> AsyncIterator[Asleep]:
    pool = Asleep()
    yield pool
    await pool.p.close()


async def test_a_request_waits_for_the_first_replica_and_is_answered(asleep: Asleep) -> None:
    asleep.p.ask()
    await asleep.swept(3.0)
    assert asleep.p.client.status is None and asleep.waking() == [PoolDemand(POOL, 1)]
    await asleep.serves()
    finishes(await asleep.p.connects())
    headers = asleep.p.client.headers
    assert asleep.p.client.body == PUBLIC_HELLO + PUBLIC_END
    assert headers[b"x-shoal-wake"] == b"waited=3" and b"wake;dur=3000.00" in headers[b"server-timing"]
    assert b"route;dur=0.00" in headers[b"server-timing"] and headers[b"x-shoal-replica"] == b"r0"
    assert asleep.p.quiet() and asleep.waking() == []


async def test_stream_gets_comments_while_waiting_and_then_the_answer(asleep: Asleep) -> None:
    asleep.p.ask()
    await asleep.swept(5.0)
    assert asleep.p.client.status == 200 and asleep.p.client.headers[b"x-shoal-wake"] == b"expected=unknown"
    assert asleep.p.client.body == f": the pool {POOL} is being started\n\n".encode()
    await asleep.swept(9.0)
    assert asleep.p.client.body.count(b": the pool") == 1
    await asleep.swept(1.0)
    assert asleep.p.client.body.count(b": the pool") == 2
    await asleep.serves()
    finishes(await asleep.p.connects())
    assert asleep.p.client.body.endswith(PUBLIC_HELLO + PUBLIC_END) and asleep.p.client.ended
    assert asleep.p.quiet() and asleep.p.requests(200) == 1


async def test_whole_answer_sends_nothing_while_waiting(asleep: Asleep) -> None:
    asleep.p.ask(stream=False)
    await asleep.swept(60.0)
    assert asleep.p.client.status is None


async def test_five_concurrent_requests_are_one_wake_and_all_answered(asleep: Asleep) -> None:
    asked = asleep.p.gateway.services.pool_wakes.asked
    asleep.p.ask()
    assert asked.is_set()
    asked.clear()
    for _ in range(4):
        asleep.p.ask()
    assert not asked.is_set() and asleep.waking() == [PoolDemand(POOL, 5)]
    await asleep.serves()
    for _ in range(5):
        finishes(await asleep.p.connects())
    assert asleep.p.quiet() and asleep.p.requests(200) == 5


async def test_request_submitted_twice_counts_as_one_arrival(asleep: Asleep) -> None:
    asleep.p.ask()
    await asleep.serves()
    finishes(await asleep.p.connects())
    told = asleep.p.gateway.services.admission.pools.heartbeats(("g", 1), 0.0, [], {})
    assert told[0].pools[0].arrivals == 1


async def test_request_too_late_for_a_wake_gets_503_and_starts_it(asleep: Asleep) -> None:
    asleep.p.gateway.services.pool_wakes.replica_started(POOL, 90.0)
    asleep.p.ask(header_x_shoal_deadline_ms="20000")
    error, headers = asleep.p.client.error, asleep.p.client.headers
    assert (asleep.p.client.status, error["code"]) == (503, "model_not_ready")
    assert "about 90 s more" in error["message"] and 90 <= int(headers[b"retry-after"]) <= 120
    assert asleep.waking() == [PoolDemand(POOL, 1)] and asleep.p.quiet() and asleep.shed() == 1
    await asleep.swept(80.0)
    asleep.p.ask(header_x_shoal_deadline_ms="20000")
    assert asleep.p.client.status is None, "10 s are left of the start, and 20 of the request"
    await asleep.serves()
    finishes(await asleep.p.connects())
    assert asleep.p.requests(200) == 1


async def test_expected_wake_time_prefers_measured_waits_to_replica_reports(asleep: Asleep) -> None:
    asleep.p.gateway.services.pool_wakes.replica_started(POOL, 10.0)
    asleep.p.ask()
    await asleep.swept(42.0)
    await asleep.serves()
    assert asleep.p.gateway.services.pool_wakes.expected_s(POOL) == 42.0


async def test_wait_ends_with_an_error_before_the_deadline(asleep: Asleep) -> None:
    asleep.p.ask(stream=False, header_x_shoal_deadline_ms="20000")
    await asleep.swept(19.4)
    assert asleep.p.client.status is None
    await asleep.swept(0.2)
    assert (asleep.p.client.status, asleep.p.client.error["code"]) == (503, "model_not_ready")
    assert b"retry-after" in asleep.p.client.headers and asleep.p.quiet() and asleep.shed() == 1


async def test_stream_with_comments_ends_with_an_error_event(asleep: Asleep) -> None:
    asleep.p.ask(header_x_shoal_deadline_ms="20000")
    await asleep.swept(10.0)
    await asleep.swept(9.6)
    assert asleep.p.client.status == 200 and asleep.p.client.error["code"] == "model_not_ready"
    assert asleep.p.client.ended and asleep.p.quiet() and asleep.p.requests(503) == 1


async def test_a_client_that_leaves_waits_no_more(asleep: Asleep) -> None:
    asleep.p.ask().client_left()
    assert asleep.p.quiet() and asleep.p.gateway.services.pool_wakes.waiting == 0
    assert asleep.waking() == [PoolDemand(POOL, 1)], "it asked, and may come back"
    await asleep.swept(16.0)
    assert asleep.waking() == [PoolDemand(POOL, 0)]
    await asleep.serves()
    assert not asleep.p.dials and asleep.p.client.status is None


@pytest.mark.parametrize("bound", [{"wake_waiting": 2}, {"wake_waiting_bytes": 300}])
async def test_waiting_for_a_wake_is_bounded_in_requests_and_bytes(bound: dict[str, int]) -> None:
    pool = Asleep(limits=limits(quarantine_after_replicas=0, **bound))
    for _ in range(4):
        pool.p.ask()
    assert (pool.p.client.status, pool.p.client.error["code"]) == (503, "model_not_ready")
    assert "Too many requests wait" in pool.p.client.error["message"] and pool.p.gateway.services.pool_wakes.waiting < 4
    await pool.p.close()


async def test_one_tenant_fills_at_most_half_of_the_wake_queue() -> None:
    pool = Asleep(limits=limits(quarantine_after_replicas=0, wake_waiting=4))
    for _ in range(3):
        pool.p.ask()
    assert pool.p.client.status == 503
    pool.p.ask("globex/bot", header_key=GLOBEX_KEY)
    assert pool.p.client.status is None
    await pool.p.close()


async def test_pool_with_a_minimum_of_one_is_not_waited_for() -> None:
    play = Play(autoscaling=(AutoscalingEntry("one", POOL, 1, 4),))
    play.ask()
    assert (play.client.status, play.client.error["code"]) == (503, "no_capacity")
    assert play.gateway.services.pool_wakes.demand(SLEEPY, {}) == ()
    await play.close()


@pytest.mark.parametrize("who", [IMPOSTOR_KEY, GLOBEX_KEY])
async def test_request_without_access_starts_no_pool(asleep: Asleep, who: str) -> None:
    with pytest.raises(AssertionError, match=r"model_not_found|invalid_api_key"):
        asleep.p.ask(POOL, header_key=who)
    assert asleep.waking() == [] and not asleep.p.gateway.services.pool_wakes.asked.is_set()


async def test_fallback_pool_answers_and_the_sleeping_pool_is_woken() -> None:
    other = PoolName("other")
    steps = (FallbackEntry("unavailable", POOL, other),)
    base = next(model for model in catalogue().snapshot.models if model.id == POOL)
    models = (*catalogue().snapshot.models, msgspec.structs.replace(base, id=other, pool=other))
    tenants = tuple(msgspec.structs.replace(each, models=("*",)) for each in catalogue().snapshot.tenants)
    pools = (PoolEntry(other, 2048), PoolEntry(POOL, 2048))
    pool = Asleep(routing=(routing(fallback=steps),), models=models, pools=pools, tenants=tenants)
    await pool.serves("other-0", pool=other)
    pool.p.ask()
    engine = await pool.p.connects()
    assert engine.replica_id == "other-0" and pool.waking() == [PoolDemand(POOL, 1)]
    await pool.p.close()


async def test_gateway_with_pools_at_zero_is_ready_without_replicas(asleep: Asleep) -> None:
    assert asleep.p.gateway.not_ready_reason() is None
    asleep.p.gateway.swap(catalogue(2))
    assert asleep.p.gateway.not_ready_reason() == "no replica is ready yet"
