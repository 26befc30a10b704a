"""pip in a virtual environment, from a lock file with hashes: downloads and installations, with progress reports.

The lock file pins everything, so pip resolves nothing (`--no-deps`) and accepts only files whose hash is in the lock
file. Indexes and wheel folders are those of pip's configuration.
"""

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from functions.controller.local.prepare.steps import CannotPrepare, ReportedStep, run_logged

TOLD_EVERY_S = 5.0
_UNITS = {"bytes": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_FETCHED = re.compile(r"^(Downloading|Using cached) (\S+?)(?:\.metadata)? \(([\d.]+) (bytes|B|kB|MB|GB)\)")
_MISSING = "No matching distribution found for "


class NotOffered(CannotPrepare):
    """No index or wheel folder has a version that the lock file names."""


@dataclass
class PipOutput:
    """Progress read from pip's output so far: byte counts by pip's own count, and its current activity."""

    downloaded_bytes: int = 0
    cached_bytes: int = 0
    missing: bool = False
    doing: str = ""
    installing: bool = False

    def parse_line(self, line: str) -> None:
        if fetched := _FETCHED.match(line):
            how, url, amount, unit = fetched.groups()
            size = int(float(amount) * _UNITS[unit])
            if how == "Downloading":
                self.downloaded_bytes += size
            else:
                self.cached_bytes += size
            self.doing = _distribution(url)
        elif line.startswith("Installing collected packages"):
            self.installing = True
        elif _MISSING in line:
            self.missing = True

    def progress_text(self, installed_bytes: int) -> str:
        if self.installing:
            return f"installing, {size_text(installed_bytes)} so far"
        return f"{self.fetched()}, now {self.doing}" if self.doing else "querying the index"

    def fetched(self) -> str:
        cached = f" and {size_text(self.cached_bytes)} from pip's cache" if self.cached_bytes else ""
        return f"{size_text(self.downloaded_bytes)} downloaded{cached}"


@dataclass(frozen=True)
class Pip:
    """pip of one environment. Its output goes to a log, and it inherits the descriptor of a lock."""

    python: Path
    log: Path
    lock: int
    _base: tuple[str, ...] = field(default=("--disable-pip-version-check", "--no-input"), repr=False)

    def install(self, locked: Path, step: ReportedStep) -> PipOutput:
        output, venv = PipOutput(), self.python.parent.parent
        with report_periodically(
            lambda: step.update(output.progress_text(size_bytes(venv) if output.installing else 0))
        ):
            try:
                self._run("install", "--no-deps", "--require-hashes", "-r", str(locked), on_line=output.parse_line)
            except CannotPrepare as error:
                if output.missing:
                    raise NotOffered(str(error)) from error
                raise
        return output

    def uninstall(self, names: Iterable[str]) -> None:
        if wanted := sorted(names):
            self._run("uninstall", "--yes", *wanted, on_line=lambda line: None)

    def installed(self) -> set[str]:
        argv = [str(self.python), "-m", "pip", *self._base, "list", "--format=json"]
        listed = subprocess.run(argv, capture_output=True, check=True).stdout
        return {normalized(entry["name"]) for entry in json.loads(listed)}

    def runs(self) -> bool:
        try:
            argv = [str(self.python), "-m", "pip", "--version"]
            return subprocess.run(argv, capture_output=True, check=False).returncode == 0
        except OSError:
            return False

    def _run(self, command: str, *arguments: str, on_line: Callable[[str], None]) -> None:
        progress = ["--progress-bar", "off"] if command == "install" else []
        argv = [str(self.python), "-m", "pip", *self._base, command, *progress, *arguments]
        run_logged(argv, log=self.log, lock=self.lock, on_line=on_line)


def locked_names(locked: Path) -> set[str]:
    lines = locked.read_text().splitlines()
    return {normalized(line.partition("==")[0]) for line in lines if "==" in line and not line.startswith((" ", "#"))}


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).strip().lower()


def remove_half_installed(venv: Path) -> list[str]:
    """Remove what a killed pip leaves: packages without RECORD, which pip writes last, and those set aside for an
    upgrade. Return their names."""
    removed = []
    for packages in venv.glob("lib/python*/site-packages"):
        for directory in packages.iterdir():
            half = directory.suffix == ".dist-info" and not (directory / "RECORD").is_file()
            if half or directory.name.startswith("~"):
                shutil.rmtree(directory) if directory.is_dir() else directory.unlink()
                removed.append(directory.name)
    return removed


@contextmanager
def report_periodically(tell: Callable[[], None]) -> Iterator[None]:
    """Call `tell` every TOLD_EVERY_S, in another thread, while the body runs, because one file may take minutes without
    output."""
    over = threading.Event()

    def ticks() -> None:
        while not over.wait(TOLD_EVERY_S):
            tell()

    thread = threading.Thread(target=ticks, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def size_bytes(directory: Path) -> int:
    """Return the sum of the lengths of all files below the directory; files that vanish meanwhile are not counted."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                total += Path(folder, name).lstat().st_size
    return total


def _distribution(url: str) -> str:
    return url.rpartition("/")[2].partition("-")[0]


def size_text(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
