"""The engine's virtual environment: made once from one requirements file, taken as it is where its stamp fits.

The stamp holds the requirements' hash and is written last; an environment without it was left half-made, and is
completed (pip keeps what is there) or, where its python does not run, made anew.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from functions.controller.local.ledger import replace_file
from functions.controller.local.prepare.commands import run_logged
from functions.controller.local.prepare.reporting import CannotPrepare, Step

STAMP = "shoal-engine.stamp"
# Builds for CUDA that do not fit the CPU torch and break `import transformers`; text models need none of them.
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
NEEDED_BYTES = 5 * 1024**3  # 3.5 GB installed, and what pip unpacks meanwhile
FIRST_TIME = "installing vLLM for CPU: 3.5 GB, about two minutes"
_SHOWN_CHARS = 90
_SHOWN_WORDS = ("Collecting", "Downloading", "Using", "Installing", "Building", "Successfully")


def ensure_engine_environment(venv: Path, *, log: Path, lock: int, step: Step) -> None:
    requirements = requirements_file()
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    stamp = venv / STAMP
    if stamp.is_file() and stamp.read_text().strip() == wanted:
        step.note("already there")
        return
    _check_space(venv)
    python = venv / "bin" / "python"
    if not _runs(python):
        step.update("making the virtual environment")
        shutil.rmtree(venv, ignore_errors=True)
        run_logged([sys.executable, "-m", "venv", str(venv)], log=log, lock=lock, on_line=step.update)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    install = [*pip, "install", "--progress-bar", "off", "-r", str(requirements)]
    step.update(FIRST_TIME)
    run_logged(install, log=log, lock=lock, on_line=lambda line: _show(step, line))
    step.update("removing what does not fit the CPU build")
    run_logged([*pip, "uninstall", "--yes", *UNWANTED], log=log, lock=lock, on_line=lambda line: None)
    step.update("checking that it imports")
    check = [str(python), "-c", "import torch, transformers, gguf, accelerate, vllm"]
    run_logged(check, log=log, lock=lock, on_line=lambda line: None)
    replace_file(stamp, wanted.encode())
    step.note(f"{_size_gb(venv):.1f} GB in {venv}")


def lock_file(venv: Path) -> Path:
    """Several state directories may share one environment, and it may be made anew: the lock lies outside of both."""
    mark = hashlib.sha256(str(venv.absolute()).encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"shoal-engine-{os.getuid()}-{mark}.lock"


def requirements_file() -> Path:
    return Path(str(files("functions.controller.local.prepare").joinpath("engine-requirements.txt")))


def _runs(python: Path) -> bool:
    try:
        return subprocess.run([str(python), "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _check_space(venv: Path) -> None:
    where = venv.absolute().parent
    free = shutil.disk_usage(where).free
    if free < NEEDED_BYTES:
        raise CannotPrepare(
            f"the engine needs {NEEDED_BYTES / 1e9:.0f} GB in {where}, which has {free / 1e9:.1f} GB free. "
            "Make room, or set SHOAL_ENGINE_VENV to a directory elsewhere; `shoal up --engine sim` needs none of it."
        )


def _show(step: Step, line: str) -> None:
    """pip's line for people: what it does, without addresses, paths and who asked for it; warnings are in the log."""
    words = line.split("(from", maxsplit=1)[0].split()
    if words and words[0] in _SHOWN_WORDS:
        step.update(" ".join(word for word in words if "/" not in word)[:_SHOWN_CHARS])


def _size_gb(directory: Path) -> float:
    return sum(path.lstat().st_size for path in directory.rglob("*") if path.is_file()) / 1e9
