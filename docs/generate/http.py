"""Routes of gateway and registry, as their own `/openapi.json` describes them, and the headers."""

import asyncio
import tempfile
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
from starlette.types import ASGIApp

from docs.generate.markdown import code, number, page, sentence, table
from functions.fleet.bus import Bus
from functions.fleet.role_credentials import RoleCredentials
from functions.gateway.assembly import make_services
from functions.gateway.batch import routes as batch_routes
from functions.gateway.chat.composition.composer import Composer
from functions.gateway.gateway import Gateway
from functions.gateway.http import asgi as gateway_app
from functions.gateway.limits import Limits
from functions.gateway.metrics import Metrics
from functions.gateway.openapi import headers
from functions.gateway.openapi.headers import HttpHeader
from functions.gateway.registry_routes import RegistryForwarding
from functions.registry import app as registry_app
from functions.registry.fleet_watch import FleetWatch
from functions.registry.parts import Secrets, parts_from
from functions.registry.regions.parts import region_parts
from functions.registry.settings import RegistrySettings
from functions.registry.store import SnapshotStore

Schema = dict[str, Any]

_TOKEN = "token-of-the-reference"  # of an application that answers one request, here
_GATEWAY = (
    "Clients' endpoint: `https://localhost:8443` locally. `GET /openapi.json` has all of this with the schemas of "
    "answers, for any OpenAPI tool; files and batches are there where the gateway has a store. A body is one JSON "
    "object of at most {body} MiB, {depth} levels and {values} values; what becomes of each field, and of those that "
    "nobody knows, is in [Fields of requests](fields.md), and null means absent. "
    "What the routes mean is in [The gateway's API](../explanation/api.md), "
    "headers are in [Headers](headers.md), refusals in [Error codes](errors.md)."
)
_REGISTRY = (
    "Models, versions, channels, rollouts, artifacts, keys and the audit: `https://localhost:8444` locally. "
    "`GET /openapi.json` has all of this with the schemas of bodies; routes below `/internal` are the platform's own, "
    "and described to holders of the internal token only. Who may call what is in "
    "[The registry](../explanation/registry.md), refusals are in [Error codes](errors.md)."
)


def gateway_page() -> str:
    limits = Limits()
    services = make_services(pepper=b"", limits=limits, metrics=Metrics(), clock=time.monotonic, wall_clock=time.time)
    offered: Any = SimpleNamespace(services=services)  # routes are described, none is called
    parts = (
        partial(Composer.add_routes, offered),
        partial(batch_routes.add_routes, offered),
        RegistryForwarding(services, httpx.AsyncClient()).add_routes,
    )
    document = _document(gateway_app.make_app(Gateway(services), parts))
    about = _GATEWAY.format(body=limits.body_bytes >> 20, depth=limits.json_depth, values=f"{limits.json_values:,}")
    bodies = [_body(path, schema) for path, schema in _bodies(document)]
    return page("The gateway's HTTP API", about, _routes(document), "## Bodies", *bodies)


def registry_page() -> str:
    with tempfile.TemporaryDirectory() as folder:
        state_dir = Path(folder)
        settings = RegistrySettings(
            state_dir=state_dir, internal_token_file=state_dir / "token", region="a", regions_file=state_dir / "regions"
        )
        store, fleet = SnapshotStore(state_dir / "snapshot.json"), FleetWatch(cast("Bus", None))
        parts = parts_from(settings, Secrets(RoleCredentials(_TOKEN)), store, fleet)
        regions = region_parts(settings, _TOKEN, None, parts.services)
        made = registry_app.make_app(
            store, fleet, RoleCredentials(_TOKEN), services=parts.services, collecting=parts.collecting, regions=regions
        )
        document = _document(made)
        parts.close()
    bodies = [_body(path, schema) for path, schema in _bodies(document)]
    return page("The registry's HTTP API", _REGISTRY, _routes(document), "## Bodies", *bodies)


def headers_page() -> str:
    about = (
        "Headers that the gateway reads and answers with. Names are case-insensitive; none of these may be given twice."
    )
    groups: tuple[tuple[str, Iterable[HttpHeader]], ...] = (
        ("Requests", headers.REQUEST),
        ("Every answer", headers.ALWAYS),
        ("Answers of models", headers.SERVED),
        ("Answers of models to a tenant with limits", headers.QUOTA),
        ("Refusals", headers.REFUSED),
        ("A file's content", headers.FILE_CONTENT),
    )
    parts = (f"## {title}\n\n" + table(("header", "takes", "meaning"), _header_rows(of)) for title, of in groups)
    return page("Headers", about, *parts)


def _header_rows(of: Iterable[HttpHeader]) -> Iterator[tuple[str, str, str]]:
    return ((code(header.name), _kind(header.schema), header.meaning) for header in of)


def _document(app: ASGIApp) -> Schema:
    async def asked() -> Schema:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://reference") as client:
            answer = await client.get("/openapi.json")
            return dict(answer.raise_for_status().json())

    return asyncio.run(asked())


def _operations(document: Schema) -> Iterator[tuple[str, str, Schema]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def _routes(document: Schema) -> str:
    rows = [
        (code(f"{method} {path}"), _said(operation), ", ".join(_query(operation)), _answers(operation))
        for method, path, operation in _operations(document)
    ]
    return "## Routes\n\n" + table(("route", "does", "query", "answers"), rows)


def _said(operation: Schema) -> str:
    return sentence(operation.get("description") or operation.get("summary", ""))


def _query(operation: Schema) -> Iterator[str]:
    for parameter in operation.get("parameters", ()):
        if parameter.get("in") == "query":
            yield f"{code(parameter['name'])} ({_kind(parameter['schema'])})"


def _answers(operation: Schema) -> str:
    good = [status for status in operation["responses"] if status.startswith("2")]
    return ", ".join(good) + (", streams" if _streams(operation) else "")


def _streams(operation: Schema) -> bool:
    return "text/event-stream" in operation["responses"].get("200", {}).get("content", {})


def _bodies(document: Schema) -> Iterator[tuple[str, Schema]]:
    for method, path, operation in _operations(document):
        for media, content in operation.get("requestBody", {}).get("content", {}).items():
            if content.get("schema", {}).get("properties"):
                form = ", as a form" if media.startswith("multipart/") else ""
                yield f"{method} {path}{form}", content["schema"]


def _body(route: str, schema: Schema) -> str:
    needed = set(schema.get("required", ()))
    rows = [
        (code(name), _kind(field), "**required**" if name in needed else _default(field))
        for name, field in schema["properties"].items()
    ]
    either = [" or ".join(code(name) for name in _names(choice)) for choice in schema.get("allOf", ())]
    more = f"\n\nOf {'; of '.join(either)}, one has to be given." if either else ""
    return f"### {route}\n\n" + table(("field", "takes", "default"), rows) + more


def _names(choice: Schema) -> list[str]:
    return [one["required"][0] for one in choice["anyOf"]]


def _default(field: Schema) -> str:
    return code(str(field["default"])) if field.get("default") is not None else ""


def _kind(schema: Schema) -> str:
    """What a value may be, in a few words."""
    if "anyOf" in schema:
        kinds = [_kind(one) for one in schema["anyOf"] if one.get("type") != "null"]
        return ", or ".join(dict.fromkeys(kind for kind in kinds if kind))
    if "enum" in schema:
        return "one of " + ", ".join(code(str(one)) for one in schema["enum"])
    if "const" in schema:
        return f"only {code(str(schema['const']).lower())}"
    if schema.get("format") == "binary":
        return "file"
    if schema.get("type") == "null":
        return f"refused: {schema['description']}" if "description" in schema else "null"
    kind = schema.get("type", "anything")
    words = [one for one in (kind if isinstance(kind, list) else [kind]) if one != "null"]
    named = " or ".join(words)
    if named == "array":
        named = f"array of {_kind(schema.get('items', {}))}s"
    return named + _bounds(schema)


def _bounds(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f", {number(low)} to {number(high)}"
    if low is not None:
        return f", at least {number(low)}"
    most = schema.get("maxItems") or schema.get("maxLength")
    return f", at most {most:,}" if most else ""
