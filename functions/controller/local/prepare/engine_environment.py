"""Create the engine's virtual environment once, from lock files with hashes, and reuse it if its stamp matches.

vLLM for CPUs requires torch's CPU build, which the plain index does not have. That build is used if an index or wheel
folder in pip's configuration offers it. Otherwise the general build is used: it does the same work but brings the
CUDA libraries that it is linked against. All other packages are the same for both.

The stamp holds the hash of the lock files and is written last. An environment without that stamp is half-made or from
an earlier lock. It is completed (pip keeps what fits), or created anew if its Python does not run.
"""

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from functions.controller.local.files import replace_file
from functions.controller.local.prepare.pip import (
    NotOffered,
    Pip,
    locked_names,
    remove_half_installed,
    size_bytes,
    size_text,
)
from functions.controller.local.prepare.steps import CannotPrepare, ReportedStep, Reporter, exclusive, run_logged

STAMP = "shoal-engine.stamp"
_KEPT = {"pip"}  # pip is in no lock file
_GB = 10**9


@dataclass(frozen=True)
class TorchBuild:
    """One build of torch, and the measured size of an environment with it, rounded up slightly."""

    words: str
    lock: str
    downloaded_bytes: int
    installed_bytes: int


CPU_BUILD = TorchBuild("the CPU build", "engine-torch-cpu.lock.txt", int(0.7 * _GB), int(2.3 * _GB))
GENERAL_BUILD = TorchBuild("the general build", "engine-torch.lock.txt", int(2.8 * _GB), int(5.6 * _GB))
REST = "engine.lock.txt"
LOCKS = Path(str(files("functions.controller.local.prepare")))


@dataclass(frozen=True)
class EngineEnvironment:
    venv: Path
    locks: Path = LOCKS

    def ensure(self, *, log: Path, reporter: Reporter) -> None:
        with ExitStack() as stack:
            with reporter.step("Engine environment") as step:
                lock = stack.enter_context(exclusive(self.lock_file, step.update))
                if self.is_ready():
                    step.note("already there")
                    return
                pip = Pip(self.python, log, lock)
                self._make_venv(pip, step)
            build = self._install_torch(pip, reporter)
            with reporter.step("Engine: vLLM and its dependencies") as step:
                self._install(REST, pip, step)
            with reporter.step("Engine: checking its imports") as step:
                self._finish(build, pip, step)

    def is_ready(self) -> bool:
        stamp = self.venv / STAMP
        return stamp.is_file() and stamp.read_text().strip() == self.wanted_stamp()

    def wanted_stamp(self) -> str:
        locks = ((self.locks / name).read_bytes() for name in (CPU_BUILD.lock, GENERAL_BUILD.lock, REST))
        return hashlib.sha256(b"".join(locks)).hexdigest()

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def lock_file(self) -> Path:
        """Path of the lock, outside the environment, which may be recreated and shared by state directories."""
        mark = hashlib.sha256(str(self.venv.absolute()).encode()).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"shoal-engine-{os.getuid()}-{mark}.lock"

    def _make_venv(self, pip: Pip, step: ReportedStep) -> None:
        self._check_space(CPU_BUILD)
        if pip.runs():
            remove_half_installed(self.venv)
            step.note("incomplete or of an earlier version: completed now")
            return
        step.update("creating the virtual environment")
        place = self.venv.resolve()  # if it is a link, its target is created
        shutil.rmtree(place, ignore_errors=True)
        run_logged([sys.executable, "-m", "venv", str(place)], log=pip.log, lock=pip.lock, on_line=step.update)
        step.note(f"created in {self.venv}, still empty")

    def _install_torch(self, pip: Pip, reporter: Reporter) -> TorchBuild:
        """Install the CPU build of torch if an index offers it, else the general build, and return which it was. A
        failed attempt costs a second."""
        with reporter.step(f"Engine: torch, {CPU_BUILD.words}") as step:
            try:
                self._install(CPU_BUILD.lock, pip, step)
                return CPU_BUILD
            except NotOffered:
                step.note("not on pip's configured indexes: the general build is used instead")
        with reporter.step(f"Engine: torch, {GENERAL_BUILD.words}") as step:
            self._check_space(GENERAL_BUILD)
            self._install(GENERAL_BUILD.lock, pip, step)
        return GENERAL_BUILD

    def _install(self, lock: str, pip: Pip, step: ReportedStep) -> None:
        before = size_bytes(self.venv)
        output = pip.install(self.locks / lock, step)
        installed = size_bytes(self.venv) - before
        step.note(f"{output.fetched()}, {size_text(installed)} installed")

    def _finish(self, build: TorchBuild, pip: Pip, step: ReportedStep) -> None:
        """Remove packages that neither lock file names, check the imports, then write the stamp, which marks the
        environment as complete."""
        locked = locked_names(self.locks / REST) | locked_names(self.locks / build.lock)
        pip.uninstall(pip.installed() - locked - _KEPT)
        check = [str(self.python), "-c", "import torch, transformers, gguf, accelerate, vllm"]
        run_logged(check, log=pip.log, lock=pip.lock, on_line=lambda line: None)
        replace_file(self.venv / STAMP, self.wanted_stamp().encode())
        step.note(f"{size_text(size_bytes(self.venv))} in {self.venv}")

    def _check_space(self, build: TorchBuild) -> None:
        venv = self.venv.resolve()
        there = size_bytes(venv) if venv.is_dir() else 0
        scratch = Path(tempfile.gettempdir())
        needs = space_needs(build, there, venv=venv.parent, scratch=scratch, cache=pip_cache(os.environ))
        if short := space_short(needs):
            raise CannotPrepare(
                f"the engine needs {short}. Make room, or set SHOAL_ENGINE_VENV, TMPDIR or PIP_CACHE_DIR to "
                "directories elsewhere; `shoal up --engine sim` needs no such space."
            )


def space_needs(
    build: TorchBuild, installed_bytes: int, *, venv: Path, scratch: Path, cache: Path
) -> list[tuple[Path, int]]:
    """Return the bytes needed by place: the environment, pip's unpacking directory and pip's cache."""
    left = max(0, build.installed_bytes - installed_bytes)
    fetched = min(build.downloaded_bytes, left)
    return [(venv, left), (scratch, fetched), (cache, fetched)]


def space_short(
    needs: list[tuple[Path, int]],
    *,
    device: Callable[[Path], int] = lambda path: path.stat().st_dev,
    free: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> str:
    """Return what is needed of the first file system that has less, summed over the places on it, or "" if everything
    fits."""
    demands: dict[int, tuple[Path, int]] = {}
    for path, wanted in needs:
        place = next(each for each in (path, *path.parents) if each.exists())
        first, sum_so_far = demands.get(device(place), (place, 0))
        demands[device(place)] = (first, sum_so_far + wanted)
    for place, wanted in demands.values():
        if (there := free(place)) < wanted:
            return f"{wanted / _GB:.1f} GB in {place} during its installation; only {there / _GB:.1f} GB are free"
    return ""


def pip_cache(environ: Mapping[str, str]) -> Path:
    home = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(environ.get("PIP_CACHE_DIR") or home / "pip")
