"""`shoal validate`: check a configuration like the controller would, before it is pushed.

Every problem is reported with its file and line, the text of the line and a correction. Exit status 1 if there is one.
A declaration that is valid but cannot be honoured is a warning, which does not fail the command.
`functions.api.loader` checks, `functions.controller.unobeyed` warns, `validate_report` prints, `validate_foreign`
checks against KServe's own schema.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from functions.api.loader import Loaded, load_files, read_files
from functions.api.problems import ConfigInvalid, Problem, SourceLocation
from functions.api.yaml_events import FILE_MAX_BYTES
from functions.cli.refused import CommandRefused
from functions.cli.validate_report import ValidationReport, print_json, print_report
from functions.controller.unobeyed.declared import declared_findings

if TYPE_CHECKING:  # jsonschema is imported only if CRDs are given
    from functions.cli.validate_foreign import ForeignSchemas

DEFAULT_FOLDERS = ("inferenceservices", "policies", "registry")
STDIN = "-"
STDIN_NAME = "stdin"
SLOW_S = 1.0  # progress is shown after this time


@dataclass(slots=True)
class _Seen:
    """Contents that were read, by the file name that problems use."""

    contents: dict[str, bytes] = field(default_factory=dict)

    def watching(self, files: Iterator[tuple[str, bytes]], progress: Progress) -> Iterator[tuple[str, bytes]]:
        task = progress.add_task("reading", total=None, file="")
        for name, content in files:
            self.contents[name] = content
            progress.update(task, file=name)
            slow = (progress.tasks[0].elapsed or 0.0) > SLOW_S
            if slow and progress.console.is_terminal and not progress.live.is_started:
                progress.start()
            yield name, content


def validate(paths: Sequence[Path], *, crds_dir: Path | None, as_json: bool) -> None:
    seen = _Seen()
    report = _judged(list(paths) or _default_paths(), seen, _foreign(crds_dir))
    if as_json:
        print_json(report)
    else:
        print_report(report)
    if report.problems:
        raise typer.Exit(1)


def _foreign(crds_dir: Path | None) -> "ForeignSchemas | None":
    if crds_dir is None:
        return None
    from functions.cli.validate_foreign import ForeignSchemas

    return ForeignSchemas(crds_dir)


def _judged(paths: Sequence[Path], seen: _Seen, foreign: "ForeignSchemas | None") -> ValidationReport:
    problems: list[Problem] = []
    files = _files(paths, problems)
    progress = _progress()
    try:
        loaded = load_files(seen.watching(files, progress), problems, None)
    except ConfigInvalid as error:
        return ValidationReport(seen.contents, error.problems, None)
    finally:
        if progress.live.is_started:
            progress.stop()
    found = tuple(sorted(foreign.problems(loaded))) if foreign is not None else ()
    warnings = tuple(sorted(declared_findings(loaded.objects), key=lambda each: each.problem))
    return ValidationReport(
        seen.contents, found or _nothing_there(paths, loaded), loaded, foreign is not None, warnings
    )


def _files(paths: Sequence[Path], problems: list[Problem]) -> Iterator[tuple[str, bytes]]:
    yield from read_files([path for path in paths if str(path) != STDIN], Path.cwd(), problems)
    if any(str(path) == STDIN for path in paths):
        yield STDIN_NAME, sys.stdin.buffer.read(FILE_MAX_BYTES + 1)


def _default_paths() -> list[Path]:
    """Return the files that `shoal up` would commit: the YAML at the top level of each default folder. Deeper folders
    hold data and examples. Fail if there are none."""
    folders = [Path.cwd() / name for name in DEFAULT_FOLDERS]
    files = [file for folder in folders for file in sorted(folder.glob("*")) if file.suffix in {".yaml", ".yml"}]
    if not files:
        raise CommandRefused(
            f"there is no YAML in {', '.join(DEFAULT_FOLDERS)} here: name files or folders to validate"
        )
    return files


def _nothing_there(paths: Sequence[Path], loaded: Loaded) -> tuple[Problem, ...]:
    if loaded.objects:
        return ()
    where = STDIN_NAME if str(paths[0]) == STDIN else paths[0].as_posix()
    return (Problem(SourceLocation(where), "", "holds no object of a kind that shoal knows"),)


def _progress() -> Progress:
    """Return a progress display on standard error, which is started only if reading takes long."""
    columns = (SpinnerColumn(), TextColumn("{task.description} {task.fields[file]}"), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
