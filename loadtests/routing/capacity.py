"""Capacity of the engines with least-loaded routing, measured in virtual time.

    capacity = maximum of the requests a second with a first token within SLO_MS, over loads from too low to too high
    80 %     = 0.8 x capacity, offered to every router

The first WARMUP_S do not count, because caches and adapters are cold. The replay with processes uses the same engine
timing, so it has the same capacity if the machine keeps up.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from loadtests.routing.live import Sample
from loadtests.routing.trace import TraceRequest
from loadtests.routing.virtual import Replay, Shape

SECONDS, WARMUP_S = 90.0, 30.0
SLO_MS = 5_000.0


@dataclass(frozen=True, slots=True)
class Point:
    offered_per_s: float
    served_per_s: float
    good_per_s: float  # served with the first token within SLO_MS


def sweep(
    trace: Callable[[float, float], Sequence[TraceRequest]], rates_per_s: Sequence[float], shape: Shape
) -> list[Point]:
    """Return a point for each rate. `trace(rate, seconds)` returns the requests of so many seconds at that rate."""
    return list(_points(trace, rates_per_s, shape))


def capacity_per_s(points: Sequence[Point]) -> float:
    return max(point.good_per_s for point in points)


def table(points: Sequence[Point]) -> str:
    lines = [f"{'offered/s':>10} {'served/s':>10} {'in 5 s':>10}"]
    lines += [f"{each.offered_per_s:10.1f} {each.served_per_s:10.1f} {each.good_per_s:10.1f}" for each in points]
    return "\n".join(lines) + "\n"


def _points(
    trace: Callable[[float, float], Sequence[TraceRequest]], rates_per_s: Sequence[float], shape: Shape
) -> Iterator[Point]:
    for rate in rates_per_s:
        asked = trace(rate, SECONDS)
        samples = Replay("least-loaded", shape).run(asked, 1.0)
        yield point(asked, samples)


def point(asked: Sequence[TraceRequest], samples: Sequence[Sample]) -> Point:
    """Return the offered and served rates of one run, between the warm-up and the end of the arrivals."""
    window_s = SECONDS - WARMUP_S
    served = [each for each in samples if WARMUP_S <= each.at_s + each.ttft_ms / 1000 < SECONDS]
    good = [each for each in served if each.ttft_ms <= SLO_MS]
    offered = sum(WARMUP_S <= each.at_s < SECONDS for each in asked)
    return Point(offered / window_s, len(served) / window_s, len(good) / window_s)
