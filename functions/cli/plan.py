"""`shoal plan`: show how a change of configuration would affect first tokens, rejections and cost, before it is pushed.

The simulator runs both configurations over the same windows of requests. Each figure is reported before and after, with
the interval of the difference. Exit status 1 if the change breaks a promise, or breaks one further, so that a hook can
refuse the push; 0 otherwise. Progress goes to standard error.
`plan_sources` reads the two sides, `functions.simulator.plan` simulates them, `plan_tables` prints.
"""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten

import orjson
import typer

from functions.api.ids import PoolName
from functions.cli import plan_tables
from functions.cli.charts import ChartMark, Panel, PictureImpossible, Series, check, lines
from functions.cli.cluster.access import ClusterChoice
from functions.cli.context import CliContext, current_context
from functions.cli.plan_sources import Configuration, base_of, candidate_of
from functions.cli.plan_tables import PlanReport, as_json
from functions.cli.refused import CommandRefused
from functions.cli.terminal import TerminalReporter, make_console, make_error_console
from functions.controller.gitops.changes import changes_of
from functions.simulator.fleet.start_times import StartSource
from functions.simulator.plan import traffic as traffics
from functions.simulator.plan.declarations import engine_changes
from functions.simulator.plan.experiment import Played, Variant, play
from functions.simulator.plan.measure import Point
from functions.simulator.plan.notes import notes_of
from functions.simulator.plan.pace import MAX_LOAD, Load
from functions.simulator.plan.planned_fleet import PlannedFleet, PlannedPool, fleet_of
from functions.simulator.plan.profiles import PROFILE_ANNOTATION, EngineImpossible
from functions.simulator.plan.traffic import PlanTraffic
from functions.simulator.plan.unsimulated import unsimulated
from functions.simulator.workload.captured import files
from functions.simulator.workload.traces import TraceUnreadable

# `shoal plan --plot`: queue, first tokens and replicas in the first window on both sides, one column a pool.


_MOST_POOLS = 3  # columns
_NOTE_CHARS = 110
_DRAWN_RATIO = 1.05  # part of a window that is drawn: afterwards only running requests finish


def draw(path: Path, report: PlanReport, played: Played, traffic: PlanTraffic) -> None:
    asked = dict.fromkeys(PoolName(key.pool) for key in report.compared if key.band)
    names = list(asked)[:_MOST_POOLS]
    if not names:
        raise CommandRefused("no pool received a request: there is nothing to draw")
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
        raise CommandRefused(f"the picture cannot be written: {error}") from error


def _both(
    name: PoolName,
    played: Played,
    last_s: float,
    value: Callable[[Point], float | None],
    *,
    is_step: bool = False,
) -> list[Series]:
    def points(variant: Variant) -> list[Point]:
        return [point for point in variant.timeline.points.get(name, []) if point.at_s <= last_s]

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


def _promised(name: PoolName, played: Played) -> list[ChartMark]:
    pool = played.after.fleet.pool(name) or played.before.fleet.pool(name)
    slo_ms = pool.promised_ms("interactive") if pool is not None else None
    return [ChartMark(slo_ms, "promised", is_level=True)] if slo_ms is not None else []


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    base: str | None
    revision: str | None
    trace: Path | None
    pools: Sequence[str]
    loads: Sequence[str]  # `0.7`, or `POOL=0.7`
    seeds: int
    requests: int
    start: StartSource
    plot: Path | None
    cluster: ClusterChoice | None  # cluster whose fleet is the base; None: the local fleet
    as_json: bool


def plan(path: Path | None, wanted: PlanRequest) -> None:
    root = (path if path is not None else Path.cwd()).resolve()
    context = current_context(clones=True)
    if wanted.plot is not None:
        _checked(wanted.plot)
    candidate = candidate_of(root, wanted.revision, context, as_json=wanted.as_json)
    base = base_of(root, wanted.base, context, wanted.cluster)
    try:
        before, after = (fleet_of(each.snapshot, each.pools) for each in (base, candidate))
        traffic = replace(_traffic(before, after, context, wanted), start=wanted.start)
        played = _played(before, after, traffic)
    except (EngineImpossible, TraceUnreadable, OSError) as error:
        raise CommandRefused(f"nothing can be simulated: {error}") from error
    report = _report(base, candidate, traffic, played, wanted)
    if wanted.plot is not None:
        draw(wanted.plot, report, played, traffic)
    if wanted.as_json:
        sys.stdout.write(orjson.dumps(as_json(report), option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        plan_tables.show(report, make_console())
    if report.refuses:
        raise typer.Exit(1)


def _checked(plot: Path) -> None:
    try:
        check(plot)
    except PictureImpossible as error:
        raise CommandRefused(str(error)) from error


def _played(before: PlannedFleet, after: PlannedFleet, traffic: PlanTraffic) -> Played:
    with TerminalReporter(make_error_console()).step("Simulating") as step:
        played = play(before, after, traffic, step.update)
        step.note(f"{traffic.windows} windows of {traffic.seconds:,.0f} s, both sides")
        return played


def _traffic(before: PlannedFleet, after: PlannedFleet, context: CliContext, wanted: PlanRequest) -> PlanTraffic:
    """Return the traffic of the named trace, else of the local fleet's own traces, else synthetic traffic."""
    pools, tenants = _pools_asked(before, after, wanted.pools), tuple(before.tenants)
    load = _load(wanted.loads, before)
    traces, models = context.layout.traces_dir, traffics.models_by_pool(before, after)
    if wanted.trace is not None:
        if wanted.trace.is_dir() and files(wanted.trace):
            return traffics.recorded(wanted.trace, wanted.seeds, wanted.requests, models)
        return traffics.foreign(
            wanted.trace, _require_requested_pools(pools), tenants, load, windows=wanted.seeds, requests=wanted.requests
        )
    if wanted.cluster is None and traces.is_dir() and files(traces):
        return traffics.recorded(traces, wanted.seeds, wanted.requests, models)
    return traffics.made_up(
        _require_requested_pools(pools), tenants, load, windows=wanted.seeds, requests=wanted.requests
    )


def _require_requested_pools(pools: list[PlannedPool]) -> list[PlannedPool]:
    if not any(pool.is_asked for pool in pools):
        names = ", ".join(pool.name for pool in pools)
        raise CommandRefused(
            f"no request starts in {names}: it has no replica, or no tenant starts there; choose others with --pool"
        )
    return pools


def _pools_asked(before: PlannedFleet, after: PlannedFleet, named: Sequence[str]) -> list[PlannedPool]:
    """Return the named pools, else the pools of changed models and of their fallbacks, else all pools."""
    known = {pool.name: pool for pool in before.answering}
    missing = [name for name in named if name not in known]
    if missing:
        raise CommandRefused(f"the base has no pool {missing[0]!r} that answers with text; pools: {', '.join(known)}")
    if not known:
        raise CommandRefused("the base has no pool that answers with text: there is nothing to simulate")
    if named:
        return [pool for pool in known.values() if pool.name in named]
    touched = {pool.model for pool in before.generating if after.pool(pool.name) != pool}
    touched |= {pool.model for pool in after.generating if before.pool(pool.name) != pool}
    pools = [pool for fleet in (before, after) for pool in fleet.answering if pool.model in touched]
    touched |= {step.target_pool for pool in pools for step in pool.routing.fallback if step.source_pool == pool.name}
    return [pool for pool in known.values() if pool.model in touched] or list(known.values())


def _load(texts: Sequence[str], before: PlannedFleet) -> Load:
    """Parse loads: `0.7` applies to all pools, `POOL=0.7` to one. Fail for a pool that the base lacks or a share out of
    range."""
    load = Load()
    for text in texts:
        name, equals, amount = text.rpartition("=")
        if not re.fullmatch(r"\d{1,2}(?:\.\d{1,4})?", amount) or not 0.01 <= float(amount) <= MAX_LOAD:
            raise CommandRefused(
                f"{text!r} is not a load: use a share such as 0.7 (0.01 to {MAX_LOAD:.0f}), or POOL=0.7"
            )
        if equals and before.pool(name) is None:
            raise CommandRefused(f"--load names {name!r}, which is not a pool of the base")
        load = load.of(name, float(amount)) if equals else load.for_others(float(amount))
    return load


def _report(
    base: Configuration, candidate: Configuration, traffic: PlanTraffic, played: Played, wanted: PlanRequest
) -> PlanReport:
    return PlanReport(
        base=base.words,
        candidate=candidate.words,
        changes=changes_of(base.loaded, candidate.loaded),
        engine_changes=tuple(engine_changes(base.pools, candidate.pools)),
        unsimulated=unsimulated(base.snapshot, candidate.snapshot, base.pools, candidate.pools),
        traffic=traffic.words,
        traffic_is_made_up=traffic.kind == "made up",
        played=(
            f"{played.requests:,} requests on each side, in {traffic.windows} windows of {traffic.seconds:,.0f} s; "
            "both sides the same"
        ),
        engines=tuple(_engines(played)),
        notes=tuple(notes_of(played, traffic, wanted.seeds)),
        models=traffics.models_by_pool(played.before.fleet, played.after.fleet),
        compared=played.compared,
        promises=played.promises,
        verdict=played.verdict,
    )


def _engines(played: Played) -> list[str]:
    """Return the simulated engine of each pool with requests, and how to choose another one if it was assumed."""
    found = []
    for pool in played.after.fleet.generating:
        former = played.before.fleet.pool(pool.name)
        if any(key.pool == pool.name for key in played.compared) or former is None:
            how = f"; {PROFILE_ANNOTATION} names another" if pool.engine.is_assumed else ""
            found.append(f"{pool.name}: {pool.engine.words}{how}")
    return found
