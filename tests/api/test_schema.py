"""The checked-in schemas are current, the editor schema agrees with the loader, and CRDs are structural."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from functions.api.kinds.catalogue import KINDS, OUR_KINDS
from functions.api.kinds.quota_policy import QuotaPolicy
from functions.api.schema.crd import crd, crds, file_name
from functions.api.schema.editor import editor_schema, kind_schema
from functions.api.yaml_documents import read_documents
from functions.cli.schema import HEADER, as_yaml
from tests.api.sources import FILES, ROOT, demo_files

CRDS = ROOT / "manifests" / "base" / "crds"
FLEET = [
    file for folder in ("inferenceservices", "policies", "registry") for file in (ROOT / folder / "fleet").glob("*")
]
EDITOR = Draft7Validator(editor_schema())


def test_the_checked_in_definitions_are_current() -> None:
    current = {name: HEADER + as_yaml(document) for name, document in crds().items()}
    found = {file.name: file.read_text() for file in CRDS.glob("shoal.dev_*.yaml")}
    assert found == current, "run `shoal schema --crd --write manifests/base/crds`"


def test_the_editors_schema_is_a_schema() -> None:
    Draft7Validator.check_schema(editor_schema())
    for _, name in KINDS:
        Draft7Validator.check_schema(kind_schema(name))


def _loaded_like_an_editor(text: str) -> Iterator[Any]:
    """Yield documents with scalars resolved as by the loader: numbers are numbers and dates are text."""
    return (written.value for written in read_documents("f", text.encode()).documents)


SOUND = [*FILES.values(), *demo_files().values(), *(file.read_text() for file in FLEET)]


@pytest.mark.parametrize("text", SOUND)
def test_what_the_loader_takes_the_editor_takes(text: str) -> None:
    for document in _loaded_like_an_editor(text):
        assert [error.message for error in EDITOR.iter_errors(document)] == []


WRONG = [
    ("tier: enterprise", "teir: enterprise", "teir"),
    ("maxClass: interactive", "maxClass: interactiv", "interactiv"),
    ("expires: 2027-06-30", "expires: 5", "5"),
    ("id: ci", "id: c_i", "c_i"),
]


@pytest.mark.parametrize(("old", "new", "says"), WRONG)
def test_an_editor_complains_about_the_kind_that_was_meant(old: str, new: str, says: str) -> None:
    text = FILES["policies/tenants.yaml"].replace(old, new, 1)
    errors = [error for document in _loaded_like_an_editor(text) for error in EDITOR.iter_errors(document)]
    assert errors
    assert all(says in error.message or "required" in error.message for error in errors)


def test_an_editor_leaves_other_kinds_alone() -> None:
    assert list(EDITOR.iter_errors({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": 1}})) == []


def test_every_setting_has_a_description_for_people() -> None:
    bare = [
        f"{kind.__name__}.{path}"
        for kind in OUR_KINDS
        for path, node in _settings(crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"])
        if "description" not in node
    ]
    assert bare == []


def _settings(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, part in node.get("properties", {}).items():
        yield f"{path}{name}", part
        yield from _settings(part, f"{path}{name}.")


FORBIDDEN = {"$ref", "definitions", "title", "const", "oneOf", "anyOf", "patternProperties", "propertyNames", "default"}


@pytest.mark.parametrize("kind", OUR_KINDS, ids=[kind.__name__ for kind in OUR_KINDS])
def test_definitions_are_structural(kind: Any) -> None:
    schema = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for path, node in _nodes(schema, ""):
        assert "type" in node, path
        assert not FORBIDDEN & node.keys(), path
        assert node.get("additionalProperties") is not False, path
        assert not ("additionalProperties" in node and "properties" in node), path


def _nodes(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every schema within a schema, with its path."""
    yield path, node
    for name, part in node.get("properties", {}).items():
        yield from _nodes(part, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from _nodes(node[key], f"{path}.{key}")


def test_the_definitions_have_what_the_controller_writes_and_kubectl_shows() -> None:
    for kind in OUR_KINDS:
        definition = crd(kind)
        (version,) = definition["spec"]["versions"]
        assert version["subresources"] == {"status": {}}
        columns = [column["name"] for column in version["additionalPrinterColumns"]]
        assert columns[-3:] == ["Ready", "Reason", "Age"]
        assert definition["metadata"]["name"] == f"{definition['spec']['names']['plural']}.shoal.dev"
    assert file_name("QuotaPolicy") == "shoal.dev_quotapolicies.yaml"
    assert file_name("Model") == "shoal.dev_models.yaml"


def test_exclusive_bounds_are_written_as_openapi_3_0_has_them() -> None:
    spec = crd(QuotaPolicy)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    weight = spec["properties"]["weight"]
    assert (weight["minimum"], weight["exclusiveMinimum"]) == (0, True)
    assert weight["description"].endswith("Default: 1.0.")


def test_the_files_are_plain_yaml_without_anchors() -> None:
    for name, document in crds().items():
        text = as_yaml(document)
        assert "&id" not in text, name
        assert json.loads(json.dumps(yaml.safe_load(text))) == document
        assert not any(line.endswith(" ") for line in text.splitlines()), name


def test_fleet_files_are_there() -> None:
    assert {Path(file).suffix for file in FLEET} == {".yaml"}
    assert len(FLEET) >= 10
