"""Where requests go that a pool's ladder shifts, and which pool's figures count them and their rejections."""

import pytest

from functions.api.ids import PoolName
from functions.api.snapshot import AdmissionEntry, BandEntry, FallbackEntry
from functions.decisions.admission.queue import Admission
from functions.decisions.overload.gateway_share import QueueLadder
from functions.decisions.overload.ladder import Rungs
from functions.decisions.routing.fallback import shift_targets
from functions.fleet.pool_heartbeat import PoolStats
from tests.gateway import sse
from tests.gateway.detours import LARGE, THIRD, falls_back, goes, with_large
from tests.gateway.engine_rig import Play
from tests.gateway.hello import Playing
from tests.gateway.rig import BOT_V1, POOL, heartbeat

SLO = AdmissionEntry("default", ("*",), (BandEntry("interactive", 1.0, 1000),))
TWO = (FallbackEntry("saturated", POOL, LARGE), FallbackEntry("saturated", POOL, THIRD))


def pool_stats(p: Play) -> dict[str, PoolStats]:
    beats = p.gateway.services.admission.pools.heartbeats(("gw", 1), 1.0, [], {})
    return {stats.pool: stats for beat in beats for stats in beat.pools}


def sends_on(monkeypatch: pytest.MonkeyPatch, p: Play, ratio: float) -> None:
    monkeypatch.setattr(p.gateway.services.admission, "shift_ratio", lambda _pool: ratio)


def waits(p: Play, replica: str, waiting: int, pool: PoolName = POOL) -> None:
    beat = heartbeat(replica, pool=pool, sequence=50, running=0, waiting=waiting, service_ms=100.0)
    p.gateway.receive_heartbeat(beat)


async def test_request_outside_the_shift_share_moves_only_if_faster(
    play: Playing, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = with_large(play("r0", **falls_back(admission=(SLO,))))
    waits(p, "r0", 30)
    waits(p, "big0", 300, LARGE)
    sends_on(monkeypatch, p, 1e-12)
    p.ask()
    assert (await p.connects()).replica_id == "r0"
    sends_on(monkeypatch, p, 1.0)
    p.ask()
    assert (await p.connects()).replica_id == "big0"


async def test_fallback_pool_without_replicas_is_skipped(play: Playing, monkeypatch: pytest.MonkeyPatch) -> None:
    p = with_large(play("r0", **falls_back(*TWO)), "huge0", pool=THIRD)
    sends_on(monkeypatch, p, 1.0)
    p.ask()
    assert (await p.connects()).replica_id == "huge0"
    assert list(shift_targets(TWO, POOL, lambda pool: bool(p.gateway.services.fleet.index(pool).ready))) == [THIRD]


async def test_shiftable_ratio_is_zero_if_the_first_fallback_is_full(
    play: Playing, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = with_large(play("r0", **falls_back(*TWO)), "huge0", pool=THIRD)
    p.gateway.receive_heartbeat(
        heartbeat("big0", pool=LARGE, adapters=(), kv_blocks_total=1, prefill_ms_per_token=0.001)
    )
    ratios, look = [], QueueLadder.update_rungs

    def looks(ladder: QueueLadder, admission: Admission, now_s: float, *, shiftable_ratio: float) -> Rungs:
        ratios.append(shiftable_ratio)
        return look(ladder, admission, now_s, shiftable_ratio=shiftable_ratio)

    monkeypatch.setattr(QueueLadder, "update_rungs", looks)
    p.ask()
    p.gateway.sweep()
    assert ratios == [1.0]
    p.ask(LARGE)
    p.gateway.sweep()
    assert ratios[1:] == [0.0, 0.0], "the own pool's, and the full one's, which has no other"


@pytest.mark.parametrize("service_class", ["interactive", "batch"])
async def test_shifted_request_that_returns_counts_as_one_arrival(
    play: Playing, monkeypatch: pytest.MonkeyPatch, service_class: str
) -> None:
    p = with_large(play("r0", **falls_back()))
    p.ask(stream=False, header_x_shoal_class=service_class)
    await p.connects()
    once = pool_stats(p)[POOL]
    sends_on(monkeypatch, p, 1.0)
    p.ask(stream=False, header_x_shoal_class=service_class)
    await p.settle()
    away = pool_stats(p)[POOL]
    assert away.arrivals == 2, "what is sent on was offered all the same"
    assert away.arriving_tokens == 2 * once.arriving_tokens
    assert away.deferrable_tokens == (away.arriving_tokens if service_class == "batch" else 0)
    await p.refuses_connection()
    engine = await p.connects()
    assert engine.replica_id == "r0"
    assert pool_stats(p)[POOL] == away
    assert (
        sum(q.arrived for pool, room, _ in p.gateway.services.admission.figures() if pool == POOL for q in room.queues)
        == 2
    )
    engine.answers(200, sse.whole(BOT_V1))
    assert p.client.status == 200


async def test_rejection_counts_in_the_requested_pool_too(play: Playing) -> None:
    p = play("r0", **falls_back())
    goes(p)
    p.ask()
    assert p.client.status == 503
    assert (pool_stats(p)[POOL].shed, pool_stats(p)[LARGE].shed) == (1, 1)
    assert (pool_stats(p)[POOL].overflow, pool_stats(p)[LARGE].overflow) == (0, 0), "they are gone, not full"
