"""Output for a rollout: stages, both groups and halt conditions within 80 columns, or one line for logs."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from functions.cli.refused import CommandRefused
from functions.decisions.rollout.evidence import EncodedEvidence, TrialEvidence, group_of
from functions.decisions.rollout.lifecycle import Rollout
from functions.decisions.rollout.report import Figures, Row, figures_of

# A rollout as the registry returns it, with derived figures. Pure.


_FIELDS = frozenset(Rollout.__struct_fields__)
_NOTHING: dict[str, Any] = {"candidate": {}, "control": {}}


@dataclass(frozen=True, slots=True)
class Picture:
    rollout: Rollout
    figures: Figures
    heard_unix_s: float | None
    now_unix_s: float

    @property
    def in_stage_s(self) -> float:
        return max(0.0, self.now_unix_s - self.rollout.stage_began_unix_s)

    @property
    def heard_age_s(self) -> float | None:
        return None if self.heard_unix_s is None else max(0.0, self.now_unix_s - self.heard_unix_s)


def rollout_of(answer: Mapping[str, Any]) -> Rollout:
    """Return the rollout in an answer, which may have additional fields."""
    try:
        return msgspec.convert({name: value for name, value in answer.items() if name in _FIELDS}, Rollout)
    except msgspec.ValidationError as error:
        raise CommandRefused(f"the registry returned a rollout that this version cannot read: {error}") from error


def picture_of(answer: Mapping[str, Any], now_unix_s: float) -> Picture:
    """Return the rollout and its figures from the answer of GET /v1/rollouts/{id}."""
    rollout = rollout_of(answer)
    try:
        encoded = msgspec.convert(answer.get("evidence") or _NOTHING, EncodedEvidence, str_keys=True)
        evidence = TrialEvidence(group_of(encoded.candidate), group_of(encoded.control), encoded.heard_unix_s)
    except (msgspec.ValidationError, ValueError) as error:
        raise CommandRefused(f"the registry returned evidence that this version cannot read: {error}") from error
    return Picture(rollout, figures_of(rollout, evidence, now_unix_s), evidence.heard_unix_s, now_unix_s)


STATE_COLOURS = {
    "loading": "cyan",
    "running": "yellow",
    "paused": "magenta",
    "completed": "green",
    "rolled_back": "red",
    "superseded": "dim",
}
MOODS = {
    "good": ("green", "good"),
    "few": ("dim", "too few yet"),
    "suspected": ("yellow", "looks bad"),
    "proven": ("red", "halts"),
}
FACTOR_WORSE = 1.25  # factors from here on are coloured; this does not halt a rollout
BAR_COLUMNS = 40
STALE_S = 15.0  # gateways report every second; the same limit as for silent replicas
_NO_REPORT = "no gateway has reported on this stage yet"


def drawn(picture: Picture) -> RenderableType:
    rollout = picture.rollout
    parts: list[RenderableType] = [_head(rollout), _stages(rollout), _stage_bar(picture)]
    if _has_groups(picture):
        parts += [Text(), _groups(picture)]
    if picture.figures.conditions:
        parts += [Text(), _conditions(picture)]
    return Group(*parts, *_below(picture))


def line(picture: Picture) -> str:
    """Return the rollout's state in one line, for output without a terminal."""
    rollout = picture.rollout
    requests, errors, *times = picture.figures.rows
    p99 = next(row for row in times if row.name == "first token p99")
    if not _has_groups(picture):
        return f"{rollout.state} {stage_words(rollout)} | {picture.figures.why}"
    words = [
        f"{rollout.state} {stage_words(rollout)}",
        f"control {rollout.from_version}: {_group_words(requests.control, errors.control, p99.control)}",
        f"candidate {rollout.to_version}: {_group_words(requests.candidate, errors.candidate, p99.candidate)}",
    ]
    why = picture.figures.why
    return " | ".join([*words, *([why] if why else [])])


def _has_groups(picture: Picture) -> bool:
    """Return True if there are or will be figures to compare. Counting restarts with each stage, from 0."""
    requests = picture.figures.rows[0]
    return bool(picture.rollout.is_active and picture.rollout.percent) or bool(requests.control or requests.candidate)


def stage_words(rollout: Rollout) -> str:
    return f"{rollout.percent} % ({rollout.stage + 1} of {len(rollout.policy.stages)})"


def seconds_words(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def number_words(value: float | None, unit: str) -> str:
    """Format a value: `12.3 ms`, `2.0 %`, `1,204`, or a dash if it was not measured."""
    if value is None:
        return "–"
    if unit == "":
        return f"{value:,.0f}"
    return f"{value:,.{0 if value >= 100 else 1}f} {unit}"


def _head(rollout: Rollout) -> Text:
    colour = STATE_COLOURS[rollout.state]
    attempt = f", attempt {rollout.attempt}" if rollout.attempt > 1 else ""
    return Text.from_markup(
        f"[bold]{escape(f'{rollout.model}:{rollout.channel}')}[/]  {escape(rollout.from_version)} → "
        f"{escape(rollout.to_version)}  [{colour}]{rollout.state.replace('_', ' ')}[/]  [dim]{rollout.id}{attempt}[/]"
    )


def _stages(rollout: Rollout) -> Text:
    """Return `1 % ─ 10 % ─ 50 % ─ 100 %`, styled as passed, current and future stages."""
    text = Text()
    for index, stage in enumerate(rollout.policy.stages):
        if index:
            text.append(" ─ ", "dim")
        text.append(f"{stage.percent} %", _stage_style(rollout, index))
    return text


def _stage_style(rollout: Rollout, index: int) -> str:
    if rollout.state == "completed" or (rollout.is_active and index < rollout.stage):
        return "green"
    if index != rollout.stage:
        return "dim"
    return f"bold reverse {STATE_COLOURS[rollout.state]}" if rollout.loaded or not rollout.is_active else "dim"


def _stage_bar(picture: Picture) -> RenderableType:
    rollout = picture.rollout
    if rollout.state == "loading":
        words = f"{rollout.to_version} has been loading for {seconds_words(picture.in_stage_s)}; it gets no traffic yet"
        return Text(words, "dim")
    if not rollout.is_active:
        return Text(rollout.reason, STATE_COLOURS[rollout.state])
    grid = Table.grid(padding=(0, 2))
    duration_s = rollout.current.duration_s or 0.0
    bar = ProgressBar(
        total=max(1.0, duration_s),
        completed=min(picture.in_stage_s, duration_s),
        width=BAR_COLUMNS,
        complete_style="cyan",
        finished_style="green",
    )
    grid.add_row(bar, Text(f"{seconds_words(picture.in_stage_s)} of {seconds_words(duration_s)}", "dim"))
    return grid


def _groups(picture: Picture) -> Table:
    rollout = picture.rollout
    table = Table("", box=None, pad_edge=False)
    for heading in (f"control {rollout.from_version}", f"candidate {rollout.to_version}", ""):
        table.add_column(escape(heading), justify="right")
    for row in picture.figures.rows:
        cells = (number_words(row.control, row.unit), number_words(row.candidate, row.unit), _factor(row))
        table.add_row(row.name, *cells)
    return table


def _factor(row: Row) -> str:
    if row.factor is None:
        return ""
    colour = "red" if row.factor >= FACTOR_WORSE else "dim"
    return f"[{colour}]{row.factor:.2f}x[/]"


def _conditions(picture: Picture) -> Table:
    """Return the conditions that would halt the stage, and how close each is."""
    table = Table("halts when", "", "", box=None, pad_edge=False)
    for each in picture.figures.conditions:
        colour, word = MOODS[each.mood]
        table.add_row(escape(each.text), f"[{colour}]{word}[/]", escape(each.figures))
    return table


def _below(picture: Picture) -> list[RenderableType]:
    rollout, age_s = picture.rollout, picture.heard_age_s
    lines: list[RenderableType] = [Text()]
    if rollout.is_active and picture.figures.why:
        lines.append(Text(picture.figures.why, STATE_COLOURS[rollout.state]))
    if rollout.percent and rollout.is_active and (age_s is None or age_s > STALE_S):
        silent = f"no gateway has reported for {seconds_words(age_s)}" if age_s is not None else _NO_REPORT
        lines.append(Text(silent, "yellow"))
    return lines


def _group_words(requests: float | None, errors: float | None, p99_ms: float | None) -> str:
    failed = f", {number_words(errors, '%')} failed" if errors else ""
    first = f", first token p99 {number_words(p99_ms, 'ms')}" if p99_ms is not None else ""
    return f"{number_words(requests, '')} requests{failed}{first}"


# Table of rollouts, one per line.


def rollout_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("rollout", "model", "from → to", "state", "share", "stage", "for", box=None, pad_edge=False)
    table.columns[0].no_wrap = True
    for column in (4, 5, 6):
        table.columns[column].justify = "right"
    now_unix_s = time.time()
    for row in rows:
        it = rollout_of(row)
        table.add_row(
            it.id,
            escape(f"{it.model}:{it.channel}"),
            escape(f"{it.from_version} → {it.to_version}"),
            f"[{STATE_COLOURS[it.state]}]{it.state.replace('_', ' ')}[/]",
            number_words(it.percent, "%").replace(".0", ""),
            f"{it.stage + 1}/{len(it.policy.stages)}",
            seconds_words(max(0.0, now_unix_s - it.stage_began_unix_s)) if it.is_active else "",
        )
    return table
