"""Outliers: replicas far worse than their pool, if there are enough to compare, and never many at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.api.ids import ReplicaId
from functions.decisions.health.ejection import HOSTS_MIN, REQUESTS_MIN, RequestCounts, outliers


def seen(name: str, requests: int = 100, failures: int = 0, ms_per_token: float = 1.0) -> RequestCounts:
    return RequestCounts(ReplicaId(name), requests, failures, requests, requests * ms_per_token)


GOOD = [seen(f"good-{n}") for n in range(5)]


def test_worked_example_from_the_prologue() -> None:
    assert outliers([*GOOD, seen("odd", failures=20)], 6, 0) == ["odd"]
    assert outliers([*GOOD, seen("odd", failures=10)], 6, 0) == []


def test_several_outliers_are_found_if_most_replicas_are_healthy() -> None:
    bad = [seen("bad-a", failures=80), seen("bad-b", failures=80)]
    assert outliers([*GOOD, seen("good-5"), *bad], 20, 0) == ["bad-a", "bad-b"]
    ill = [seen(f"ill-{n}", failures=30) for n in range(5)]
    assert outliers([*ill, seen("iller", failures=60)], 20, 0) == ["iller"], "by its deviation alone"


def test_slow_replica_is_found_by_its_time_per_token() -> None:
    assert outliers([*GOOD, seen("slow", ms_per_token=10.0)], 6, 0) == ["slow"]
    assert outliers([*GOOD, seen("slower", ms_per_token=3.0)], 6, 0) == []


def test_long_prompts_do_not_make_a_replica_slow() -> None:
    long = RequestCounts(ReplicaId("long"))
    short = [RequestCounts(ReplicaId(f"short-{n}")) for n in range(5)]
    for _ in range(REQUESTS_MIN):
        long.first_token(3200.0, 32_000)
        long.requests += 1
        for each in short:
            each.first_token(40.0, 100)
            each.requests += 1
    assert outliers([long, *short], 6, 0) == []


@pytest.mark.parametrize("few", [{"hosts": HOSTS_MIN - 2}, {"requests": REQUESTS_MIN - 1}])
def test_small_samples_yield_no_outliers(few: dict[str, int]) -> None:
    fellows = GOOD[: few.get("hosts", 5)]
    assert outliers([*fellows, seen("odd", few.get("requests", 100), 19, 50.0)], 6, 0) == []


def test_at_most_a_tenth_of_the_pool_or_one_is_ejected() -> None:
    odd = [seen("odd-a", failures=90), seen("odd-b", failures=95)]
    fellows = [seen(f"good-{n}") for n in range(20)]
    assert outliers([*fellows, *odd], 22, 0) == ["odd-b", "odd-a"], "the worst first"
    assert outliers([*fellows, *odd], 10, 0) == ["odd-b"]
    assert outliers([*fellows, *odd], 10, 1) == []


counts = st.lists(st.tuples(st.integers(0, 200), st.floats(0.0, 1.0), st.floats(0.01, 100.0)), max_size=40)


@given(counts, st.integers(0, 5))
def test_outliers_never_exceed_the_cap(pool: list[tuple[int, float, float]], out_already: int) -> None:
    found = outliers(
        [seen(f"r{n}", requests, int(requests * ratio), pace) for n, (requests, ratio, pace) in enumerate(pool)],
        len(pool),
        out_already,
    )
    assert len(found) <= max(0, max(1, len(pool) // 10) - out_already)
    assert len(set(found)) == len(found)
