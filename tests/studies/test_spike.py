"""A small spike: the overload ladder meets the SLO of admitted requests, in order, with the same accelerators."""

import pytest

from studies.spike.arms import ArmName
from studies.spike.figures import SpikeFigures, figures_of, over_seeds, recovery_s
from studies.spike.spike import LARGE, SLO_MS, SpikeRun, SpikeSetting, run, workload

SMALL_SPIKE = SpikeSetting(
    replicas=3, warm=1, small_replicas=1, small_per_s=2.0, most_replicas=20, at_s=20.0, rise_s=5.0, lasts_s=60.0,
    after_s=10.0, start_s=48.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def ladder() -> SpikeRun:
    return run(SMALL_SPIKE, "ladder", 1)


@pytest.mark.soak
def test_ladder_answers_admitted_requests_in_time(ladder: SpikeRun) -> None:
    with_ladder = figures_of(ladder, SMALL_SPIKE)
    alone = figures_of(run(SMALL_SPIKE, "hpa", 1), SMALL_SPIKE)
    assert with_ladder.interactive_p99_ms is not None and alone.interactive_p99_ms is not None
    assert with_ladder.interactive_p99_ms < SLO_MS < alone.interactive_p99_ms / 4
    assert with_ladder.in_time_ratio > 1.2 * alone.in_time_ratio
    assert alone.shed_ratio == 0.0


@pytest.mark.soak
def test_batch_waits_instead_of_being_refused(ladder: SpikeRun) -> None:
    """Batch may wait for ten minutes, and the spike lasts one."""
    assert figures_of(ladder, SMALL_SPIKE).batch_shed_ratio == 0.0
    assert max(ladder.recorder.timeline.waiting) > 100


def test_warm_replica_serves_before_the_first_started_one(ladder: SpikeRun) -> None:
    line = ladder.recorder.timeline
    borrowed_s = next(at_s for at_s, ready in zip(line.at_s, line.ready, strict=True) if ready > SMALL_SPIKE.replicas)
    assert SMALL_SPIKE.at_s < borrowed_s < SMALL_SPIKE.at_s + 25.0
    assert max(line.ready) > SMALL_SPIKE.replicas + SMALL_SPIKE.warm
    assert any(degraded for degraded in line.degraded_ratio if degraded)


def test_arms_get_the_same_requests_and_accelerators() -> None:
    arms: tuple[ArmName, ...] = ("ladder", "hpa")
    seen = []
    for arm in arms:
        brief = SpikeSetting(replicas=2, warm=1, at_s=5.0, rise_s=1.0, lasts_s=2.0, after_s=1.0)
        found = run(brief, arm, 3)
        seen.append((found.recorder.sums[-1][1].asked, found.accelerator_hours))
    assert seen[0][0] == seen[1][0]
    assert seen[0][1] == pytest.approx(seen[1][1], rel=0.01)


def test_the_same_seed_is_the_same_spike() -> None:
    def drawn(seed: int) -> list[tuple[float, int, int]]:
        return [(each.at_s, each.prompt_tokens, each.band) for each in workload(SMALL_SPIKE, seed)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert {each.pool for each in workload(SMALL_SPIKE, 1)} == {LARGE, "small"}


def test_recovery_is_when_latency_stays_within_the_slo() -> None:
    looks = [400.0, 900.0, 450.0, 700.0, 480.0, 460.0]
    during = [(100.0 + 10 * index, p99) for index, p99 in enumerate(looks)]
    assert recovery_s(during, 100.0, 500.0) == 40.0
    assert recovery_s(during[4:], 100.0, 500.0) == 0.0
    assert recovery_s(during[:2], 100.0, 500.0) is None
    assert recovery_s([(100.0, None)], 100.0, 500.0) is None


def test_never_recovering_is_the_worst_over_seeds() -> None:
    found = [SpikeFigures(100.0, 1.0, 0.0, 0.0, 0.0, recovered, 1.0) for recovered in (30.0, None, 10.0)]
    recovered = over_seeds("ladder", found).figures["recovery_s"]
    assert (recovered.least, recovered.median, recovered.most) == (10.0, 30.0, None)
