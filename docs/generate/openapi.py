"""The OpenAPI documents of gateway and registry, and what their schemas say in a few words."""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
from starlette.types import ASGIApp

from docs.generate.markdown import number
from functions.fleet.bus import Bus
from functions.fleet.role_credentials import RoleCredentials
from functions.gateway.assembly import make_services
from functions.gateway.batch import routes as batch_routes
from functions.gateway.chat.composition.composer import Composer
from functions.gateway.gateway import Gateway
from functions.gateway.http import asgi as gateway_app
from functions.gateway.limits import Limits
from functions.gateway.metrics import Metrics
from functions.gateway.registry_routes import RegistryForwarding
from functions.registry import app as registry_app
from functions.registry.fleet_watch import FleetWatch
from functions.registry.parts import Secrets, parts_from
from functions.registry.regions.parts import region_parts
from functions.registry.settings import RegistrySettings
from functions.registry.store import SnapshotStore

Schema = dict[str, Any]

_TOKEN = "token-of-the-reference"  # for an application in this process that answers one request


@cache
def gateway_document() -> Schema:
    """Return the OpenAPI document of a gateway with all of its parts."""
    services = make_services(pepper=b"", limits=Limits(), metrics=Metrics(), clock=time.monotonic, wall_clock=time.time)
    offered: Any = SimpleNamespace(services=services)  # routes are described, none is called
    parts = (
        partial(Composer.add_routes, offered),
        partial(batch_routes.add_routes, offered),
        RegistryForwarding(services, httpx.AsyncClient()).add_routes,
    )
    return _document(gateway_app.make_app(Gateway(services), parts))


@cache
def registry_document() -> Schema:
    """Return the OpenAPI document of a registry that is one of several regions."""
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
    return document


def _document(app: ASGIApp) -> Schema:
    async def request() -> Schema:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://reference") as client:
            response = await client.get("/openapi.json")
            return dict(response.raise_for_status().json())

    return asyncio.run(request())


def operations(document: Schema) -> Iterator[tuple[str, str, Schema]]:
    """Yield method, path and description of every route."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def bodies(document: Schema) -> Iterator[tuple[str, str, Schema]]:
    """Yield route, media type and schema of every request body that has fields."""
    for method, path, operation in operations(document):
        for media, content in operation.get("requestBody", {}).get("content", {}).items():
            if content.get("schema", {}).get("properties"):
                yield f"{method} {path}", media, content["schema"]


def type_of(schema: Schema) -> str:
    """Return the type of a value with its bounds, in a few words."""
    if "anyOf" in schema:
        kinds = [type_of(one) for one in schema["anyOf"] if one.get("type") != "null"]
        return ", or ".join(dict.fromkeys(kind for kind in kinds if kind))
    if "enum" in schema:
        return "one of " + ", ".join(str(one) for one in schema["enum"])
    if "const" in schema:
        return f"only {str(schema['const']).lower()}"
    if schema.get("format") == "binary":
        return "file"
    if schema.get("type") == "null":
        return "" if "description" in schema else "null"
    kind = schema.get("type", "anything")
    named = " or ".join(one for one in (kind if isinstance(kind, list) else [kind]) if one != "null")
    return (_array(schema) if named == "array" else named) + _bounds(schema)


def _array(schema: Schema) -> str:
    kind = type_of(schema.get("items", {}))
    return f"array of {kind}s" if kind.isalpha() else f"array of ({kind})"


def _bounds(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f", {number(low)} to {number(high)}"
    if low is not None:
        return f", at least {number(low)}"
    most = schema.get("maxItems") or schema.get("maxLength")
    unit = " items" if schema.get("maxItems") else " characters"
    return f", at most {most:,}{unit}" if most else ""
