"""The installation page names what is in the tree, and everything that it names exists."""

import re

import pytest

from tests.manifests.rendering import MANIFESTS, PROJECT, Rendering

README = (MANIFESTS / "README.md").read_text()


@pytest.mark.parametrize("path", sorted(set(re.findall(r"(?<![\w/])manifests/[\w./-]+[\w]", README))))
def test_paths_in_commands_exist(path: str) -> None:
    assert (PROJECT / path).exists()


def test_the_table_names_every_part() -> None:
    rows = re.findall(r"^\| (`[^|]+`) \|", README, re.MULTILINE)
    named = {name.strip("/") for row in rows for name in re.findall(r"`([\w./-]+)`", row)}
    named |= {f"base/{name}" for name in named}
    parts = {
        path.relative_to(MANIFESTS).as_posix() for path in MANIFESTS.glob("*/*") if path.name != "kustomization.yaml"
    }
    assert parts - named == set()


@pytest.mark.parametrize("page", ["manifests/README.md", "docs/how-to/kubernetes.md"])
def test_a_namespace_is_made_before_it_is_labelled(page: str) -> None:
    """Labelling a missing namespace aborts the block; only those of earlier installations may be labelled at once."""
    text = (PROJECT / page).read_text()
    labelled = [(each.start(), each[1]) for each in re.finditer(r"kubectl label namespace (\S+) shoal", text)]
    assert {name for _, name in labelled} == {"kourier-system", "monitoring"}
    made = {name: text.find(f"kubectl create namespace {name}") for _, name in labelled if name != "kourier-system"}
    assert [name for place, name in labelled if name in made and not 0 <= made[name] < place] == []


def test_namespaces_to_label_are_those_that_policies_ask_for(staging: Rendering) -> None:
    selectors = re.findall(r"shoal\.dev/[a-z]+': 'true'", str([*staging.of("NetworkPolicy")]))
    asked = {selector.partition("'")[0] for selector in selectors}
    assert asked == set(re.findall(r"kubectl label namespace \S+ (shoal\.dev/[a-z]+)=true", README))
