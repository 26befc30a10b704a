"""`python -m studies spike`: a model receives five times the requests within 30 s, and a start takes five minutes.

The table has a row for each arm, with the median over the seeds and the range of the slowest first tokens; `-o json`
has all ranges. `--plot` draws the first seed: replicas, waiting requests, first tokens, rejected and degraded shares.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import orjson
from rich.table import Table

from functions.cli.charts import ChartMark, Panel, PictureImpossible, Series, check, lines
from functions.cli.refused import CommandRefused
from functions.cli.terminal import TerminalReporter, make_console, make_error_console
from studies.spike.arms import ARMS, TITLES, ArmName
from studies.spike.figures import ArmFigures, Range, figures_of, over_seeds
from studies.spike.spike import SLO_MS, SpikeRun, SpikeSetting, run


def spike(
    *, arms: Sequence[str], seeds: int, factor: float, start_s: float, lasts_s: float, plot: Path | None, as_json: bool
) -> None:
    wanted = _known(arms)
    _check(plot)
    setting = SpikeSetting(factor=factor, start_s=start_s, lasts_s=lasts_s)
    reporter = TerminalReporter(make_error_console())
    found, first = [], []
    with reporter.step("Simulating") as step:
        for arm in wanted:
            runs = []
            for seed in range(seeds):
                step.update(f"{TITLES[arm]}, seed {seed + 1} of {seeds}")
                one = run(setting, arm, seed)
                runs.append(figures_of(one, setting))
                if seed == 0:
                    first.append(one)
            found.append(over_seeds(arm, runs))
        step.note(f"{len(wanted) * seeds} runs")
    if plot is not None:
        draw(plot, setting, first)
    if as_json:
        sys.stdout.write(orjson.dumps([asdict(each) for each in found], option=orjson.OPT_INDENT_2).decode() + "\n")
        return
    console = make_console()
    console.print(
        f"{setting.base_per_s:.0f} requests/s, {factor:g} times as many within {setting.rise_s:.0f} s; a started "
        f"replica serves {start_s:.0f} s later; {seeds} seeds"
    )
    console.print(table(found))


def table(found: Sequence[ArmFigures]) -> Table:
    shown = Table("", "p99 TTFT ms", "range", "in time", "refused", "degraded", "batch refused", "recovered after",
                  "acc. hours", box=None, pad_edge=False)  # fmt: skip
    for column in shown.columns[1:]:
        column.justify = "right"
    for arm in found:
        p99, recovered = arm.figures["interactive_p99_ms"], arm.figures["recovery_s"]
        shown.add_row(
            TITLES[arm.arm],
            _number(p99.median),
            f"{_number(p99.least)}-{_number(p99.most)}" if arm.seeds > 1 else "",
            *(_percent(arm.figures[name]) for name in ("in_time_ratio", "shed_ratio", "degraded_ratio")),
            _percent(arm.figures["batch_shed_ratio"]),
            "not" if recovered.median is None else f"{recovered.median:.0f} s",
            f"{arm.figures['accelerator_hours'].median:.2f}",
        )
    return shown


def draw(path: Path, spike: SpikeSetting, runs: Sequence[SpikeRun]) -> None:
    """Draw a column for each arm."""
    panels: list[Panel] = []
    marks = (ChartMark(spike.at_s, f"{spike.factor:g}x"), ChartMark(spike.at_s + spike.start_s, "first start"))
    for one in runs:
        line = one.recorder.timeline
        replicas = [
            Series(name, line.at_s, getattr(line, name), is_step=True) for name in ("ready", "starting", "warm")
        ]
        panels.append(Panel(TITLES[one.arm], "replicas", replicas, marks))
    for one in runs:
        line = one.recorder.timeline
        panels.append(Panel("requests without a first token", "requests", [Series("waiting", line.at_s, line.waiting)]))
    for one in runs:
        line, slo = one.recorder.timeline, ChartMark(SLO_MS, "promised", is_level=True)
        p99 = Series("interactive p99", line.at_s, line.p99_ms)
        panels.append(Panel("time to first token", "ms", [p99], (slo,), is_log=True))
    for one in runs:
        line = one.recorder.timeline
        shares = (
            Series("refused", line.at_s, _smooth(line.shed_ratio)),
            Series("degraded", line.at_s, _smooth(line.degraded_ratio)),
            Series("batch refused", line.at_s, _smooth(line.batch_shed_ratio), style="dotted"),
        )
        panels.append(Panel("share of requests", "share", shares, y_max=1.0))
    note = f"studies spike --plot: {len(runs)} arms, the same requests, the same accelerators at the beginning"
    lines(path, f"{spike.factor:g} times as many requests within {spike.rise_s:.0f} s", panels,
          columns=len(runs), note=note)  # fmt: skip


def _smooth(ratios: Sequence[float | None]) -> list[float | None]:
    """Return the means of the last five samples."""
    smooth: list[float | None] = []
    for index in range(len(ratios)):
        known = [ratio for ratio in ratios[max(0, index - 4) : index + 1] if ratio is not None]
        smooth.append(sum(known) / len(known) if known else None)
    return smooth


def _known(names: Sequence[str]) -> list[ArmName]:
    known: dict[str, ArmName] = {arm: arm for arm in ARMS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise CommandRefused(f"there is no {unknown[0]!r} to compare: one of {', '.join(ARMS)}")
    return [known[name] for name in names or ARMS]


def _check(plot: Path | None) -> None:
    if plot is None:
        return
    try:
        check(plot)
    except PictureImpossible as error:
        raise CommandRefused(str(error)) from error


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _percent(found: Range) -> str:
    return "-" if found.median is None else f"{found.median:.1%}"
