"""Recent activity of each pool at a gateway, and how it is published."""

import asyncio
import contextlib
import dataclasses
import time

import msgspec
import pytest

from functions.api.ids import PoolName
from functions.api.snapshot import AutoscalingEntry
from functions.decisions.admission.ticket import WAITING
from functions.decisions.quantile_sketch import QuantileSketch
from functions.fleet import pool_heartbeat
from functions.fleet.bus import BusUnavailable
from functions.fleet.pool_heartbeat import MAX_POOLS_PER_HEARTBEAT, PoolDemand, PoolStats
from functions.gateway import feeds
from functions.gateway.admission.pool_stats import SLOT_S, SLOTS, PoolActivity, expected_wait_s
from functions.gateway.routing.fallback import Degraded
from tests.decisions.admission.test_admission import Pool
from tests.gateway import sse
from tests.gateway.hello import HELLO, Playing, finishes
from tests.gateway.rig import BOT_V1, POOL, Clock, Rig

NAME = PoolName("a")
SENDER = ("gw-1", 7)


def stats_by_pool(figures: PoolActivity, *pools: PoolName) -> dict[str, PoolStats]:
    beats = figures.heartbeats(SENDER, 1.0, pools, {})
    return {stats.pool: stats for beat in beats for stats in beat.pools}


def test_activity_covers_only_the_window() -> None:
    clock = Clock()
    figures = PoolActivity(clock)
    clock.now_s += 100.0
    for number in range(3):
        figures.arrived(NAME, 50, deferrable=number == 0)
    figures.degraded(NAME)
    now = stats_by_pool(figures)[NAME]
    assert (now.arrivals, now.arriving_tokens, now.deferrable_tokens, now.degraded) == (3, 150, 50, 1)
    assert SLOT_S * (SLOTS - 1) <= now.window_s <= SLOT_S * SLOTS
    clock.now_s += SLOT_S * SLOTS
    assert stats_by_pool(figures, NAME)[NAME].arrivals == 0


@pytest.mark.parametrize(
    ("reason", "service_class", "overflow"),
    [
        ("saturated", "interactive", 1),
        ("queue_timeout", "near-real-time", 1),
        ("saturated", "batch", 0),
        ("low_band", "near-real-time", 0),
        ("tenant_queue_full", "interactive", 0),
        ("adapter_not_loaded", "interactive", 0),
        ("no_replica_ready", "interactive", 0),
    ],
)
async def test_only_capacity_rejections_count_as_overflow(
    play: Playing, reason: str, service_class: str, overflow: int
) -> None:
    admitted = play("r0").ask(header_x_shoal_class=service_class).admitted
    figures = PoolActivity(Clock())
    figures.shed(admitted, reason, None)
    stats = stats_by_pool(figures)[POOL]
    assert (stats.shed, stats.overflow) == (1, overflow)


async def test_rejection_after_a_detour_counts_each_pools_reason(play: Playing) -> None:
    admitted = play("r0").ask().admitted
    elsewhere = msgspec.structs.replace(admitted, model=dataclasses.replace(admitted.model, pool=NAME))
    figures = PoolActivity(Clock())
    figures.shed(elsewhere, "no_replica_ready", Degraded(admitted, "saturated", None, "saturated"))
    figures.shed(elsewhere, "saturated", Degraded(admitted, "saturated", None, "adapter_not_loaded"))
    now = stats_by_pool(figures)
    assert (now[POOL].shed, now[POOL].overflow) == (2, 1)
    assert (now[NAME].shed, now[NAME].overflow) == (2, 1)


def test_new_gateway_reports_a_shorter_window() -> None:
    clock = Clock()
    figures = PoolActivity(clock)
    clock.now_s += 4.0
    figures.arrived(NAME, 1)
    assert stats_by_pool(figures)[NAME].window_s == 4.0


def test_steady_arrivals_are_reported_at_their_rate() -> None:
    clock = Clock()
    figures = PoolActivity(clock)
    for _ in range(500):
        clock.now_s += 0.2
        figures.arrived(NAME, 1)
    now = stats_by_pool(figures)[NAME]
    assert abs(now.arrivals / now.window_s - 5.0) < 0.3


def test_idle_pools_of_the_snapshot_are_reported_and_removed_ones_forgotten() -> None:
    clock = Clock()
    figures = PoolActivity(clock)
    figures.arrived(PoolName("removed"), 1)
    assert set(stats_by_pool(figures, NAME)) == {"a", "removed"}
    clock.now_s += SLOT_S * SLOTS + SLOT_S
    assert set(stats_by_pool(figures, NAME)) == {"a"}


def test_many_pools_are_split_into_messages_of_one_sequence() -> None:
    figures = PoolActivity(Clock())
    pools = [PoolName(f"p{number}") for number in range(MAX_POOLS_PER_HEARTBEAT + 1)]
    beats = figures.heartbeats(SENDER, 1.0, pools, {})
    assert [len(beat.pools) for beat in beats] == [MAX_POOLS_PER_HEARTBEAT, 1]
    assert len({beat.sequence for beat in beats}) == 1


def test_expected_wait_uses_drain_rate_or_oldest_wait() -> None:
    pool = Pool()
    pool.submit(kv=900)
    tickets = [pool.submit(kv=2_000) for _ in range(2)]
    assert [ticket.state for ticket in tickets] == [WAITING, WAITING]
    admission = pool.admission
    assert sum(queue.queued_cost for queue in admission.queues) == 6_000
    assert expected_wait_s(admission, pool.now_s + 2.0) == 2.0, "no rate is known: as long as the oldest has waited"
    admission.drain.per_replica, admission.gate.replicas = 1_000.0, 2
    assert expected_wait_s(admission, pool.now_s + 2.0) == 3.0
    assert expected_wait_s(admission, pool.now_s + 4.0) == 4.0


def test_endless_wait_is_reported_as_one_hour() -> None:
    pool = Pool()
    pool.submit(kv=900)
    pool.submit(kv=2_000)
    pool.admission.drain.per_replica, pool.admission.gate.replicas = 1e-9, 1
    figures = PoolActivity(Clock())
    figures.arrived(NAME, 1)
    (beat,) = figures.heartbeats(SENDER, 1.0, [], {NAME: pool.admission})
    told_of, left_out = pool_heartbeat.decode(pool_heartbeat.encode(beat))
    assert (told_of.pools[0].queue_s, left_out) == (3600.0, 0)


def test_queued_foreground_tokens_are_reported_separately() -> None:
    pool = Pool()
    pool.submit(kv=900)
    for band in (0, 1, 2):
        pool.submit(kv=2_000, band=band)
    figures = PoolActivity(Clock())
    figures.arrived(NAME, 1)
    (beat,) = figures.heartbeats(SENDER, 1.0, [], {NAME: pool.admission})
    stats = beat.pools[0]
    assert (stats.queued_tokens, stats.foreground_queued_tokens) == (6_000, 4_000)


async def test_request_counts_as_arrival_with_its_ttft(play: Playing) -> None:
    p = play("r0")
    p.ask(stream=True)
    finishes(await p.connects())
    assert p.client.ended and HELLO
    stats = {
        each.pool: each
        for beat in p.gateway.services.admission.pools.heartbeats(SENDER, 1.0, [], {})
        for each in beat.pools
    }[POOL]
    assert stats.arrivals == 1
    assert stats.arriving_tokens > 0
    assert QuantileSketch.from_buckets(stats.ttft_ms).count == 1


async def test_stall_in_a_long_stream_shows_in_inter_token_times(play: Playing) -> None:
    """The mean over the stream's 100 tokens would have been 70 ms instead of 20."""
    p = play("r0")
    p.ask(stream=True)
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(sse.token(BOT_V1, "a"))
    for gap_s in [0.02] * 98 + [5.0]:
        p.rig.clock.forward(gap_s)
        engine.streams(sse.token(BOT_V1, "b"))
    engine.streams(sse.DONE)
    engine.ends_stream()
    stats = next(iter(p.gateway.services.admission.pools.heartbeats(SENDER, 1.0, [], {}))).pools[0]
    gaps = QuantileSketch.from_buckets(stats.gap_ms)
    assert gaps.count_above(4_000) == 1 and gaps.quantile(0.5) == pytest.approx(20, rel=0.13)
    sample = p.gateway.services.metrics.registry.get_sample_value
    labels = {"pool": POOL, "class": "interactive"}
    count = sample("shoal_inter_token_seconds_count", labels)
    assert count is not None and 99 <= count <= 101
    assert count - (sample("shoal_inter_token_seconds_bucket", {**labels, "le": "2.5"}) or 0) == 1
    assert sample("shoal_model_ttft_seconds_count", {"model": "acme/bot"}) == 1


class Bus:
    """Keeps published messages; the second one finds the bus gone."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    async def publish_pools(self, message: bytes) -> None:
        if self.messages:
            raise BusUnavailable("gone")
        self.messages.append(message)


async def test_gateway_publishes_the_pools_of_its_snapshot() -> None:
    rig, bus = Rig(), Bus()
    try:
        async with asyncio.timeout(30.0):
            await feeds.publish_pools(rig.gateway.services, bus)  # type: ignore[arg-type]
    except BusUnavailable:
        beat, _ = pool_heartbeat.decode(bus.messages[0])
    assert [stats.pool for stats in beat.pools] == [POOL]


async def test_new_wait_for_a_pool_at_zero_is_published_at_once() -> None:
    rig, bus = Rig(policies={"autoscaling": (AutoscalingEntry("zero", POOL, 0, 4),)}), Bus()
    catalogue, wakes = rig.gateway.services.state.catalogue, rig.gateway.services.pool_wakes
    assert catalogue is not None and wakes.request_pool(catalogue, POOL)
    began_s = time.monotonic()
    with contextlib.suppress(BusUnavailable):
        async with asyncio.timeout(30.0):
            await feeds.publish_demand(rig.gateway.services, bus)  # type: ignore[arg-type]
    beat, _ = pool_heartbeat.decode(bus.messages[0])
    assert beat.demand == (PoolDemand(POOL, 1, 0),) and not beat.pools
    assert time.monotonic() - began_s >= 0.9, "the second message came with the next second, the first did not wait"
