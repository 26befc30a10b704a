"""The overload ladder as exchanges see it: batch is rejected first, others are shifted, every rung is in the
metrics."""

from random import Random

import pytest

from functions.api.snapshot import AdmissionEntry, BandEntry
from functions.decisions.overload.ladder import Rungs
from functions.gateway.admission.metrics import LadderCollector
from tests.gateway import sse
from tests.gateway.detours import NAMED_LARGE, falls_back, with_large
from tests.gateway.engine_rig import Client, Play
from tests.gateway.hello import Playing, finishes
from tests.gateway.rig import POOL, heartbeat

PROMISED = AdmissionEntry(
    "p", ("*",), (BandEntry("interactive", 0.9, ttft_slo_ms=2000), BandEntry("batch", 0.1, max_wait_ms=2_000))
)
QUARTER_S = 0.25


def rung(p: Play, name: str) -> float | None:
    return p.gateway.services.metrics.registry.get_sample_value("shoal_overload_rung", {"pool": POOL, "rung": name})


def shed(p: Play, reason: str) -> float:
    return p.gateway.services.metrics.registry.get_sample_value("shoal_shed_total", {"reason": reason}) or 0.0


def small() -> Play:
    """Make a play whose pool has KV blocks for one of these requests."""
    play = Play(admission=(PROMISED,))
    play.gateway.receive_heartbeat(heartbeat("r0", kv_blocks_total=1, prefill_ms_per_token=0.001))
    return play


async def goes_on(p: Play, seconds: float, *, interactive: float, batch: float, rng: Random) -> list[Client]:
    """Send requests at random with these rates per quarter, while the engine ends one in each. Return the batch
    clients."""
    found = []
    for quarter in range(round(seconds / QUARTER_S)):
        for per_quarter, band in ((interactive, "interactive"), (batch, "batch")):
            for _ in range(int(per_quarter) + (rng.random() < per_quarter % 1.0)):
                p.ask(header_x_shoal_class=band)
                found += [p.client] if band == "batch" else []
        await p.settle()
        if p.dials:
            await p.connects()
        for engine in p.engines[-1:]:
            finishes(engine)
        p.rig.clock.forward(QUARTER_S)
        p.gateway.receive_heartbeat(
            heartbeat("r0", sequence=100 + quarter + int(p.rig.clock() * 1000), kv_blocks_total=1)
        )
        p.gateway.sweep()
    return found


async def test_batch_is_shed_during_overload_and_admitted_again() -> None:
    p, rng = small(), Random(4)
    await goes_on(p, 5.0, interactive=0.3, batch=0.2, rng=rng)
    assert rung(p, "shed") == 0.0 and shed(p, "low_band") == 0.0
    await goes_on(p, 20.0, interactive=4.0, batch=1.0, rng=rng)
    assert rung(p, "shed") == 1.0
    assert rung(p, "shift") == 0.0, "there is nowhere to go"
    assert shed(p, "low_band") > 10
    refused = shed(p, "low_band")
    await goes_on(p, 60.0, interactive=0.2, batch=0.1, rng=rng)
    assert rung(p, "shed") == 0.0
    assert shed(p, "low_band") < refused + 5
    await p.close()


async def test_shifted_request_is_answered_by_another_pool_with_its_header(
    play: Playing, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = with_large(play("r0", **falls_back()))
    p.ask(stream=False)
    assert (await p.connects()).replica_id == "r0"
    monkeypatch.setattr(p.gateway.services.admission, "shift_ratio", lambda _pool: 1.0)
    p.ask(stream=False)
    engine = await p.connects()
    assert engine.replica_id == "big0"
    engine.answers(200, sse.whole(NAMED_LARGE))
    assert p.client.headers[b"x-shoal-degraded"] == b"from=acme/bot@v1;reason=saturated"
    offered = {pool: admission.queues[0].arrived for pool, admission, _ in p.gateway.services.admission.figures()}
    assert offered[POOL] == 2, "what is sent on was offered all the same"


async def test_each_rung_is_in_the_metrics() -> None:
    rungs = Rungs(("shed", "shift"), kept_ratios=(1.0, 0.75, 0.1), shift_ratio=0.4)
    told = {
        (metric.name, *sample.labels.values()): sample.value
        for metric in LadderCollector(lambda: {POOL: rungs}).collect()
        for sample in metric.samples
    }
    assert told == {
        ("shoal_overload_rung", POOL, "shed"): 1.0,
        ("shoal_overload_rung", POOL, "shift"): 1.0,
        ("shoal_overload_strength", POOL, "shed"): pytest.approx(0.9),
        ("shoal_overload_strength", POOL, "shift"): pytest.approx(0.4),
    }
