"""Report of `shoal validate`: each problem with its line and a caret; without problems, the warnings and a summary."""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from functions.api.loader import Loaded
from functions.api.problems import Problem
from functions.cli.terminal import make_console
from functions.controller.unobeyed.findings import Unobeyed

EXCERPT_MAX_CHARS = 110
PROBLEMS_SHOWN = 100
PASSED_OVER_SHOWN = 10


@dataclass(frozen=True, slots=True)
class ValidationReport:
    contents: Mapping[str, bytes]  # contents that were read, by file name
    problems: tuple[Problem, ...]
    loaded: Loaded | None
    foreign_schemas: bool = False
    warnings: tuple[Unobeyed, ...] = ()  # sorted by file and line


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A line, cut to fit the terminal, and the position of the caret."""

    line: str
    caret: int  # number of characters before the caret


def excerpt(content: bytes | None, line: int, column: int) -> Excerpt | None:
    """Return the line of a problem, or None if the content has no such line. Control characters are replaced."""
    lines = content.decode("utf-8", errors="replace").removeprefix("\ufeff").split("\n") if content is not None else []
    if not 1 <= line <= len(lines):
        return None
    text, caret = _printable(lines[line - 1]), column - 1
    start = max(0, caret - EXCERPT_MAX_CHARS * 2 // 3) if len(text) > EXCERPT_MAX_CHARS else 0
    cut = text[start : start + EXCERPT_MAX_CHARS]
    before = "…" if start else ""
    after = "…" if start + EXCERPT_MAX_CHARS < len(text) else ""
    return Excerpt(before + cut + after, caret - start + len(before))


def print_report(report: ValidationReport) -> None:
    console = make_console()
    if report.problems:
        _print_problems(report, console)
    else:
        _print_summary(report, console)


def print_json(report: ValidationReport) -> None:
    loaded = report.loaded
    seen: dict[str, Any] = {
        "valid": not report.problems,
        "files": len(report.contents),
        "objects": dict(_counts(loaded)) if loaded is not None else {},
        "problems": [_problem_fields(report, problem) for problem in report.problems],
        "warnings": [{**_problem_fields(report, each.problem), "reason": each.reason} for each in report.warnings],
        "passed_over": [str(reason) for reason in loaded.ignored] if loaded is not None else [],
    }
    sys.stdout.write(json.dumps(seen, indent=2) + "\n")


def _problem_fields(report: ValidationReport, problem: Problem) -> dict[str, Any]:
    place = problem.place
    shown = excerpt(report.contents.get(place.file), place.line, place.column)
    return {
        "file": place.file,
        "line": place.line,
        "column": place.column,
        "key_path": problem.key_path,
        "message": problem.message,
        "excerpt": shown.line if shown is not None else None,
    }


def _print_problems(report: ValidationReport, console: Console) -> None:
    for problem in report.problems[:PROBLEMS_SHOWN]:
        _print_problem(report, problem, console, "red")
    files = len({problem.place.file for problem in report.problems})
    rest = len(report.problems) - PROBLEMS_SHOWN
    more = f", {rest} of them not shown" if rest > 0 else ""
    found = f"{_number(len(report.problems), 'problem')} in {_number(files, 'file')}{more}"
    console.print(Text(f"✗ {found}: none of this would be applied", style="bold red"))


def _print_problem(report: ValidationReport, problem: Problem, console: Console, color: str) -> None:
    place = problem.place
    head = Text(_printable(str(place)), style="bold")
    if problem.key_path:
        head.append(f"  {_printable(problem.key_path)}", style="cyan")
    console.print(head, soft_wrap=True)
    shown = excerpt(report.contents.get(place.file), place.line, place.column)
    if shown is not None:
        gutter = f"{place.line:>5} │ "
        console.print(Text(gutter, style="dim").append(shown.line, style="default"), soft_wrap=True)
        blank = " " * (len(gutter) - 2) + "│ "
        indent = " " * cell_len(shown.line[: shown.caret])
        console.print(Text(blank, style="dim").append(f"{indent}^", style=f"bold {color}"), soft_wrap=True)
    console.print(Text(f"        {_printable(problem.message)}\n"), soft_wrap=True)


def _print_summary(report: ValidationReport, console: Console) -> None:
    loaded = report.loaded
    if loaded is None:
        return
    for warning in report.warnings[:PROBLEMS_SHOWN]:
        _print_problem(report, warning.problem, console, "yellow")
    if report.warnings:
        _print_warned(report, console)
    kinds = ", ".join(_number(count, kind) for kind, count in _counts(loaded))
    total = f"{_number(len(loaded.objects), 'object')} in {_number(len(report.contents), 'file')}"
    console.print(Text.assemble(("✓ ", "green"), f"{total}: {kinds}"), soft_wrap=True)
    if report.foreign_schemas:
        console.print(Text.assemble(("✓ ", "green"), "InferenceServices agree with KServe's own schema"))
    for reason in loaded.ignored[:PASSED_OVER_SHOWN]:
        console.print(Text(f"  passed over: {_printable(str(reason))}", style="dim"), soft_wrap=True)
    if len(loaded.ignored) > PASSED_OVER_SHOWN:
        console.print(Text(f"  … and {len(loaded.ignored) - PASSED_OVER_SHOWN} more", style="dim"))


def _print_warned(report: ValidationReport, console: Console) -> None:
    rest = len(report.warnings) - PROBLEMS_SHOWN
    more = f", {rest} of them not shown" if rest > 0 else ""
    found = f"{_number(len(report.warnings), 'warning')}{more}"
    console.print(Text(f"! {found}: valid, but it cannot be honoured", style="bold yellow"))


def _counts(loaded: Loaded) -> list[tuple[str, int]]:
    """Return the number of objects of each kind, the most frequent kind first."""
    kinds: Iterator[str] = (declared.value.kind for declared in loaded.objects)
    return Counter(kinds).most_common()


def _number(count: int, word: str) -> str:
    if count == 1:
        return f"1 {word}"
    return f"{count} {word.removesuffix('y')}ies" if word.endswith("y") else f"{count} {word}s"


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
