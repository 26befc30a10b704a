"""Run unit tests on newer Pythons of this machine as well, if it has any.

    python -m tests.newest_python            # on the newest: import every module, and run the tests of `QUICK`
    python -m tests.newest_python --whole    # every unit test, on each of them

Interpreters are searched on PATH and in pyenv, up to `NEWEST_MINOR`. Each minor version gets its own environment in
`.venv-newest`, which is created again when the interpreter or the lock changes.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv-newest"
LOCK = ROOT / "requirements" / "dev.txt"
NEWEST_MINOR = 14
UNIT = ("-m", "not servers and not engine and not drill and not soak and not cluster")
# Tests of code that depends on the standard library: addresses, files, YAML, locks, databases in files, clocks.
QUICK = ("tests/artifacts/ingest", "tests/fleet", "tests/registry/sql", "tests/telemetry")
_IMPORT_ALL = """
import importlib, pkgutil, functions
for module in pkgutil.walk_packages(functions.__path__, "functions."):
    if not module.name.endswith("__main__") and "migrations" not in module.name:  # alembic runs those
        importlib.import_module(module.name)
"""
_SAY_VERSION = "import ensurepip, sys, venv; print('%d.%d.%d' % sys.version_info[:3])"

Version = tuple[int, ...]


def newer(found: Iterable[tuple[Version, Path]], ours: Version) -> list[tuple[Version, Path]]:
    """Return the newest interpreter of each minor version above ours, in order; of equal versions the first found."""
    by_minor: dict[Version, tuple[Version, Path]] = {}
    for each in found:
        minor = each[0][:2]
        if ours[:2] < minor <= (3, NEWEST_MINOR) and (minor not in by_minor or by_minor[minor][0] < each[0]):
            by_minor[minor] = each
    return [by_minor[minor] for minor in sorted(by_minor)]


def interpreters() -> list[tuple[Version, Path]]:
    """Return the interpreters that start and can create environments."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    minors = range(sys.version_info.minor + 1, NEWEST_MINOR + 1)
    on_path = [Path(found) for minor in minors if (found := shutil.which(f"python3.{minor}"))]
    of_pyenv = [file for minor in minors for file in pyenv.glob(f"versions/3.{minor}.*/bin/python3")]
    return [(version, file) for file in (*on_path, *of_pyenv) if (version := _version(file))]


def _version(file: Path) -> Version | None:
    try:
        said = subprocess.run([file, "-c", _SAY_VERSION], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None  # a shim of a version that is not selected, or an interpreter without `venv`
    return tuple(int(part) for part in said.split("."))


def environment(version: Version, interpreter: Path) -> Path:
    """Return the Python of the version's environment, in which shoal is installed."""
    folder = FOLDER / f"{version[0]}.{version[1]}"
    stamp = folder / ".installed"
    wanted = f"{interpreter} {version} {hashlib.sha256(LOCK.read_bytes()).hexdigest()}"
    python = folder / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"installing shoal into {folder.relative_to(ROOT)} (a minute, once)", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([interpreter, "-m", "venv", folder], check=True)
        # No bytecode on installation: most modules are never imported.
        pip = (python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-compile", "--no-deps")
        subprocess.run([*pip, "--require-hashes", "-r", LOCK], cwd=ROOT, check=True)
        subprocess.run([*pip, "--no-build-isolation", "-e", "."], cwd=ROOT, check=True)
        stamp.write_text(wanted)
    return python


def main(arguments: list[str]) -> int:
    found = newer(interpreters(), sys.version_info[:3])
    if not found:
        print(f"no Python newer than 3.{sys.version_info.minor} is installed: unit tests ran only on that version")
        return 0
    if arguments == ["--whole"]:
        return max(abs(_tested(*each)) for each in found)
    return _imported(*found[-1]) or _tested(*found[-1], *QUICK)


def _imported(version: Version, interpreter: Path) -> int:
    command = [environment(version, interpreter), "-W", "error", "-c", _IMPORT_ALL]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _tested(version: Version, interpreter: Path, *paths: str) -> int:
    python = environment(version, interpreter)
    print(f"unit tests on Python {'.'.join(map(str, version))}", flush=True)
    command = [python, "-m", "pytest", "-q", *UNIT, "-n", "auto", "--dist", "loadfile", *paths]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
