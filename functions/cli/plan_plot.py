"""`shoal plan --plot`: queue, first tokens and replicas over the first window, both sides, one column a pool."""

from collections.abc import Callable
from pathlib import Path
from textwrap import shorten

from functions.api.ids import PoolName
from functions.cli.charts import Mark, Panel, Series, lines
from functions.cli.plan_report import Report
from functions.cli.refused import Refused
from functions.simulator.plan.experiment import Played, Side
from functions.simulator.plan.measure import Point
from functions.simulator.plan.traffic import PlanTraffic

_MOST_POOLS = 3  # columns
_NOTE_CHARS = 110
_DRAWN_RATIO = 1.05  # of a window: after it only what is under way is waited for


def draw(path: Path, report: Report, played: Played, traffic: PlanTraffic) -> None:
    asked = dict.fromkeys(PoolName(key.pool) for key in report.compared if key.band)
    names = list(asked)[:_MOST_POOLS]
    if not names:
        raise Refused("nothing was asked of any pool: there is nothing to draw")
    last_s = _DRAWN_RATIO * traffic.seconds
    panels = [
        *(Panel(f"{name}: wait at the gateway", "seconds", _both(name, played, last_s, _queue_s)) for name in names),
        *(
            Panel("first tokens, p99 of 10 s", "ms", _both(name, played, last_s, _ttft_ms), _promised(name, played))
            for name in names
        ),
        *(Panel("ready replicas", "replicas", _both(name, played, last_s, _ready, is_step=True)) for name in names),
    ]
    note = shorten(traffic.words, _NOTE_CHARS, placeholder=" …")
    try:
        lines(path, f"{report.candidate} against {report.base}", panels, columns=len(names), note=note)
    except OSError as error:
        raise Refused(f"the picture cannot be written: {error}") from error


def _both(
    name: PoolName,
    played: Played,
    last_s: float,
    value: Callable[[Point], float | None],
    *,
    is_step: bool = False,
) -> list[Series]:
    def points(side: Side) -> list[Point]:
        return [point for point in side.timeline.points.get(name, []) if point.at_s <= last_s]

    before, after = points(played.before), points(played.after)
    return [
        Series("after", [point.at_s for point in after], [value(point) for point in after], is_step=is_step),
        Series("before", [point.at_s for point in before], [value(point) for point in before], "dashed", is_step),
    ]


def _queue_s(point: Point) -> float | None:
    return point.queue_s


def _ttft_ms(point: Point) -> float | None:
    return point.ttft_p99_ms


def _ready(point: Point) -> float | None:
    return float(point.ready)


def _promised(name: PoolName, played: Played) -> list[Mark]:
    pool = played.after.world.pool(name) or played.before.world.pool(name)
    slo_ms = pool.promised_ms("interactive") if pool is not None else None
    return [Mark(slo_ms, "promised", is_level=True)] if slo_ms is not None else []
