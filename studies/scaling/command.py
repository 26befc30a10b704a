"""`python -m studies {scaling,scaling-fleet,forecast}`: recorded days under autoscalers, and forecast backtests.

The table has a line for each autoscaler: share served in time, cost, and cost as a multiple of the oracle's.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from rich.table import Table

from functions.api.expressions import ExpressionInvalid, parse_scale_rule
from functions.cli import charts
from functions.cli.refused import CommandRefused
from functions.cli.terminal import TerminalReporter, make_console, make_error_console
from functions.decisions.autoscaling.policy import ScalePolicy
from functions.simulator.fleet.engine_profile import PROFILES
from functions.simulator.workload.trace_text import TraceUnreadable
from studies.scaling.backtest import Backtest, backtest, servegen_minutes, trace_minutes
from studies.scaling.day import Comparison, Known, Traffic, known
from studies.scaling.day_outcome import DayOutcome
from studies.scaling.fleet_minutes import fleet_minutes
from studies.scaling.fluid_pool import PERIOD_S, Basin
from studies.scaling.scaler import ScalerName

SCALERS: tuple[ScalerName, ...] = ("oracle", "shoal", "reactive", "rules", "static", "hpa", "kpa")
UP = ("p99_ttft > 1.2 * slo for 60s: +10%", "queue_seconds > 0.5: +5%", "kv_usage > 85% for 3m: +5%")
DOWN = ("utilization < 78% for 2m: -1",)
_DRAWN: tuple[ScalerName, ...] = ("oracle", "shoal", "hpa", "static")
_SERVEGEN = ("language_m-large", "language_m-small")


def scaling(
    *,
    traces_dir: Path,
    traffic_pool: str,
    day: int,
    hours: int,
    lessons: int,
    share: float,
    startup_s: int,
    slack_s: float,
    profile: str,
    scale_down: Sequence[str],
    scalers: Sequence[str],
    plot: Path | None,
    as_json: bool,
) -> None:
    wanted = _known_scalers(scalers)
    if profile not in PROFILES:
        raise CommandRefused(f"there is no profile {profile!r}: one of {', '.join(PROFILES)}")
    policy = _policy(scale_down or DOWN, slack_s, startup_s)
    _check_picture(plot)
    traffic = Traffic(
        directory=traces_dir / "servegen",
        pool=traffic_pool,
        day=day,
        lessons_days=lessons,
        share_ratio=share,
        seconds=hours * 3600,
    )
    reporter = TerminalReporter(make_error_console())
    try:
        with reporter.step("Simulating a day") as step:
            given = known(traffic, PROFILES[profile], step.update)
            basin = Basin(startup_s=startup_s, slack_s=slack_s)
            comparison = Comparison(basin=basin, policy=policy, known=given)
            found = dict(comparison.run(wanted, step.update))
            step.note(f"{given.load.requests.sum():,.0f} requests")
    except (TraceUnreadable, OSError) as error:
        raise CommandRefused(f"the recording cannot be read: {error}") from error
    title = f"{traffic_pool}, day {day}: {given.load.requests.sum():,.0f} requests, starts take {startup_s} s"
    if plot is not None:
        _draw(plot, title, found)
    if as_json:
        shown = {"traffic": traffic_pool, "day": day, "profile": profile, "startup_s": startup_s}
        runs = {name: outcome.figures() for name, outcome in found.items()}
        sys.stdout.write(orjson.dumps({**shown, "scalers": runs}, option=orjson.OPT_INDENT_2).decode() + "\n")
        return
    console = make_console()
    console.print(title)
    console.print(_table(found, given))


def fleet_scaling(
    *,
    traces_dir: Path,
    traffic_pool: str,
    day: int,
    from_minute: int,
    minutes: int,
    share: float,
    startup_s: int,
    slo_s: float,
    profile: str,
    as_json: bool,
) -> None:
    if profile not in PROFILES:
        raise CommandRefused(f"there is no profile {profile!r}: one of {', '.join(PROFILES)}")
    traffic = Traffic(
        directory=traces_dir / "servegen", pool=traffic_pool, day=day, lessons_days=0, share_ratio=share,
        seconds=minutes * 60,
    )  # fmt: skip
    reporter = TerminalReporter(make_error_console())
    try:
        with reporter.step("Simulating request by request"):
            outcome = fleet_minutes(traffic, from_minute * 60, PROFILES[profile], _policy(DOWN, slo_s, startup_s))
    except (TraceUnreadable, OSError) as error:
        raise CommandRefused(f"the recording cannot be read: {error}") from error
    shown = {"scaling": outcome.day.figures(), "replicas": outcome.day.replicas, "fleet": outcome.fleet}
    if as_json:
        sys.stdout.write(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode() + "\n")
        return
    table = Table("band", "asked", "in time", "refused", "TTFT p50 ms", "p99 ms", box=None, pad_edge=False)
    for band, figures in outcome.fleet["bands"].items():
        table.add_row(
            band, f"{figures['asked']:,}", f"{figures['goodput_ratio']:.2%}", f"{figures['shed_ratio']:.2%}",
            f"{figures['ttft_p50_ms']:,.0f}", f"{figures['ttft_p99_ms']:,.0f}",
        )  # fmt: skip
    console = make_console()
    sizes = outcome.day.replicas
    console.print(
        f"{min(sizes)} to {max(sizes)} replicas, {outcome.day.replica_hours:,.1f} replica hours, "
        f"utilization {outcome.day.utilization_ratio:.1%}"
    )
    console.print(table)


def forecast(*, traces_dir: Path, horizons_s: Sequence[int], days: int, as_json: bool) -> None:
    reporter = TerminalReporter(make_error_console())
    results: list[tuple[str, Backtest]] = []
    try:
        with reporter.step("Backtesting") as step:
            for name, minutes, skip in _series(traces_dir, days):
                for horizon_s in horizons_s:
                    step.update(f"{name}, {horizon_s} s ahead")
                    results.append((name, backtest(minutes, float(horizon_s), skip)))
            step.note(f"{len(results)} series and horizons")
    except (TraceUnreadable, OSError) as error:
        raise CommandRefused(f"a recording cannot be read: {error}") from error
    if as_json:
        shown = [{"series": name, **result.figures()} for name, result in results]
        sys.stdout.write(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode() + "\n")
        return
    make_console().print(_backtest_table(results))


def _series(traces_dir: Path, days: int) -> list[tuple[str, list[float], int]]:
    """Return name, requests a second for each minute, and the number of minutes that are only learnt from."""
    skipped = 1440 if days > 1 else 60
    found = [
        (f"{pool} {joint}", servegen_minutes(traces_dir / "servegen", pool, days, joint), skipped)
        for pool in _SERVEGEN
        for joint in ("steps", "lines")
    ]
    azure = traces_dir / "azure_2023" / "AzureLLMInferenceTrace_conv.csv"
    paths = [path for path in (azure, azure.with_name(azure.name + ".gz")) if path.is_file()]
    return [*found, *(("azure conv 2023", trace_minutes(path), 10) for path in paths[:1])]


def _known_scalers(names: Sequence[str]) -> list[ScalerName]:
    known_names: dict[str, ScalerName] = {name: name for name in SCALERS}
    unknown = [name for name in names if name not in known_names]
    if unknown:
        raise CommandRefused(f"there is no autoscaler {unknown[0]!r}: one of {', '.join(SCALERS)}")
    return [known_names[name] for name in names or SCALERS]


def _policy(scale_down: Sequence[str], slo_s: float, startup_s: int) -> ScalePolicy:
    try:
        return ScalePolicy(
            min_replicas=1,
            max_replicas=100_000,
            up=tuple(map(parse_scale_rule, UP)),
            down=tuple(map(parse_scale_rule, scale_down)),
            slo_s=slo_s,
            startup_s=float(startup_s),
        )
    except ExpressionInvalid as error:
        raise CommandRefused(f"--scale-down: {error}") from error


def _check_picture(plot: Path | None) -> None:
    if plot is None:
        return
    try:
        charts.check(plot)
    except charts.PictureImpossible as error:
        raise CommandRefused(str(error)) from error


def _table(found: Mapping[ScalerName, DayOutcome], given: Known) -> Table:
    table = Table(
        "autoscaler", "in time", "batch in time", "refused", "replica hours", "of oracle's", "utilization",
        "started", "turns", box=None, pad_edge=False,
    )  # fmt: skip
    for column in table.columns[1:]:
        column.justify = "right"
    oracle = found.get("oracle")
    for name, outcome in found.items():
        has_jobs = bool(given.load.later[0].any())
        table.add_row(
            name,
            f"{outcome.attainment_ratio:.3%}",
            f"{outcome.later_attainment_ratio:.3%}" if has_jobs else "-",
            f"{outcome.refused / outcome.asked:.2%}" if outcome.asked else "-",
            f"{outcome.replica_hours:,.0f}",
            f"{outcome.replica_s / oracle.replica_s:.3f}" if oracle is not None else "-",
            f"{outcome.utilization_ratio:.1%}",
            f"{outcome.grown:,}",
            f"{outcome.turns:,}",
        )
    return table


def _backtest_table(results: Sequence[tuple[str, Backtest]]) -> Table:
    methods = list(results[0][1].error_sums) if results else []
    table = Table("series", "ahead", *methods, "pinball", "above", "methods used", box=None, pad_edge=False)
    for column in table.columns[1:-1]:
        column.justify = "right"
    for name, result in results:
        gone_by = ", ".join(f"{method} {count / result.minutes:.0%}" for method, count in result.chosen.most_common(2))
        errors = [f"{result.wape(method):.1%}" for method in methods]
        shown: dict[str, Any] = result.figures()
        table.add_row(
            name, f"{result.horizon_s:.0f} s", *errors,
            f"{shown['pinball_ratio']:.2%}", f"{shown['above_upper_ratio']:.1%}", gone_by,
        )  # fmt: skip
    return table


def _draw(path: Path, title: str, found: Mapping[ScalerName, DayOutcome]) -> None:
    drawn = {name: found[name] for name in _DRAWN if name in found} or dict(found)
    first = next(iter(drawn.values()))
    hours = [index * PERIOD_S / 3600 for index in range(len(first.replicas))]
    replicas = [charts.Series(name, hours, outcome.replicas, is_step=True) for name, outcome in drawn.items()]
    demand = charts.Series("arriving work", hours, _smooth(first.demand), style="dotted")
    waits = [charts.Series(name, hours, _smooth(outcome.waits_s)) for name, outcome in drawn.items()]
    charts.lines(
        path,
        title,
        [
            charts.Panel("Replicas paid for", "replicas", [*replicas, demand]),
            charts.Panel("Longest wait of an interactive request in each 5 minutes", "seconds", waits),
        ],
        x_label="hours",
    )


def _smooth(values: Sequence[float], stretch: int = 300 // PERIOD_S) -> list[float | None]:
    """Return the maximum of each five minutes, held for that time."""
    return [max(values[index // stretch * stretch :][:stretch]) for index in range(len(values))]
