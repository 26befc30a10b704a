"""/openapi.json of a gateway: every route of its application, bodies as admission checks them, headers as in code."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI
from jsonschema import Draft202012Validator

import functions.gateway
from functions.gateway.batch import routes as batch_routes
from functions.gateway.chat.composition.composer import Composer
from functions.gateway.http.asgi import make_app
from functions.gateway.intake.routes import CHAT, HOT_ROUTES, ROUTES, Route
from functions.gateway.limits import Limits
from functions.gateway.openapi import headers
from functions.gateway.openapi.document import document
from functions.gateway.openapi.requests import body_schema, field_schema
from functions.gateway.registry_routes import RegistryForwarding
from tests.gateway.rig import ACME_KEY, Rig

Schema = dict[str, Any]
LIMITS = Limits()
# Headers that the gateway does not send to clients: those for engines, in batch answers, of proxies and SDKs.
_OTHERS = {"x-vllm-priority", "x-ratelimit-", "x-real-ip"}
_SAMPLES: tuple[Any, ...] = (
    *(True, False, 0, 1, -1, 2, 8, 9, 20, 21, 100, 101, 0.5, 1.5, -2.5, 2**31, 2**63),
    *("", "x", "float", "base64", "little", "x" * 512, "x" * 513, [], {}, [{}], ["x"], [""], [1], [-1], [[1]], [[]]),
    *(["x"] * 5, ["x"] * 129, [1] * 129, [{}] * 129, [{"type": "function"}], {"content": "x"}, {"content": [{}]}),
    *(
        [{"role": "user", "content": "x"}],
        [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
        [{"role": ""}],
    ),
    *([{"role": "user", "content": "x"}] * 2049, {"include_usage": True}, {"50256": -100.0}, [{"type": "message"}]),
)
_EXACT = ("integer", "number", "boolean")  # kinds whose schema is as strict as the check


def served(rig: Rig) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(make_app(rig.gateway)), base_url="https://localhost")


@pytest.fixture
async def paths() -> dict[str, dict[str, Schema]]:
    async with served(Rig()) as client:
        return cast("dict[str, dict[str, Schema]]", (await client.get("/openapi.json")).json()["paths"])


def whole() -> Schema:
    """Return the document with files and batches, offered by a gateway with a store, and the routes to the registry."""
    rig = Rig()
    offered: Any = SimpleNamespace(services=rig.gateway.services)  # routes are added, none is called
    forwarding = RegistryForwarding(rig.gateway.services, httpx.AsyncClient())
    parts = (
        partial(Composer.add_routes, offered),
        partial(batch_routes.add_routes, offered),
        forwarding.add_routes,
    )
    app = make_app(rig.gateway, parts)._app
    assert isinstance(app, FastAPI)
    return document(app, LIMITS)


def parts(of: Any) -> Iterator[Schema]:
    if isinstance(of, dict):
        yield of
        for value in of.values():
            yield from parts(value)
    elif isinstance(of, list):
        for value in of:
            yield from parts(value)


async def test_document_has_every_route(paths: dict[str, dict[str, Schema]]) -> None:
    rig = Rig()
    app = make_app(rig.gateway)._app
    assert isinstance(app, FastAPI)
    offered = {getattr(route, "path_format", route.path) for route in app.routes}  # type: ignore[attr-defined]
    assert set(paths) == offered - {"/openapi.json"}
    for route in HOT_ROUTES:
        assert {"application/json", "text/event-stream"} == set(paths[route]["post"]["responses"]["200"]["content"])


async def test_described_operations_answer_and_require_a_key_as_stated(
    paths: dict[str, dict[str, Schema]],
) -> None:
    async with served(Rig()) as client:
        for path, methods in paths.items():
            for method, operation in methods.items():
                answer = await client.request(method, path.format(model="acme/bot"))
                keyed = operation.get("security") != []
                assert answer.status_code in ((401, 415) if keyed else (200, 503)), (method, path)
                assert str(answer.status_code) in operation["responses"], (method, path)


async def test_document_has_nothing_internal() -> None:
    rig = Rig()
    async with served(rig) as client:
        text = (await client.get("/openapi.json")).text
    assert not [word for word in ("acme", "globex", "/internal", "/metrics", ACME_KEY) if word in text]


def test_document_has_files_and_batches_if_offered() -> None:
    described = {(method, path) for path, methods in whole()["paths"].items() for method in methods}
    assert {("post", "/v1/files"), ("get", "/v1/files/{file_id}/content"), ("post", "/v1/batches")} <= described
    listing = whole()["paths"]["/v1/files"]["get"]["parameters"]
    assert {"after", "purpose", "limit", "order"} <= {one.get("name") for one in listing}


def test_path_parameters_are_described() -> None:
    for path, methods in whole()["paths"].items():
        for method, operation in methods.items():
            named = {part["name"] for part in operation["parameters"] if part.get("in") == "path"}
            assert named == set(re.findall(r"\{(\w+)\}", path)), f"{method} {path}"


def test_references_resolve_and_schemas_are_valid() -> None:
    made = whole()
    for part in parts(made):
        found = made
        for step in part.get("$ref", "#").split("/")[1:]:
            found = found[step]
        if isinstance(part.get("schema"), dict):
            Draft202012Validator.check_schema(part["schema"])
    for schema in made["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    ids = [operation["operationId"] for methods in made["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_field_checks_agree_with_their_schema(route: Route) -> None:
    for name, check in route.table(LIMITS).checks.items():
        schema = field_schema(check)
        validator = Draft202012Validator(schema)
        for value in _SAMPLES:
            takes, says = check(value) is None, validator.is_valid(value)
            assert says or not takes, f"{name} takes {str(value)[:60]!r}, its schema does not"
            if schema.get("type") in _EXACT or "enum" in schema or "const" in schema or "maxLength" in schema:
                assert takes or not says, f"{name} does not take {str(value)[:60]!r}, its schema does"


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_every_field_has_a_type(route: Route) -> None:
    properties = body_schema(route, LIMITS)["properties"]
    assert [name for name, schema in properties.items() if not {"type", "anyOf", "enum", "const"} & set(schema)] == []


def test_required_fields_and_null() -> None:
    validator = Draft202012Validator(body_schema(CHAT, LIMITS))
    chat = {"model": "acme/bot", "messages": [{"role": "user", "content": "hi"}]}
    assert validator.is_valid(chat | {"max_tokens": None, "of_an_engine": 1})
    assert not validator.is_valid({"model": "acme/bot"})
    assert not validator.is_valid(chat | {"messages": None})
    embeddings = next(route for route in ROUTES if route.path == "/v1/embeddings")
    assert not Draft202012Validator(body_schema(embeddings, LIMITS)).is_valid({"model": "acme/bot"})


def test_headers_of_the_code_are_in_the_tables() -> None:
    """Each literal `x-…` header that the gateway's code reads or writes is documented, and no other."""
    files = [path for path in Path(functions.gateway.__path__[0]).rglob("*.py") if path.parent.name != "openapi"]
    source = "\n".join(path.read_text() for path in files)
    named = set(re.findall(r"""b?["'](x-[a-z-]+|retry-after[a-z-]*|server-timing|traceparent)["']""", source))
    named = {name for name in named if not name.startswith("x-stainless") and not name.startswith("x-forwarded")}
    known = {header.name.lower() for header in (*headers.REQUEST, *headers.RESPONSE)}
    assert named - known - _OTHERS == set()
    mentioned = {name for name in known if name.startswith("x-")}
    assert mentioned - named == set()
