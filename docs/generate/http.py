"""Routes of gateway and registry, as their own `/openapi.json` describes them, and the headers."""

from collections.abc import Iterable, Iterator

from docs.generate import fields
from docs.generate.markdown import code, page, sentence, table
from docs.generate.openapi import Schema, bodies, gateway_document, operations, registry_document, type_of
from functions.gateway.limits import Limits
from functions.gateway.openapi import headers
from functions.gateway.openapi.headers import HttpHeader

_GATEWAY = (
    "This page is for developers of clients. It lists the gateway's routes with their query parameters and request "
    "bodies. Locally the gateway is at `https://localhost:8443`. `GET /openapi.json` returns the same, with the "
    "schemas of responses, for OpenAPI tools.\n\n"
    "[The gateway's API](../explanation/api.md) explains the routes; see also [Headers](headers.md) and "
    "[Error codes](errors.md).\n\n"
    "A JSON body has at most {body} MiB, {depth} levels and {values} values. A field with the value null counts as "
    "absent. The fields of each model route are in a CSV file; [Fields of requests](fields.md) explains them. Routes "
    "of files and batches exist if the gateway has an object store."
)
_REGISTRY = (
    "This page is for operators and for developers of tools. It lists the registry's routes for models, versions, "
    "channels, rollouts, artifacts, keys and the audit log, with their query parameters and request bodies. Locally "
    "the registry is at `https://localhost:8444`. `GET /openapi.json` returns the same, with the schemas of "
    "responses; it describes routes below `/internal` only to holders of the internal token. "
    "[The registry](../explanation/registry.md) says which credential each route needs, and "
    "[Error codes](errors.md) lists the errors."
)
_HEADERS = (
    "This page is for developers of clients. It lists the headers that the gateway reads and those that it sends. "
    "Names are case-insensitive. A request that repeats one of these headers is rejected."
)


def gateway_files() -> dict[str, str]:
    """Return the page of the gateway's routes."""
    limits = Limits()
    about = _GATEWAY.format(body=limits.body_bytes >> 20, depth=limits.json_depth, values=f"{limits.json_values:,}")
    return {"gateway-http.md": _page("The gateway's HTTP API", about, gateway_document())}


def registry_files() -> dict[str, str]:
    """Return the page of the registry's routes."""
    return {"registry-http.md": _page("The registry's HTTP API", _REGISTRY, registry_document())}


def headers_files() -> dict[str, str]:
    """Return the page of headers."""
    groups: tuple[tuple[str, Iterable[HttpHeader]], ...] = (
        ("Requests", headers.REQUEST),
        ("All responses", headers.ALWAYS),
        ("Responses of models", headers.SERVED),
        ("Responses of models to a tenant with limits", headers.QUOTA),
        ("Errors", headers.REFUSED),
        ("Content of a file", headers.FILE_CONTENT),
    )
    parts = (f"## {title}\n\n" + table(("header", "takes", "meaning"), _header_rows(of)) for title, of in groups)
    return {"headers.md": page("Headers", _HEADERS, *parts)}


def _header_rows(of: Iterable[HttpHeader]) -> Iterator[tuple[str, str, str]]:
    return ((code(header.name), type_of(header.schema), header.meaning) for header in of)


def _page(title: str, about: str, document: Schema) -> str:
    models = fields.files_by_route() if document is gateway_document() else {}
    routes = [
        (
            code(f"{method} {path}"),
            _summary(operation),
            _parameters(f"{method} {path}", operation, models),
            _statuses(operation),
        )
        for method, path, operation in operations(document)
    ]
    shown = [
        (code(route), "form" if media.startswith("multipart/") else "JSON", "; ".join(_body(schema)))
        for route, media, schema in bodies(document)
        if route not in models
    ]
    return page(
        title,
        about,
        "## Routes\n\n" + table(("route", "does", "parameters", "statuses"), routes),
        "## Request bodies\n\n" + table(("route", "format", "fields"), shown),
    )


def _summary(operation: Schema) -> str:
    return sentence(operation.get("description") or operation.get("summary", ""))


def _parameters(route: str, operation: Schema, models: dict[str, str]) -> str:
    query = [
        f"{code(each['name'])} ({type_of(each['schema'])})"
        for each in operation.get("parameters", ())
        if each.get("in") == "query"
    ]
    return f"[fields]({models[route]})" if route in models else ", ".join(query)


def _statuses(operation: Schema) -> str:
    good = [status for status in operation["responses"] if status.startswith("2")]
    return ", ".join(good) + (", streams" if _streams(operation) else "")


def _streams(operation: Schema) -> bool:
    return "text/event-stream" in operation["responses"].get("200", {}).get("content", {})


def _body(schema: Schema) -> Iterator[str]:
    for name, field in schema["properties"].items():
        needed = " **required**" if name in schema.get("required", ()) else ""
        default = f" default {code(str(field['default']))}" if field.get("default") not in (None, "") else ""
        yield f"{code(name)}{needed} ({type_of(field)}){default}"
