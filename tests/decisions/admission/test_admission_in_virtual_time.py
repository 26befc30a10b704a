"""Admission queue before simulated engines, in virtual time, seen by its clients."""

from random import Random

import pytest

from functions.api.snapshot import AdmissionEntry, BandEntry
from loadtests.fairness.traffic import NOISY, QUIET, beside_the_nine, chats
from loadtests.fairness.virtual import Shape, VirtualFleet, VirtualRequest
from tests.soak import sampled

POLICY = AdmissionEntry("p", ("*",), (BandEntry("interactive", 0.9, ttft_slo_ms=500), BandEntry("batch", 0.1)))
SECONDS = 15.0


def p99_s(found: list[VirtualRequest]) -> float:
    times = sorted(each.ttft_s for each in found if each.tenant in QUIET and each.ttft_s is not None)
    return times[int(0.99 * len(times))]


def test_flood_of_long_prompts_hardly_delays_chats() -> None:
    shape = Shape(replicas=4)
    alone = VirtualFleet(shape, POLICY).run(beside_the_nine(30, 0, 0, SECONDS, 7), SECONDS)
    beside = VirtualFleet(shape, POLICY).run(beside_the_nine(30, 4.6, 0, SECONDS, 7), SECONDS)
    without = VirtualFleet(shape, None).run(beside_the_nine(30, 4.6, 0, SECONDS, 7), SECONDS)
    assert p99_s(beside) < 2 * p99_s(alone)
    assert p99_s(without) > 10 * p99_s(alone)
    assert any(each.tenant == NOISY and each.ttft_s is not None for each in beside), "it is served, in its part"


@pytest.mark.soak
def test_long_prompts_borrow_no_second_replica_under_load() -> None:
    """Above half load, two long prompts at a time would take a quarter of the pool."""
    policy = AdmissionEntry("p", ("*",), (BandEntry("interactive", 0.6, ttft_slo_ms=500), BandEntry("batch", 0.1)))
    alone = VirtualFleet(Shape(), policy).run(beside_the_nine(160, 0, 5, SECONDS, 1), SECONDS)
    beside = VirtualFleet(Shape(), policy).run(beside_the_nine(160, 9.3, 5, SECONDS, 1), SECONDS)
    assert p99_s(beside) < 1.3 * p99_s(alone)
    assert sum(each.tenant == NOISY and each.ttft_s is not None for each in beside) >= 5, "it has its share"


@pytest.mark.parametrize("times", sampled([2, 5], keep=[2]))
def test_overload_refuses_at_once_with_an_accurate_retry_time(times: int) -> None:
    seconds, per_s = 40.0, 60.0 * times
    asked = [
        each
        for number in range(10)
        for each in chats(f"t{number}", per_s / 10, seconds, Random(f"{number} {times}"), tries=1)
    ]
    found = VirtualFleet(Shape(replicas=2), POLICY).run(sorted(asked, key=lambda each: each.at_s), seconds)
    counted = [each for each in found if each.at_s > 10.0]
    refused_s = sorted(each.ended_s - each.at_s for each in counted if each.refused and each.ended_s is not None)
    first_s = sorted(each.ttft_s for each in counted if each.ttft_s is not None)
    back = [each.refused is None for each in counted if each.returned_from is not None]
    assert refused_s[int(0.98 * len(refused_s))] == 0.0
    assert first_s[int(0.99 * len(first_s))] < 0.5
    assert len(back) > 100 and sum(back) > 0.7 * len(back)


@pytest.mark.parametrize("times", sampled([2, 10], keep=[2]))
def test_overload_keeps_goodput_near_its_best(times: int) -> None:
    def goodput(per_s: float) -> int:
        asked = [each for tenant in "abcde" for each in chats(tenant, per_s / 5, SECONDS, Random(f"{tenant} {per_s}"))]
        fleet = VirtualFleet(Shape(replicas=1), POLICY)
        found = fleet.run(sorted(asked, key=lambda each: each.at_s), SECONDS)
        return sum(
            each.output_tokens
            for each in found
            if each.at_s > 5
            and each.refused is None
            and each.ended_s
            and each.ttft_s is not None
            and each.ttft_s <= 0.6
        )

    assert goodput(30.0 * times) > 0.8 * goodput(30.0)
