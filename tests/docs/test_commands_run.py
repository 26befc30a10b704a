"""Runs of the pages' commands as a reader would run them: on a fleet of simulated engines, or in a checkout."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from tests.docs.pages import ROOT, Fence
from tests.docs.shell import expected_output, of_class, script, script_pages
from tests.fleets import free_ports, processes_of

pytestmark = [pytest.mark.servers, pytest.mark.timeout(900)]
_TUTORIAL = ROOT / "docs" / "tutorial.md"
_PARTS = ("inferenceservices", "policies", "registry")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return make_checkout(tmp_path)


def make_checkout(parent: Path) -> Path:
    """Copy the parts of the checkout that commands read, with a `shoal` of this interpreter on the path."""
    folder = parent / "shoal"
    for part in _PARTS:
        shutil.copytree(ROOT / part, folder / part)
    command = parent / "bin" / "shoal"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m functions.cli.main "$@"\n')
    command.chmod(0o755)
    return folder


def environment(checkout: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL_", "OPENAI_", "GIT_"))}
    path = f"{checkout.parent / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return kept | {"PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(checkout.parent)} | more


def run(text: str, checkout: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-euo", "pipefail", "-c", text]
    return subprocess.run(
        command, cwd=checkout, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=840,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


def missing(expected: list[str], output: str) -> list[str]:
    """Return the first expected line that does not come in its order; … matches any text."""
    lines, absent = iter(output.splitlines()), []
    for wanted in expected:
        pattern = ".*".join(re.escape(part) for part in wanted.rstrip().split("…"))
        if not any(re.fullmatch(pattern, line.rstrip()) for line in lines):
            absent.append(wanted)
            break  # the iterator is exhausted: later lines cannot match
    return absent


def _marked(page: Path) -> ParameterSet:
    """Return the page as a parameter. The tutorial (a minute) runs in `make test`, the others only in `make soak`."""
    return pytest.param(page, id=page.relative_to(ROOT).as_posix(), marks=() if page == _TUTORIAL else pytest.mark.soak)


@pytest.fixture
def ports() -> Iterator[int]:
    with free_ports() as base:
        yield base


@pytest.mark.parametrize("page", [_marked(page) for page in script_pages()])
def test_page_script_succeeds_with_its_output(page: Path, checkout: Path, ports: int) -> None:
    env = environment(checkout, SHOAL_PORT_BASE=str(ports))
    try:
        done = run(script(page), checkout, env)
    finally:
        run("shoal down", checkout, env)
    assert done.returncode == 0, done.stdout
    assert missing(expected_output(page), done.stdout) == [], done.stdout
    assert not processes_of(checkout / ".shoal")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """A checkout whose fleet runs and has answered requests, and its environment."""
    folder = make_checkout(tmp_path_factory.mktemp("fleet"))
    (folder.parent / ".gitconfig").write_text("[user]\n  name = You\n  email = you@example.com\n")
    with free_ports() as base:
        env = environment(folder, SHOAL_PORT_BASE=str(base))
        try:
            begun = run(
                "shoal up --engine sim && for n in 1 2 3; do shoal chat acme/pirate --once Hello; done", folder, env
            )
            assert begun.returncode == 0, begun.stdout
            yield folder, env
        finally:
            run("shoal down", folder, env)


@pytest.mark.soak
@pytest.mark.parametrize("page", script_pages("run: fleet"), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_pages_commands_work_on_a_fleet_that_runs(page: Path, fleet: tuple[Path, dict[str, str]]) -> None:
    done = run(script(page, "run: fleet"), *fleet)
    assert done.returncode == 0, done.stdout
    assert missing(expected_output(page), done.stdout) == [], done.stdout


@pytest.mark.parametrize("fence", of_class("run: offline"), ids=lambda fence: fence.place)
def test_a_command_that_needs_no_fleet_succeeds(fence: Fence, checkout: Path) -> None:
    done = run(fence.text, checkout, environment(checkout))
    assert done.returncode == 0, done.stdout


def test_missing_or_misordered_output_is_detected() -> None:
    assert missing(["a … b", "c"], "x\na 1 b\nc\n") == []
    assert missing(["c", "a … b"], "a 1 b\nc\n") == ["a … b"]
    assert missing(["d"], "c\n") == ["d"]
