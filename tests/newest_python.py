"""Unit tests on the newest Python of this machine as well, where it has one that is newer than ours.

    python -m tests.newest_python            # what differs between Pythons first: `QUICK`, and that all can be imported
    python -m tests.newest_python --whole    # every unit test

The interpreter is looked for on PATH and in pyenv, from `NEWEST_MINOR` downwards. It gets an environment of its own,
`.venv-newest`, made once and again when the interpreter or the lock changes.
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
UNIT = ("-m", "not servers and not engine and not drill and not soak")
# Addresses, files, YAML, locks, databases in files, clocks: what rests on the standard library rather than on ours.
QUICK = ("tests/artifacts/ingest", "tests/fleet", "tests/registry/sql", "tests/telemetry")
_IMPORT_ALL = """
import importlib, pkgutil, functions
for module in pkgutil.walk_packages(functions.__path__, "functions."):
    if not module.name.endswith("__main__") and "migrations" not in module.name:  # alembic runs those
        importlib.import_module(module.name)
"""
_SAY_VERSION = "import ensurepip, sys, venv; print('%d.%d.%d' % sys.version_info[:3])"

Version = tuple[int, ...]


def newest(found: Iterable[tuple[Version, Path]], ours: Version) -> tuple[Version, Path] | None:
    """The newest interpreter of a later minor version than ours; of one that is there twice the first."""
    later = [each for each in found if ours[:2] < each[0][:2] <= (3, NEWEST_MINOR)]
    return max(later, key=lambda each: each[0], default=None)


def interpreters() -> list[tuple[Version, Path]]:
    """Those that start and can make environments."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    minors = range(sys.version_info.minor + 1, NEWEST_MINOR + 1)
    on_path = [Path(found) for minor in minors if (found := shutil.which(f"python3.{minor}"))]
    of_pyenv = [file for minor in minors for file in pyenv.glob(f"versions/3.{minor}.*/bin/python3")]
    return [(version, file) for file in (*on_path, *of_pyenv) if (version := _version(file))]


def _version(file: Path) -> Version | None:
    try:
        said = subprocess.run([file, "-c", _SAY_VERSION], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None  # a shim of a version that is not chosen, or one without `venv`
    return tuple(int(part) for part in said.split("."))


def environment(version: Version, interpreter: Path) -> Path:
    """Its Python, with shoal installed."""
    stamp = FOLDER / ".installed"
    wanted = f"{interpreter} {version} {hashlib.sha256(LOCK.read_bytes()).hexdigest()}"
    python = FOLDER / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"installing shoal into {FOLDER.name} (a minute, once)", flush=True)
        shutil.rmtree(FOLDER, ignore_errors=True)
        subprocess.run([interpreter, "-m", "venv", FOLDER], check=True)
        pip = (python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps")
        subprocess.run([*pip, "--require-hashes", "-r", LOCK], cwd=ROOT, check=True)
        subprocess.run([*pip, "--no-build-isolation", "-e", "."], cwd=ROOT, check=True)
        stamp.write_text(wanted)
    return python


def main(arguments: list[str]) -> int:
    found = newest(interpreters(), sys.version_info[:3])
    if found is None:
        print(f"no Python newer than 3.{sys.version_info.minor} is here: the unit tests ran on that one alone")
        return 0
    tests = [str(environment(*found)), "-m", "pytest", "-q", *UNIT]
    print(f"unit tests on Python {'.'.join(map(str, found[0]))}", flush=True)
    if arguments == ["--whole"]:
        return subprocess.run([*tests, "-n", "auto", "--dist", "loadfile"], cwd=ROOT, check=False).returncode
    imported = subprocess.run([tests[0], "-W", "error", "-c", _IMPORT_ALL], cwd=ROOT, check=False)
    if imported.returncode != 0:
        return imported.returncode
    return subprocess.run([*tests, "-n", "auto", "--dist", "loadfile", *QUICK], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
