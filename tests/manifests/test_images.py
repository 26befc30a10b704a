"""The build files match the project: what they copy and install, their user and entrypoint. No container engine needed.

A role's extra must contain, transitively, every distribution that the role's modules import at startup.
"""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grimp
import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.manifests.checks.images import image_findings
from tests.manifests.checks.settings import module_of
from tests.manifests.containerfiles import Containerfile, read, targets
from tests.manifests.rendering import MANIFESTS, OVERLAYS, PROJECT, Rendering, render
from tests.manifests.workloads import workloads

ROLES = {"gateway": "gateway", "registry": "registry", "controller": "controller", "agent": "replica"}  # target: extra
FILES = sorted((PROJECT / "images").glob("Containerfile*"))
TARGETS = [(file, target) for file in FILES for target in targets(file)]
_PINNED = re.compile(r"[a-z0-9.-]+/[a-z0-9._/-]+(:[\w.]*[0-9]+\.[0-9]+[\w.-]*|@sha256:[0-9a-f]{64})")


@pytest.fixture(scope="module")
def containerfile() -> Containerfile:
    return read(PROJECT / "images" / "Containerfile")


def test_every_role_has_an_image() -> None:
    assert {target for _, target in TARGETS} == {*ROLES, "engine", "engine-cpu"}


@pytest.mark.parametrize(("file", "target"), TARGETS, ids=[target for _, target in TARGETS])
def test_image_runs_unprivileged_on_a_pinned_base(file: Path, target: str) -> None:
    parsed = read(file)
    assert parsed.user(target) == "65532:65532"
    assert _PINNED.fullmatch(parsed.image(target)), parsed.image(target)


@pytest.mark.parametrize(("file", "target"), TARGETS, ids=[target for _, target in TARGETS])
def test_a_base_without_a_digest_is_refused_unless_said_so(file: Path, target: str) -> None:
    """Run the check of the build file itself, which every role's image uses."""
    parsed = read(file)
    stage = parsed.stages[target if target.startswith("engine") else "wheel"]
    argument, consent = stage.arguments
    check = stage.runs[0]
    assert f"${{{argument}}}" == stage.base

    def build(base: str, **given: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"], argument: base, **given}
        return subprocess.run(["sh", "-c", check], env=environment, capture_output=True, text=True, check=False)

    default = parsed.arguments[argument]
    assert build(default).returncode == 1
    assert f"{default} has no digest" in build(default).stderr
    assert build(default, **{consent: "no"}).returncode == 1
    assert build(default, **{consent: "allowed"}).returncode == 0
    assert build(f"{default}@sha256:{'0' * 64}").returncode == 0
    named = [each.labels.get("org.opencontainers.image.base.name") for each in parsed.lineage(target)]
    assert f"${argument}" in named


@pytest.mark.parametrize(("file", "target"), TARGETS, ids=[target for _, target in TARGETS])
def test_holds_the_list_of_what_is_in_it(file: Path, target: str) -> None:
    stages = read(file).stages
    from_stages = [stages[origin] for origin, _, _ in stages[target].copies if origin]
    copies = [each for stage in (stages[target], *from_stages) for each in stage.copies]
    assert ("", [f"images/sbom/{target}.cdx.json"], "/opt/shoal/sbom.cdx.json") in copies


def test_pushed_digests_become_an_overlays_images(tmp_path: Path) -> None:
    """The page's commands, run for production, leave no image with a tag."""
    page = (PROJECT / "docs" / "how-to" / "kubernetes.md").read_text()
    (commands,) = (
        block for block in re.findall(r"```sh needs: cluster\n(.*?)```", page, re.S) if "kind: Component" in block
    )
    for number, (_, target) in enumerate(TARGETS):
        (tmp_path / f"{target}.digest").write_text(f"sha256:{number:064x}")  # no newline, as from podman
    asked = "case $4 in docker://*:[0-9]*) echo sha256:$(printf %s $4 | sha256sum | cut -c1-64);; *) exit 1;; esac\n"
    (tmp_path / "skopeo").write_text(f"#!/bin/sh\n{asked}")  # replaces skopeo, which would need a registry
    (tmp_path / "skopeo").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run(["sh", "-ec", commands], cwd=tmp_path, check=True, env={**os.environ, "PATH": path})
    below = os.path.relpath(OVERLAYS / "production", (tmp_path / "our-fleet").resolve())
    lines = f"resources: [{below}]\ncomponents: [images]\n"
    (tmp_path / "our-fleet" / "kustomization.yaml").write_text(lines)
    rendering = render(tmp_path / "our-fleet")
    assert list(image_findings(rendering)) == []
    images = {each.get("image", "") for workload in workloads(rendering) for each in workload.containers} - {""}
    assert {each for each in images if "@sha256:" not in each} == set()
    shipped = (found for file in MANIFESTS.rglob("*.yaml") for found in re.findall(r"\bimage: (\S+)", file.read_text()))
    others = {each for each in shipped if not each.startswith("registry.example.com/shoal/")}
    assert others and all(each in commands for each in others), "the page pins what manifests name, at its version"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_is_copied_exists_and_reaches_the_builder(file: Path) -> None:
    parsed = read(file)
    allowed = _let_through()
    for stage in parsed.stages.values():
        for origin, sources, _ in stage.copies:
            if origin:
                assert origin in parsed.stages
                continue
            for source in sources:
                assert (PROJECT / source).exists(), f"{source} is not there"
                assert source.split("/")[0] in allowed, f".dockerignore keeps {source} from the builder"


@pytest.mark.parametrize(("target", "extra"), ROLES.items())
def test_holds_its_extra_and_no_tools(target: str, extra: str, containerfile: Containerfile) -> None:
    ((origin, sources, destination),) = containerfile.stages[target].copies
    assert (sources, destination) == (["/opt/shoal"], "/opt/shoal")
    (install,) = containerfile.stages[origin].runs
    assert f"--no-deps --require-hashes -r /requirements/{extra}.txt" in install
    assert (PROJECT / "requirements" / f"{extra}.txt").is_file()
    assert extra in _project()["optional-dependencies"]
    in_image = [run for stage in containerfile.lineage(target) for run in stage.runs]
    assert any("pip uninstall" in run for run in in_image)
    assert not any(tool in run for run in in_image for tool in ("gcc", "build-essential", "-dev", "pip install"))


@pytest.mark.parametrize("target", ROLES)
def test_starts_a_module_that_exists(target: str, containerfile: Containerfile) -> None:
    python, minus_m, module = containerfile.stages[target].entrypoint
    assert (python, minus_m) == ("python", "-m")
    assert importlib.util.find_spec(f"{module}.__main__") is not None


@pytest.mark.parametrize(("target", "extra"), ROLES.items())
def test_its_extra_holds_all_that_it_imports(target: str, extra: str, containerfile: Containerfile) -> None:
    installed = _closure(extra)
    missing = {name for name in _imported(containerfile.stages[target].entrypoint[-1]) if name not in installed}
    assert missing == set(), f"pyproject.toml: the extra {extra} lacks what its role imports"


def test_the_engine_has_the_version_that_the_local_fleet_has() -> None:
    """Routes and metrics that the agent reads depend on vLLM's version."""
    requirements = PROJECT / "functions" / "controller" / "local" / "prepare" / "engine-requirements.txt"
    (version,) = re.findall(r"^vllm[\w-]*==([\w.]+)", requirements.read_text(), re.MULTILINE)
    arguments = read(PROJECT / "images" / "Containerfile.engine").arguments
    assert {value.rpartition(":")[2] for value in arguments.values()} == {f"v{version}"}


def test_pods_start_what_their_images_start(staging: Rendering, containerfile: Containerfile) -> None:
    started = {
        container["image"].rpartition("/")[2].partition(":")[0]: module_of(container)
        for workload in workloads(staging)
        for container in workload.containers
        if module_of(container)
    }
    assert started == {target: containerfile.stages[target].entrypoint[-1] for target in ROLES}


def _let_through() -> set[str]:
    lines = (PROJECT / ".dockerignore").read_text().splitlines()
    assert "*" in lines, "everything is kept out but what is named"
    return {line[1:] for line in lines if line.startswith("!")}


@cache
def _project() -> dict[str, dict[str, list[str]]]:
    project: dict[str, dict[str, list[str]]] = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    return project


def _closure(extra: str) -> set[str]:
    """Return every distribution that `pip install shoal[extra]` installs, including shoal."""
    wanted = [*_project()["dependencies"], *_project()["optional-dependencies"][extra]]
    found, queue = {"shoal"}, [Requirement(text) for text in wanted]
    seen: set[tuple[str, frozenset[str]]] = set()
    while queue:
        requirement = queue.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) not in seen:
            seen.add((name, extras))
            found.add(name)
            queue += _needed(name, extras)
    return found


def _needed(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    for text in importlib.metadata.requires(name) or []:
        requirement = Requirement(text)
        environments: list[dict[str, str]] = [{**default_environment(), "extra": extra} for extra in ("", *extras)]  # type: ignore[dict-item]
        if requirement.marker is None or any(requirement.marker.evaluate(each) for each in environments):
            yield requirement


def _imported(module: str) -> set[str]:
    """Return the distributions that the module and shoal's modules below it import at startup."""
    graph = grimp.build_graph("functions", include_external_packages=True, exclude_type_checking_imports=True)
    start = f"{module}.__main__"
    reached = {start, *_parents(start)} | graph.find_upstream_modules(start)
    reached |= {parent for each in reached if each.startswith("functions") for parent in _parents(each)}
    by_package = importlib.metadata.packages_distributions()
    return {
        canonicalize_name(by_package[each][0])
        for each in reached
        if not each.startswith("functions") and each in by_package
    }


def _parents(module: str) -> set[str]:
    words = module.split(".")
    return {".".join(words[:count]) for count in range(1, len(words))}
