"""The engine's virtual environment: made once from locks with hashes, taken as it is where its stamp fits.

vLLM for CPUs asks for torch's CPU build, which the plain index does not have. Where an index or a wheel folder that pip
is configured with offers it, it is taken; else the general build, which does the same work and brings CUDA libraries
that it is linked against. The rest is the same for both.

The stamp holds the locks' hash and is written last; an environment without it was left half-made or is of an earlier
lock, and is completed (pip keeps what fits) or, where its python does not run, made anew.
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

from functions.controller.local.ledger import replace_file
from functions.controller.local.prepare.commands import exclusive, run_logged
from functions.controller.local.prepare.pip import (
    NotOffered,
    Pip,
    locked_names,
    remove_half_installed,
    size_bytes,
)
from functions.controller.local.prepare.reporting import CannotPrepare, Reporter, Step

STAMP = "shoal-engine.stamp"
_KEPT = {"pip"}  # the tool itself
_GB = 10**9


@dataclass(frozen=True)
class TorchBuild:
    """One of the builds of torch, and what an environment with it takes: measured, a little rounded up."""

    words: str
    lock: str
    downloaded_bytes: int
    installed_bytes: int


CPU_BUILD = TorchBuild("the CPU build", "engine-torch-cpu.lock.txt", int(0.7 * _GB), int(2.3 * _GB))
GENERAL_BUILD = TorchBuild("the general build", "engine-torch.lock.txt", int(2.6 * _GB), int(5.3 * _GB))
REST = "engine.lock.txt"


def ensure_engine_environment(venv: Path, *, log: Path, reporter: Reporter) -> None:
    with ExitStack() as stack:
        with reporter.step("Engine environment") as step:
            lock = stack.enter_context(exclusive(lock_file(venv), step.update))
            if engine_is_ready(venv):
                step.note("already there")
                return
            pip = Pip(venv / "bin" / "python", log, lock)
            _make_venv(venv, pip, step)
        build = _install_torch(venv, pip, reporter)
        with reporter.step("Engine: vLLM and what it needs") as step:
            _install(venv, pip, REST, step)
        with reporter.step("Engine: checking that it imports") as step:
            pip.uninstall(pip.installed() - locked_names(lock_of(REST)) - locked_names(lock_of(build.lock)) - _KEPT)
            check = [str(pip.python), "-c", "import torch, transformers, gguf, accelerate, vllm"]
            run_logged(check, log=log, lock=lock, on_line=lambda line: None)
            replace_file(venv / STAMP, wanted_stamp().encode())
            step.note(f"{size_bytes(venv) / _GB:.1f} GB in {venv}")


def engine_is_ready(venv: Path) -> bool:
    stamp = venv / STAMP
    return stamp.is_file() and stamp.read_text().strip() == wanted_stamp()


def wanted_stamp() -> str:
    locks = (lock_of(name).read_bytes() for name in (CPU_BUILD.lock, GENERAL_BUILD.lock, REST))
    return hashlib.sha256(b"".join(locks)).hexdigest()


def lock_of(name: str) -> Path:
    return Path(str(files("functions.controller.local.prepare").joinpath(name)))


def lock_file(venv: Path) -> Path:
    """Several state directories may share one environment, and it may be made anew: the lock lies outside of both."""
    mark = hashlib.sha256(str(venv.absolute()).encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"shoal-engine-{os.getuid()}-{mark}.lock"


def _make_venv(venv: Path, pip: Pip, step: Step) -> None:
    _check_space(venv, CPU_BUILD)
    if pip.runs():
        remove_half_installed(venv)
        step.note("half-made or of an earlier version, completed now")
        return
    step.update("making the virtual environment")
    if venv.is_symlink():
        venv = venv.resolve()  # what it points to is made, the link stays
    shutil.rmtree(venv, ignore_errors=True)
    run_logged([sys.executable, "-m", "venv", str(venv)], log=pip.log, lock=pip.lock, on_line=step.update)
    step.note("to be made")


def _install_torch(venv: Path, pip: Pip, reporter: Reporter) -> TorchBuild:
    """The CPU build where it is offered: known by asking for it, which costs a second where it is not."""
    with reporter.step(f"Engine: torch, {CPU_BUILD.words}") as step:
        try:
            _install(venv, pip, CPU_BUILD.lock, step)
            return CPU_BUILD
        except NotOffered:
            step.note("not on the indexes that pip is configured with: the general build instead")
    with reporter.step(f"Engine: torch, {GENERAL_BUILD.words}") as step:
        _check_space(venv, GENERAL_BUILD)
        step.update(f"{GENERAL_BUILD.downloaded_bytes / _GB:.1f} GB to download for the whole environment")
        _install(venv, pip, GENERAL_BUILD.lock, step)
    return GENERAL_BUILD


def _install(venv: Path, pip: Pip, lock: str, step: Step) -> None:
    before = size_bytes(venv)
    output = pip.install(lock_of(lock), step)
    cached = f" and {output.cached_bytes / _GB:.2f} GB from pip's cache" if output.cached_bytes else ""
    installed = (size_bytes(venv) - before) / _GB
    step.note(f"{output.downloaded_bytes / _GB:.2f} GB downloaded{cached}, {installed:.2f} GB installed")


def _check_space(venv: Path, build: TorchBuild) -> None:
    venv = venv.resolve()
    there = size_bytes(venv) if venv.is_dir() else 0
    needs = space_needs(build, there, venv=venv.parent, scratch=Path(tempfile.gettempdir()), cache=_cache(os.environ))
    if short := space_short(needs):
        raise CannotPrepare(
            f"the engine needs {short}. Make room, or set SHOAL_ENGINE_VENV, TMPDIR or PIP_CACHE_DIR to directories "
            "elsewhere; `shoal up --engine sim` needs none of it."
        )


def space_needs(
    build: TorchBuild, installed_bytes: int, *, venv: Path, scratch: Path, cache: Path
) -> list[tuple[Path, int]]:
    """Bytes by place: the environment, what pip unpacks from, and the copy that it keeps for another time."""
    left = max(0, build.installed_bytes - installed_bytes)
    fetched = min(build.downloaded_bytes, left)
    return [(venv, left), (scratch, fetched), (cache, fetched)]


def space_short(
    needs: list[tuple[Path, int]],
    *,
    device: Callable[[Path], int] = lambda path: path.stat().st_dev,
    free: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> str:
    """What is asked of a file system that has less, summed over the places that lie on it; empty where all fits."""
    demands: dict[int, tuple[Path, int]] = {}
    for path, wanted in needs:
        place = next(each for each in (path, *path.parents) if each.exists())
        first, sum_so_far = demands.get(device(place), (place, 0))
        demands[device(place)] = (first, sum_so_far + wanted)
    for place, wanted in demands.values():
        if (there := free(place)) < wanted:
            return f"{wanted / _GB:.1f} GB in {place} while it is being made, which has {there / _GB:.1f} GB free"
    return ""


def _cache(environ: Mapping[str, str]) -> Path:
    home = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(environ.get("PIP_CACHE_DIR") or home / "pip")
