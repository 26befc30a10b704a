"""The engine's environment, with the real pip and a folder of small wheels instead of an index."""

import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from functions.controller.local.prepare import engine_environment
from functions.controller.local.prepare.engine_environment import (
    CPU_BUILD,
    GENERAL_BUILD,
    REST,
    STAMP,
    EngineEnvironment,
    pip_cache,
    space_needs,
    space_short,
)
from functions.controller.local.prepare.pip import PipOutput, remove_half_installed
from functions.controller.local.prepare.steps import CannotPrepare, ReportedStep

pytestmark = pytest.mark.timeout(300)

REAL_PIP = pytest.mark.servers  # several processes of pip and venv, seconds each

MODULES = ("transformers", "gguf", "accelerate", "vllm")
TORCH_LOCKS = {CPU_BUILD.lock: ("torch", "1.0+cpu"), GENERAL_BUILD.lock: ("torch", "1.0")}


class Reported:
    """Recorded steps and their results, in order."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []

    @contextmanager
    def step(self, title: str) -> Iterator[ReportedStep]:
        step = Noted()
        yield step
        self.steps.append((title, step.result))

    def print_line(self, line: str) -> None:
        raise AssertionError(line)


class Noted:
    result = ""

    def update(self, what: str) -> None:
        pass

    def note(self, result: str) -> None:
        self.result = result


class Index:
    """A wheel folder that pip is configured with, and locks of the packages to install from it."""

    def __init__(self, folder: Path) -> None:
        self.wheels, self.locks = folder / "wheels", folder / "locks"
        self.wheels.mkdir()
        self.locks.mkdir()
        self.lock(REST, *(self.publish(name, "1.0") for name in MODULES))
        for lock, (name, version) in TORCH_LOCKS.items():
            self.lock(lock, self.publish(name, version))

    def publish(self, name: str, version: str) -> str:
        """Publish a wheel with one module; return its line for a lock."""
        wheel = self.wheels / f"{name}-{version}-py3-none-any.whl"
        info = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"{name}.py", f"VERSION = '{version}'\n")
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
        return f"{name}=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}"

    def withdraw(self, name: str, version: str) -> None:
        (self.wheels / f"{name}-{version}-py3-none-any.whl").unlink()

    def lock(self, lock: str, *lines: str) -> None:
        (self.locks / lock).write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    index = Index(tmp_path)
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(index.wheels), "CACHE_DIR": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setattr(engine_environment, "space_short", lambda needs: "")
    return index


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with only pip, made once because that takes seconds."""
    venv = tmp_path_factory.mktemp("empty") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    return venv


@pytest.fixture
def environment(index: Index, empty: Path, tmp_path: Path) -> EngineEnvironment:
    """Copy of the empty environment: its `bin/python` is a link, beside which Python finds `pyvenv.cfg`."""
    shutil.copytree(empty, tmp_path / "venv", symlinks=True)
    return EngineEnvironment(tmp_path / "venv", index.locks)


def made(environment: EngineEnvironment, tmp_path: Path) -> list[tuple[str, str]]:
    reported = Reported()
    environment.ensure(log=tmp_path / "log", reporter=reported)
    return reported.steps


def installed(environment: EngineEnvironment) -> dict[str, str]:
    packages = environment.venv.glob("lib/python*/site-packages/*.dist-info")
    return dict(package.name.removesuffix(".dist-info").split("-", 1) for package in packages)


@pytest.mark.soak
@REAL_PIP
def test_cpu_build_is_installed_if_a_wheel_folder_offers_it(environment: EngineEnvironment, tmp_path: Path) -> None:
    steps = made(environment, tmp_path)
    assert installed(environment)["torch"] == "1.0+cpu"
    assert set(MODULES) <= set(installed(environment))
    assert [title for title, _ in steps] == [
        "Engine environment",
        "Engine: torch, the CPU build",
        "Engine: vLLM and its dependencies",
        "Engine: checking its imports",
    ]
    assert all(re.fullmatch(r"\d+ MB downloaded.*, \d+ MB installed", said) for _, said in steps[1:3]), steps
    assert made(environment, tmp_path) == [("Engine environment", "already there")]


@pytest.mark.soak
@REAL_PIP
def test_general_build_is_installed_without_a_cpu_build(
    index: Index, environment: EngineEnvironment, tmp_path: Path
) -> None:
    index.withdraw("torch", "1.0+cpu")
    steps = made(environment, tmp_path)
    assert installed(environment)["torch"] == "1.0"
    assert [title for title, _ in steps][1:3] == ["Engine: torch, the CPU build", "Engine: torch, the general build"]
    assert "not on the indexes" in steps[1][1]


@REAL_PIP
def test_a_file_with_another_hash_is_refused(index: Index, environment: EngineEnvironment, tmp_path: Path) -> None:
    """The file must not count as unavailable: a wrong hash is reported."""
    index.lock(CPU_BUILD.lock, f"torch==1.0+cpu --hash=sha256:{'0' * 64}")
    with pytest.raises(CannotPrepare, match="DO NOT MATCH THE HASHES"):
        made(environment, tmp_path)
    assert "torch" not in installed(environment)


@pytest.mark.soak
@REAL_PIP
def test_a_half_made_environment_is_completed(environment: EngineEnvironment, tmp_path: Path) -> None:
    """A killed install left no stamp, one package without its record and files, and another set aside."""
    made(environment, tmp_path)
    (environment.venv / STAMP).unlink()
    (packages,) = environment.venv.glob("lib/python*/site-packages")
    (packages / "gguf-1.0.dist-info" / "RECORD").unlink()
    (packages / "gguf.py").unlink()
    (packages / "vllm-1.0.dist-info").rename(packages / "~llm-1.0.dist-info")
    assert not environment.is_ready()
    (_, said), *_ = made(environment, tmp_path)
    assert said.startswith("incomplete")
    assert set(MODULES) <= set(installed(environment))
    assert (packages / "gguf.py").is_file()
    assert environment.is_ready()


@pytest.mark.soak
@REAL_PIP
def test_renewed_lock_changes_only_its_packages(index: Index, environment: EngineEnvironment, tmp_path: Path) -> None:
    """A package that no lock names any more is removed."""
    rest = (index.locks / REST).read_text().splitlines()
    index.lock(REST, *rest, index.publish("torchvision", "1.0"))
    made(environment, tmp_path)
    assert "torchvision" in installed(environment)
    index.lock(REST, *rest[:-1], index.publish("vllm", "2.0"))
    made(environment, tmp_path)
    assert installed(environment)["vllm"] == "2.0"
    assert "torchvision" not in installed(environment)
    assert "pip" in installed(environment)


@pytest.mark.soak
@REAL_PIP
def test_linked_environment_is_created_at_the_link_target(index: Index, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    made(EngineEnvironment(tmp_path / "link", index.locks), tmp_path)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "elsewhere" / STAMP).is_file()


def test_too_little_space_is_refused_before_anything_is_made(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = EngineEnvironment(tmp_path / "venv", index.locks)
    monkeypatch.setattr(engine_environment, "space_short", lambda needs: space_short(needs, free=lambda path: 10**9))
    with pytest.raises(CannotPrepare) as raised:
        made(environment, tmp_path)
    assert re.search(r"needs \d+\.\d GB in .* only 1\.0 GB are free", str(raised.value))
    assert "SHOAL_ENGINE_VENV" in str(raised.value)
    assert not environment.venv.exists()
    assert not (tmp_path / "log").exists(), "pip was not even asked"


@REAL_PIP
def test_the_general_build_is_refused_before_it_is_downloaded(
    index: Index, environment: EngineEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is space for the CPU build, which is not offered, and too little for the general build."""
    index.withdraw("torch", "1.0+cpu")
    monkeypatch.setattr(
        engine_environment, "space_short", lambda needs: space_short(needs, free=lambda path: 7 * 10**9)
    )
    with pytest.raises(CannotPrepare, match=r"needs 11\.\d GB"):
        made(environment, tmp_path)
    assert "torch" not in installed(environment)


def test_space_is_summed_per_file_system(tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in ("venv", "scratch", "cache")}
    needs = space_needs(GENERAL_BUILD, 0, **places)
    whole = GENERAL_BUILD.installed_bytes + 2 * GENERAL_BUILD.downloaded_bytes
    assert 11 * 10**9 <= whole <= 12 * 10**9, "the README says 12 GB"
    assert space_short(needs, free=lambda path: whole) == ""
    assert "GB in" in space_short(needs, free=lambda path: whole - 1)
    apart = {tmp_path: 1}
    for number, path in enumerate(places.values(), start=2):
        path.mkdir()
        apart[path] = number
    assert space_short(needs, device=apart.__getitem__, free=lambda path: GENERAL_BUILD.installed_bytes) == ""
    assert str(places["venv"]) in space_short(needs, device=apart.__getitem__, free=lambda path: 4 * 10**9)


def test_installed_packages_need_no_more_space(tmp_path: Path) -> None:
    left = space_needs(
        GENERAL_BUILD, GENERAL_BUILD.installed_bytes - 5, venv=tmp_path, scratch=tmp_path, cache=tmp_path
    )
    assert [wanted for _, wanted in left] == [5, 5, 5]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"PIP_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/pip"),
        ({}, f"{Path.home()}/.cache/pip"),
    ],
)
def test_pip_cache_folder_matches_pips_own(environ: dict[str, str], expected: str) -> None:
    assert pip_cache(environ) == Path(expected)


def test_pip_output_is_counted() -> None:
    output = PipOutput()
    assert output.progress_text(0) == "querying the index"
    output.parse_line("Collecting torch==2.13.0 (from -r engine-torch.lock.txt (line 2))")
    output.parse_line("Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (526.4 MB)")
    output.parse_line("Using cached https://index.example/packages/nvidia_nccl_cu13-2.29-py3-none-any.whl (1.2 GB)")
    output.parse_line("Downloading six-1.17.0-py2.py3-none-any.whl.metadata (9.0 kB)")
    assert (output.downloaded_bytes, output.cached_bytes) == (526_409_000, 1_200_000_000)
    assert output.progress_text(0) == "526 MB downloaded and 1.2 GB from pip's cache, now six"
    output.parse_line("Installing collected packages: six, torch")
    assert output.progress_text(2_340_000_000) == "installing, 2.3 GB so far"


def test_only_leftovers_of_a_killed_pip_are_removed(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    for name in ("whole-1.dist-info", "half-1.dist-info", "~et-aside", "whole"):
        (packages / name).mkdir(parents=True)
    (packages / "whole-1.dist-info" / "RECORD").touch()
    assert sorted(remove_half_installed(tmp_path)) == ["half-1.dist-info", "~et-aside"]
    assert sorted(path.name for path in packages.iterdir()) == ["whole", "whole-1.dist-info"]
