"""docs/reference is what the code says: pages as they would be written now, and nothing left out of them."""

import re

import pytest
from prometheus_client import CollectorRegistry

from docs.generate.commands import commands
from docs.generate.errors import refusals
from docs.generate.metrics import families
from docs.generate.observability import COMPONENT, RUNBOOKS_FILE, component_files, runbooks_json
from docs.generate.pages import FOLDER, made
from docs.generate.settings import classes, variables
from functions.controller.kubernetes.run.metrics import ControllerMetrics
from functions.gateway.metrics import Metrics as GatewayMetrics
from functions.registry.metrics import RegistryMetrics
from tests.docs.pages import ROOT, pages

_NO_METRICS = {"shoal_local", "shoal_tokenizer", "shoal_local_trainer", "shoal_controller"}  # keys, files, prefixes


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    return made()


def test_committed_pages_are_what_the_code_says(written: dict[str, str]) -> None:
    differing = [name for name, text in written.items() if (FOLDER / name).read_text() != text]
    assert differing == [], "run `make docs`, look at the difference, and commit it"


def test_the_component_on_kubernetes_has_the_rules_and_dashboards_of_the_local_fleet() -> None:
    differing = [name for name, text in component_files().items() if (COMPONENT / name).read_text() != text]
    assert differing == [], "run `make docs`, look at the difference, and commit it"


def test_the_console_has_the_runbooks_of_the_docs() -> None:
    assert RUNBOOKS_FILE.read_text() == runbooks_json(), "run `make docs`, look at the difference, and commit it"


def test_no_page_is_left_that_nothing_writes(written: dict[str, str]) -> None:
    assert {page.name for page in FOLDER.glob("*.md")} == {*written, "README.md"}


def exposed(registry: CollectorRegistry) -> set[str]:
    """Names as Prometheus shows them."""
    return {f"{family.name}_total" if family.type == "counter" else family.name for family in registry.collect()}


def test_every_metric_that_a_process_registers_is_documented_with_its_meaning() -> None:
    registered = {
        "gateway": exposed(GatewayMetrics().registry),
        "registry": exposed(RegistryMetrics().collectors),
        "controller": exposed(ControllerMetrics().registry),
    }
    for process, names in registered.items():
        documented = {family.name for family in families(process)}
        assert names - documented == set(), process
        assert len(names) > 10
    told = [family for process in ("gateway", "registry", "replica", "controller") for family in families(process)]
    assert [family.name for family in told if len(family.meaning.split()) < 2] == []


def test_every_metric_that_pages_name_is_one() -> None:
    processes = ("gateway", "registry", "replica", "replica/adapter_cache", "controller")
    known = {family.name for process in processes for family in families(process)}
    known |= {f"{name}_{part}" for name in known for part in ("bucket", "count", "sum")}
    for page in pages():
        named = set(re.findall(r"(?<![\w/.-])(shoal_[a-z_]+[a-z])(?![\w:*{]|_\w)(?!…)", page.read_text()))
        named |= set(re.findall(r"(?<![\w/.-])(shoal_[a-z_]+[a-z])(?=\{[a-z])", page.read_text()))
        named = {name for name in named if name not in _NO_METRICS}
        assert {name for name in named if name not in known and f"{name}_total" not in known} == set(), page


def test_every_setting_has_a_meaning() -> None:
    assert len(classes()) >= 8
    bare = [
        f"{one.__name__}.{name}"
        for one in classes()
        for name, field in one.model_fields.items()
        if not field.description
    ]
    assert bare == []


def test_every_variable_that_pages_name_is_one() -> None:
    """A setting of a process, or a variable that some code, test or Makefile reads by that name."""
    read = "\n".join(
        path.read_text()
        for folder in ("functions", "tests", "loadtests")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "test_reference.py"
    )
    read += (ROOT / "Makefile").read_text()
    known = variables() | set(re.findall(r"SHOAL_[A-Z0-9_]+[A-Z0-9]", read))
    for page in pages():
        if page.name == "CHANGELOG.md":  # it names what is gone, too
            continue
        named = set(re.findall(r"(?<![A-Z_])SHOAL_[A-Z0-9_]+[A-Z0-9](?![A-Z0-9_…{*])", page.read_text()))
        assert named - known == set(), page


def test_commands_say_what_they_do() -> None:
    assert [command.name for command in commands() if not command.help] == []
    assert {"shoal up", "shoal rollout watch", "shoal simulate fleet"} <= {command.name for command in commands()}


def test_refusals_of_both_services_are_found() -> None:
    gateway, registry = refusals("gateway"), refusals("registry")
    assert {(404, "model_not_found"), (429, "rate_limit_exceeded"), (503, "overloaded")} <= set(gateway)
    assert gateway[503, "no_capacity"] == ["The pool {pool} has no replica ready. Try again shortly."]
    assert {(401, "invalid_key"), (409, "epoch_taken")} <= set(registry)
