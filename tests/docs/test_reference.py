"""docs/reference matches the code: its files are current and complete."""

import csv
import re

import pytest
from prometheus_client import CollectorRegistry

from docs.generate import errors, fields, kinds, metrics, settings
from docs.generate.commands import commands
from docs.generate.errors import refusals
from docs.generate.metrics import families
from docs.generate.observability import COMPONENT, RUNBOOKS_FILE, component_files, runbooks_json
from docs.generate.openapi import gateway_document, operations, registry_document
from docs.generate.pages import FOLDER, reference_files
from docs.generate.settings import classes, variables
from functions.api.kinds.catalogue import KINDS
from functions.controller.kubernetes.run.metrics import ControllerMetrics
from functions.gateway.intake.routes import ROUTES, Route
from functions.gateway.limits import Limits
from functions.gateway.metrics import Metrics as GatewayMetrics
from functions.registry.metrics import RegistryMetrics
from tests.docs.pages import ROOT, data_files, links, pages

_NO_METRICS = {"shoal_local", "shoal_tokenizer", "shoal_local_trainer", "shoal_controller"}  # keys, files, prefixes


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    return reference_files()


def column(name: str, *heads: str) -> list[tuple[str, ...]]:
    """Return these columns of a committed CSV file."""
    with (FOLDER / name).open(newline="") as file:
        return [tuple(row[head] for head in heads) for row in csv.DictReader(file)]


def test_committed_files_are_what_the_code_says(written: dict[str, str]) -> None:
    differing = [name for name, text in written.items() if (FOLDER / name).read_text() != text]
    assert differing == [], "run `make docs`, look at the difference, and commit it"


def test_the_component_on_kubernetes_has_the_rules_and_dashboards_of_the_local_fleet() -> None:
    differing = [name for name, text in component_files().items() if (COMPONENT / name).read_text() != text]
    assert differing == [], "run `make docs`, look at the difference, and commit it"


def test_the_console_has_the_runbooks_of_the_docs() -> None:
    assert RUNBOOKS_FILE.read_text() == runbooks_json(), "run `make docs`, look at the difference, and commit it"


def test_reference_folder_has_no_stale_file(written: dict[str, str]) -> None:
    found = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()}
    assert found == {*written, "README.md"}


def test_each_data_file_is_linked_from_a_page() -> None:
    linked = {(page.parent / link).resolve() for page in pages() for link in links(page)}
    assert set(data_files()) - linked == set()
    assert len(data_files()) > 20


def test_no_page_is_longer_than_two_thousand_words(written: dict[str, str]) -> None:
    words = {name: len(text.split()) for name, text in written.items() if name.endswith(".md")}
    assert {name: count for name, count in words.items() if count > 2000} == {}


def test_data_files_have_every_setting() -> None:
    rows = [
        row for one in classes() for row in column(settings.file_of(one), "variable", "default", "takes", "meaning")
    ]
    assert {variable for variable, *_ in rows} == variables()
    assert [row for row in rows if not all(row)] == []


def test_data_files_have_every_metric() -> None:
    for process in ("gateway", "registry", "replica", "replica/adapter_cache", "controller"):
        rows = column(metrics.file_of(process), "metric", "kind", "meaning")
        assert [name for name, *_ in rows] == [family.name for family in families(process)]
        assert [row for row in rows if not all(row)] == []


@pytest.mark.parametrize("process", ["gateway", "registry"])
def test_page_and_data_file_have_every_error_code(process: str) -> None:
    rows = set(column(errors.file_of(process), "status", "code", "message"))
    page = (FOLDER / "errors.md").read_text()
    for (status, code), messages in errors.documented(process).items():
        assert {message for *key, message in rows if key == [str(status), code]} >= {text for text in messages if text}
        assert (str(status), code) in {(each, name) for each, name, _ in rows}
        assert re.search(rf"^\| {status} \|.*`{code}`", page, re.MULTILINE), code


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_data_file_has_every_field_of_a_route(route: Route) -> None:
    rows = column(fields.file_of(route), "field", "rule")
    assert {name for name, _ in rows} == {"model", *route.table(Limits()).rules}
    assert {rule for _, rule in rows} <= {"passes", "consumed", "refused"}


def test_pages_have_every_route() -> None:
    for name, document in (("gateway-http.md", gateway_document()), ("registry-http.md", registry_document())):
        page = (FOLDER / name).read_text()
        routes = [f"{method} {path}" for method, path, _ in operations(document)]
        assert [route for route in routes if f"| `{route}` |" not in page] == []
        assert len(routes) > 30


def test_each_kind_has_a_page_that_the_list_links() -> None:
    listed = set(links(FOLDER / "kinds.md"))
    assert [name for _, name in KINDS if kinds.file_of(name) not in listed] == []


def exposed(registry: CollectorRegistry) -> set[str]:
    """Return metric names as Prometheus shows them."""
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
    for page in (*pages(), *data_files()):
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
    """A variable in a page is a setting of a process, or code, a test or the Makefile reads it."""
    read = "\n".join(
        path.read_text()
        for folder in ("functions", "tests", "loadtests")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "test_reference.py"
    )
    read += (ROOT / "Makefile").read_text()
    known = variables() | set(re.findall(r"SHOAL_[A-Z0-9_]+[A-Z0-9]", read))
    for page in (*pages(), *data_files()):
        if page.name == "CHANGELOG.md":  # it also names removed settings
            continue
        named = set(re.findall(r"(?<![A-Z_])SHOAL_[A-Z0-9_]+[A-Z0-9](?![A-Z0-9_…{*])", page.read_text()))
        assert named - known == set(), page


def test_commands_say_what_they_do() -> None:
    assert [command.name for command in commands() if not command.help] == []
    assert {"shoal up", "shoal rollout watch", "shoal simulate fleet"} <= {command.name for command in commands()}


def test_page_has_every_command_and_data_file_every_option() -> None:
    page, rows = (FOLDER / "commands.md").read_text(), column("commands.csv", "command", "argument or option")
    for command in commands():
        assert f"`{command.usage}`".replace("|", "\\|") in page
        documented = {word for name, spelled in rows if name == command.name for word in re.split(r",? ", spelled)}
        assert command.options <= documented


def test_refusals_of_both_services_are_found() -> None:
    gateway, registry = refusals("gateway"), refusals("registry")
    assert {(404, "model_not_found"), (429, "rate_limit_exceeded"), (503, "overloaded")} <= set(gateway)
    assert gateway[503, "no_capacity"] == ["The pool {pool} has no replica ready. Try again shortly."]
    assert {(401, "invalid_key"), (409, "epoch_taken")} <= set(registry)
    database_and_artifacts = {(409, "key_exists"), (404, "version_not_found"), (422, "artifact_refused")}
    assert database_and_artifacts <= set(errors.documented("registry"))
