"""The replay in virtual time: reproducible figures, and shoal's router ahead where caches and lengths differ."""

import random
from typing import Any

import pytest

from loadtests.routing import capacity
from loadtests.routing.capacity import capacity_per_s, sweep
from loadtests.routing.picture import svg
from loadtests.routing.report import figures, quantile, table
from loadtests.routing.trace import ADAPTERS, TraceRequest, lora
from loadtests.routing.virtual import Replay, Shape
from studies.routers.live import LiveRouterName


def conversations(count: int = 300) -> list[TraceRequest]:
    """Return prompts of 1 to about 100 blocks. A conversation's next turn repeats all blocks of the turn before."""
    rng = random.Random(3)
    found, histories, at_s = list[TraceRequest](), list[tuple[int, ...]](), 0.0
    for number in range(count):
        at_s += rng.expovariate(5.0)
        past = histories.pop(rng.randrange(len(histories))) if len(histories) > 20 else ()
        turn = tuple(number * 100 + block for block in range(rng.choice((1, 2, 4, 8, 16, 40))))
        histories.append(past + turn if len(past) < 60 else turn)
        found.append(TraceRequest(at_s, past + turn, rng.randint(50, 400)))
    return found


def ran(router: LiveRouterName, asked: list[TraceRequest]) -> dict[str, Any]:
    return figures(Replay(router, Shape(replicas=4)).run(asked, 1.0), 10.0)


@pytest.mark.soak
def test_shoal_p90_ttft_is_below_cache_aware() -> None:
    found = {name: ran(name, conversations(600))["ttft_p90_ms"] for name in ("shoal", "cache-aware")}
    assert found["shoal"] < found["cache-aware"], found


@pytest.mark.soak
def test_shoal_has_fewest_cold_loads_with_more_adapters_than_places() -> None:
    asked = lora(60.0, 24.0)
    shoal, *others = [ran(name, asked) for name in ("shoal", "cache-aware", "least-loaded")]
    assert all(shoal["cold_ratio"] < other["cold_ratio"] for other in others), (shoal, others)
    assert all(shoal["ttft_p90_ms"] < 0.7 * other["ttft_p90_ms"] for other in others), (shoal, others)


def test_the_same_seed_gives_the_same_figures() -> None:
    assert ran("shoal", lora(20.0, 10.0)) == ran("shoal", lora(20.0, 10.0))


def test_capacity_is_most_requests_served_in_time_over_all_loads() -> None:
    def trace(rate_per_s: float, seconds: float) -> list[TraceRequest]:
        return [TraceRequest(number / rate_per_s, (number,), 16) for number in range(int(rate_per_s * seconds))]

    points = sweep(trace, (2.0, 40.0), Shape(replicas=1, prefill_us_per_token=100.0))
    assert [point.offered_per_s for point in points] == [2.0, 40.0]
    assert points[0].served_per_s == pytest.approx(2.0, rel=0.02)
    # one block of 512 tokens at 100 us is 51 ms: fewer than 20 a second
    assert 10.0 < points[1].served_per_s < 20.0 and points[1].good_per_s < points[1].served_per_s
    assert capacity_per_s(points) == max(point.good_per_s for point in points)
    assert len(capacity.table(points).splitlines()) == 3


def test_the_lora_mix_has_sessions_that_share_their_beginning() -> None:
    asked = lora(300.0, 12.0)
    assert asked == lora(300.0, 12.0) and asked == sorted(asked, key=lambda each: each.at_s)
    assert 9.0 < len(asked) / 300.0 < 15.0
    assert all(each.adapter is not None and each.adapter < ADAPTERS for each in asked)
    turns: dict[str | None, tuple[int, ...]] = {}
    for each in asked:
        assert each.blocks[: len(turns.get(each.session, ()))] == turns.get(each.session, ())
        turns[each.session] = each.blocks


def test_the_table_has_a_line_a_router() -> None:
    figure = figures(Replay("shoal", Shape(replicas=2)).run(conversations(20), 1.0), 0.0)
    assert (figure["requests"], figure["counted"], figure["failed"]) == (20, 20, 0)
    assert len(table({"shoal": figure, "round-robin": figure}).splitlines()) == 3
    picture = svg([("a < b", {"shoal": figure, "round-robin": figure})])
    assert [picture.count(each) for each in ("a &lt; b", "round-robin", "<svg", "</svg>")] == [1, 1, 1, 1]
    assert [quantile([1.0, 2.0, 3.0], q) for q in (0.0, 0.5, 0.99)] == [1.0, 2.0, 3.0] and quantile([], 0.5) == 0.0
