"""Halt conditions on two groups: what is suspected, what is proven, and what counts against both versions."""

import random
from math import exp, log

import pytest

from functions.decisions.quantile_sketch import bucket_of
from functions.decisions.rollout.conditions import ConditionFinding, judge
from functions.decisions.rollout.evidence import GroupStats
from functions.decisions.rollout.sequential_test import log_weight, quantile_below_ms
from tests.decisions.rollout.rollouts import Traffic

ALPHA = 1 / 600


def group(requests: int, seed: int = 1, **traffic: float) -> GroupStats:
    made = GroupStats()
    Traffic(rng=random.Random(seed), **traffic).into(made, requests)
    return made


def counts(requests: int, errors: int) -> GroupStats:
    return GroupStats(requests, errors)


def judged(text: str, candidate: GroupStats, control: GroupStats) -> ConditionFinding:
    return judge(text, candidate, control, ALPHA)


def test_worked_example_of_the_prologue() -> None:
    candidate, control = group(500, median_ms=500.0), group(5000, seed=2)
    finding = judged("p99_latency > 1.5x", candidate, control)
    assert finding.is_proven
    assert finding.is_suspected
    bound_ms = quantile_below_ms(control.total_ms, 0.99, ALPHA / 2)
    assert (finding.control, bound_ms) == (pytest.approx(646, abs=0.5), pytest.approx(813, abs=0.5))
    assert candidate.total_ms.count_above(1.5 * 813) == 22
    assert exp(finding.log_weight) == pytest.approx(980_000, rel=0.01)
    assert finding.log_needed == pytest.approx(log(2 * 600))


@pytest.mark.parametrize(
    ("candidate", "control", "suspected", "proven"),
    [
        (counts(60, 0), counts(6000, 60), False, False),
        (counts(60, 2), counts(6000, 60), True, False),  # 3.3 % of 60 proves nothing
        (counts(3, 3), counts(300, 0), True, True),
        (counts(2, 2), counts(300, 0), True, False),
        (counts(1000, 60), counts(9000, 9), True, True),
        (counts(0, 0), counts(9000, 9), False, False),
        (counts(100, 100), counts(0, 0), True, True),
    ],
)
def test_an_error_rate_against_a_limit(
    candidate: GroupStats, control: GroupStats, suspected: bool, proven: bool
) -> None:
    finding = judged("error_rate > 2%", candidate, control)
    assert (finding.is_suspected, finding.is_proven) == (suspected, proven)


def test_limit_that_the_control_exceeds_too_is_no_evidence() -> None:
    finding = judged("error_rate > 2%", counts(1000, 60), counts(9000, 500))
    assert finding.is_shared
    assert finding.is_suspected
    assert not finding.is_proven


def test_candidate_worse_than_a_failing_control_is_found() -> None:
    finding = judged("error_rate > 2%", counts(300, 180), counts(9000, 500))
    assert finding.is_shared
    assert finding.is_proven


def test_an_error_rate_against_the_control() -> None:
    assert judged("error_rate > 2x", counts(2000, 100), counts(8000, 80)).is_proven
    assert not judged("error_rate > 2x", counts(2000, 22), counts(8000, 80)).is_suspected
    noisy = judged("error_rate > 2x", counts(60, 2), counts(6000, 60))
    assert (noisy.is_suspected, noisy.is_proven) == (True, False)


def test_control_without_errors_allows_a_single_error() -> None:
    assert not judged("error_rate > 2x", counts(5000, 1), counts(5000, 0)).is_suspected


@pytest.mark.parametrize("text", ["p99_latency > 2x", "p50_latency > 2x", "p99_ttft > 1.5x", "p99_inter_token > 2x"])
def test_an_equal_version_is_neither_suspected_nor_proven(text: str) -> None:
    finding = judged(text, group(2000, seed=3), group(8000, seed=4))
    assert (finding.is_suspected, finding.is_proven, finding.missing) == (False, False, "")


@pytest.mark.parametrize("text", ["p50_latency > 1.5x", "p50_ttft > 1.5x", "p99_inter_token > 1.2x"])
def test_a_version_twice_as_slow_is_proven(text: str) -> None:
    assert judged(text, group(500, median_ms=400.0), group(5000, seed=2)).is_proven


def test_a_time_against_a_limit() -> None:
    slow, fast = group(500, median_ms=400.0), group(5000, seed=2)
    assert judged("p99_latency > 800ms", slow, fast).is_proven
    assert not judged("p99_latency > 800ms", fast, fast).is_suspected
    shared = judged("p99_latency > 300ms", fast, fast)
    assert (shared.is_shared, shared.is_suspected, shared.is_proven) == (True, True, False)
    assert judged("p99_latency > 300ms", group(500, median_ms=2000.0), fast).is_proven


@pytest.mark.parametrize(
    ("text", "proven"),
    [
        ("p50_latency < 0.5x", True),
        ("p50_latency < 60ms", True),
        ("p50_latency < 10ms", False),
        ("error_rate < 1%", True),
    ],
)
def test_condition_may_be_a_lower_limit(text: str, proven: bool) -> None:
    """Example: an answer that is suspiciously fast."""
    control = group(5000, seed=2, error_ratio=0.05)
    assert judged(text, group(3000, median_ms=40.0), control).is_proven == proven


def test_too_few_values_are_missing_and_never_proof_of_health() -> None:
    assert judged("p99_latency > 2x", group(19), group(5000)).missing == "19 of 20 measured requests of the new version"
    assert "of the old version" in judged("p99_latency > 2x", group(100), group(0)).missing
    assert judged("p99_latency > 9s", group(100), group(0)).missing == ""
    assert judged("error_rate > 2x", counts(100, 50), counts(0, 0)).is_proven is False


def test_a_control_too_small_for_a_bound_proves_nothing() -> None:
    finding = judged("p99_latency > 2x", group(300, median_ms=2000.0), group(300, seed=2))
    assert finding.is_suspected
    assert not finding.is_proven


def test_a_single_error_where_none_is_allowed_is_proof() -> None:
    assert judged("error_rate > 0%", counts(50, 1), counts(50, 0)).is_proven
    assert not judged("error_rate > 0%", counts(50, 0), counts(50, 0)).is_proven


def test_reported_weights_are_the_ones_used() -> None:
    finding = judged("error_rate > 2%", counts(200, 20), counts(2000, 0))
    assert exp(finding.log_weight) == pytest.approx(2.4e6, rel=0.01)
    assert exp(finding.log_needed) == pytest.approx(1200)
    assert (finding.candidate, finding.control, finding.limit) == (0.1, 0.0, 0.02)


@pytest.mark.parametrize("count", range(1, 60))
def test_equal_groups_prove_nothing_however_few_they_are(count: int) -> None:
    """A stage starts with the requests that end first: fast failures. Both groups show them and exceed the limits."""
    failing = counts(count, count)
    assert not judged("error_rate > 2%", failing, failing).is_proven
    slow = GroupStats(count)
    for _ in range(count):
        slow.ttft_ms.add(1000.0)
    assert not judged("p99_ttft > 800ms", slow, slow).is_proven


@pytest.mark.parametrize("count", range(1, 20))
def test_limit_applies_without_a_control_once_there_are_enough_values(count: int) -> None:
    slow, more = GroupStats(count), GroupStats(20)
    for group_ in [slow] * count + [more] * 20:
        group_.ttft_ms.add(1000.0)
    assert not judged("error_rate > 2%", counts(count, count), counts(0, 0)).is_proven
    assert not judged("p99_ttft > 800ms", slow, GroupStats()).is_proven
    assert judged("error_rate > 2%", counts(20, 10), counts(0, 0)).is_proven
    assert judged("p99_ttft > 800ms", more, GroupStats()).is_proven


def test_one_long_stream_with_stalls_proves_nothing() -> None:
    """Gaps within one request are not independent trials: 20,000 of one request would have halted a version."""
    candidate, control = group(30, seed=5), group(5000, seed=2)
    candidate.add_gaps([(bucket_of(10.0), 18_000), (bucket_of(5000.0), 2_000)])
    finding = judged("p99_inter_token > 100ms", candidate, control)
    assert not finding.is_proven


def test_streams_that_all_stall_now_and_then_are_proven() -> None:
    """Mean gaps of 2 to 12 ms hid the stalls: five gaps of 1 s in each hundred."""
    candidate = GroupStats(300)
    for _ in range(300):
        candidate.add_gaps([(bucket_of(2.0), 95), (bucket_of(1000.0), 5)])
    finding = judged("p99_inter_token > 80ms", candidate, group(5000, seed=2))
    assert finding.is_proven and finding.candidate == pytest.approx(1000, rel=0.01)


@pytest.mark.parametrize("trials", [50, 500])
def test_fractional_events_prove_no_more_than_whole_ones(trials: int) -> None:
    rng, halted, runs = random.Random(7), 0, 400
    for _ in range(runs):
        shares = 0.0
        for number in range(1, trials + 1):
            shares += rng.choice([0.0, 0.0, 0.0, 0.04])  # a mean of 1 %, as allowed
            halted += log_weight(shares, number, 0.01) >= log(1 / 0.05)
    assert halted == 0
