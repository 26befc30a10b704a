"""Published demand for pools that no request names: prefill pools, and the larger model of a cascade."""

from typing import Any

import pytest

from functions.api.ids import PoolName
from functions.api.snapshot import AutoscalingEntry
from functions.decisions.quantile_sketch import QuantileSketch
from functions.fleet.pool_heartbeat import PoolDemand, PoolStats
from functions.gateway.admission.pool_stats import SLOT_S, SLOTS, PoolActivity
from functions.gateway.limits import Limits
from tests.gateway import sse
from tests.gateway.detours import LARGE, UNSURE, cascades, scored
from tests.gateway.engine_rig import Play
from tests.gateway.rig import POOL, Clock, heartbeat
from tests.gateway.test_split import PREFILL, ask, decodes, path, prefilled, sections

SENDER = ("gw-1", 7)
SLEEPY = AutoscalingEntry("sleepy", PREFILL, 0, 4)


def pool_stats(play: Play, pool: PoolName = PREFILL) -> PoolStats:
    return told_by(play.gateway.services.admission.pools, pool)


def told_by(activity: PoolActivity, pool: PoolName) -> PoolStats:
    beats = activity.heartbeats(SENDER, 1.0, [POOL, PREFILL], {})
    return next(stats for beat in beats for stats in beat.pools if stats.pool == pool)


def demand(play: Play) -> tuple[PoolDemand, ...]:
    services = play.gateway.services
    assert services.state.catalogue is not None
    may_sleep = services.state.catalogue.may_sleep
    return services.pool_wakes.demand(may_sleep, services.requests_of(may_sleep))


def playing(*, decoding: int = 30, reading: dict[str, Any] | None = None, **more: Any) -> Play:
    """Make a pool that decodes so many requests and a prefill pool; `reading` describes its replica, None means
    none."""
    play = Play(limits=Limits(quarantine_after_replicas=0), **sections(), **more)
    play.gateway.receive_heartbeat(heartbeat("r0", running=decoding))
    if reading is not None:
        play.gateway.receive_heartbeat(heartbeat("p0", pool=PREFILL, **reading))
    return play


async def test_prefill_for_another_pool_counts_as_arrival() -> None:
    """The autoscaler of the prefill pool saw no demand, however busy the pool was."""
    play = playing(reading={})
    ask(play)
    first = await play.connects()
    assert (pool_stats(play).arrivals, pool_stats(play).degraded, pool_stats(play).queue_s) == (1, 0, 0.0)
    assert pool_stats(play).arriving_tokens > 1000 and pool_stats(play).deferrable_tokens == 0
    play.rig.clock.forward(0.4)
    first.answers(200, prefilled())
    decodes(await play.connects())
    took = QuantileSketch.from_buckets(pool_stats(play).ttft_ms)
    assert took.count == 1 and took.quantile(0.5) == pytest.approx(400, rel=0.15)
    assert pool_stats(play, POOL).arrivals == 1 and pool_stats(play, POOL).degraded == 0, "and its own pool's as before"


async def test_prompt_a_full_prefill_pool_cannot_read_counts_as_arrival() -> None:
    """The comparison sends prompts past a pool with a queue; without counting them the pool seems to have enough
    capacity."""
    play = playing(reading={"running": 4, "waiting": 8, "service_ms": 800.0})
    ask(play)
    decodes(await play.connects())
    assert path(play) == "path=one;why=slower"
    now = pool_stats(play)
    assert (now.arrivals, now.degraded) == (1, 1)
    assert now.queue_s == pytest.approx(6.88), "eight that wait, and twelve that share the steps"


async def test_prompt_not_worth_a_split_does_not_count() -> None:
    play = playing(decoding=0, reading={})
    ask(play)
    decodes(await play.connects())
    assert path(play) == "path=one;why=slower"
    assert (pool_stats(play).arrivals, pool_stats(play).degraded) == (0, 0)


async def test_failed_prefill_counts_as_degraded() -> None:
    play = playing(reading={})
    ask(play)
    (await play.connects()).refuses(500)
    decodes(await play.connects())
    assert path(play) == "path=one;why=prefill_failed"
    assert (pool_stats(play).arrivals, pool_stats(play).degraded) == (1, 1)
    assert QuantileSketch.from_buckets(pool_stats(play).ttft_ms).count == 0


async def test_batch_prompts_count_as_deferrable() -> None:
    play = playing(reading={"running": 4, "waiting": 8, "service_ms": 800.0})
    ask(play, header_x_shoal_class="batch")
    decodes(await play.connects())
    now = pool_stats(play)
    assert now.deferrable_tokens == now.arriving_tokens > 0
    assert now.queue_s == 0.0


# a pool that may be at zero


async def test_prompt_wakes_its_prefill_pool_without_waiting() -> None:
    """No request names the pool: without this it would sleep for ever."""
    play = playing(autoscaling=(SLEEPY,))
    ask(play)
    decodes(await play.connects())
    assert path(play) == "path=one;why=no_prefill_replica"
    assert demand(play) == (PoolDemand(PREFILL, 1, 0),)
    assert (pool_stats(play).arrivals, pool_stats(play).degraded) == (1, 1)


@pytest.mark.parametrize(("decoding", "text"), [(0, "word " * 4000), (30, "short")])
async def test_prompt_not_worth_a_split_wakes_no_pool(decoding: int, text: str) -> None:
    play = playing(decoding=decoding, autoscaling=(SLEEPY,))
    ask(play, text=text)
    decodes(await play.connects())
    assert demand(play) == ()


async def test_prefill_under_way_counts_as_demand() -> None:
    """Prefill of a prompt may take longer than the window of recent arrivals."""
    play = playing(reading={}, autoscaling=(SLEEPY,))
    ask(play)
    first = await play.connects()
    assert demand(play) == (PoolDemand(PREFILL, 0, 1),)
    first.answers(200, prefilled())
    assert demand(play) == ()


async def test_prefill_pool_wait_is_the_mean_of_its_prompts() -> None:
    """It covers the last half minute: at the moment of a heartbeat a busy pool may have no queue."""
    clock, asking = Clock(), Play("r0").ask().admitted
    activity = PoolActivity(clock)
    for wait_s in (0.0, 1.0, 2.0):
        activity.prompt_arrived(asking, wait_s, is_read=wait_s < 2.0)
    assert told_by(activity, POOL).queue_s == 1.0
    assert told_by(activity, POOL).degraded == 1
    clock.forward(SLOT_S * SLOTS)
    assert told_by(activity, POOL).queue_s == 0.0


async def test_unsure_answer_wakes_the_larger_model_at_zero() -> None:
    """If only a cascade leads to a pool, nothing else would start it."""
    play = Play("r0", **cascades(0.5), autoscaling=(AutoscalingEntry("sleepy", LARGE, 0, 2),))
    play.ask()
    engine = await play.connects()
    engine.begins_stream()
    engine.streams(scored("er", *UNSURE), scored("m", *UNSURE), sse.DONE)
    engine.ends_stream()
    assert play.client.ended and b'"er"' in play.client.body, "the small one's answer stands"
    assert demand(play) == (PoolDemand(LARGE, 1, 0),)
