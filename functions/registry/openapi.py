"""The registry's OpenAPI document: FastAPI's description of the routes, with the errors that each may answer.

Without the internal token, internal routes are left out. Neighbours: `app` has the routes, `errors` the error format.
"""

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request

from functions.registry.errors import ApiError

PATH = "/openapi.json"
_INTERNAL = "/internal/"
_OPEN = {"/healthz", "/readyz", "/metrics"}  # no credential needed
_TEXT = {"type": "string"}
_MAYBE = {"type": ["string", "null"]}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {"message": _TEXT, "type": _TEXT, "param": _MAYBE, "code": _MAYBE},
        }
    },
}
_MEANINGS = {
    400: "Malformed, or a parameter or field out of range",
    401: "The key or token is missing, malformed, unknown, revoked or expired",
    403: "The key lacks the scope, or the route belongs to the operator or another role",
    404: "Does not exist, or belongs to another tenant",
    408: "Head or body arrived too slowly",
    409: "Not allowed in this state, already exists, or over a limit",
    412: "Changed since the caller read it",
    413: "The body is over the limit",
    415: "The route does not accept this media type",
    422: "The artifact cannot be served",
    429: "Too many requests: try again after `retry-after`",
    431: "Headers are over the limits",
    500: "The registry failed",
    503: "At a limit, or without its database or store: try again after `retry-after`",
}
_ANY_REQUEST = (400, 408, 431, 500, 503)  # from the listener, or from what every route depends on
_BY_ROLE_ALONE = ("/v1/snapshot", "/v1/fleet", "/internal/v1/swarm")  # tenants' keys are not accepted here
_BRINGS_ARTIFACTS = {"/v1/artifacts", "/v1/models/{tenant}/{name}/versions/{version}"}

_ALSO_ANSWERED = {
    ("put", "/v1/models/{tenant}/{name}/versions/{version}"): {
        "201": {"description": "Registered; 200: it existed already"}
    },
    ("post", "/v1/models/{tenant}/{name}/channels/{channel}"): {"202": {"description": "A rollout moves the channel"}},
    ("post", "/v1/artifacts"): {"200": {"description": "The tenant had this content before"}},
}


def install_document(app: FastAPI, require_token: Callable[[Request], None]) -> None:
    """Add the route of the OpenAPI document. Requests that `require_token` rejects by raising ApiError get the public
    part, all others the whole."""

    @app.get(PATH, include_in_schema=False)
    async def openapi(request: Request) -> dict[str, Any]:
        try:
            require_token(request)
        except ApiError:
            return public_document(app)
        return whole_document(app)


def public_document(app: FastAPI) -> dict[str, Any]:
    made = whole_document(app)
    return made | {"paths": {path: methods for path, methods in made["paths"].items() if _INTERNAL not in path}}


def whole_document(app: FastAPI) -> dict[str, Any]:
    made = app.openapi()
    if "securitySchemes" in made.get("components", {}):  # FastAPI returns the same document again
        return made
    components = made.setdefault("components", {})
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    components.setdefault("schemas", {})["Error"] = _ERROR
    for path, methods in made["paths"].items():
        for method, operation in methods.items():
            operation["responses"].pop("422", None)  # invalid parameters answer 400, like all errors
            operation["responses"] |= _ALSO_ANSWERED.get((method, path), {})
            for status in refusals_of(method, path, operation):
                operation["responses"][str(status)] = _refused(status) | operation["responses"].get(str(status), {})
            operation["security"] = [] if path in _OPEN else [{"token": []}]
    for unused in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(unused, None)
    return made


def refusals_of(method: str, path: str, operation: Mapping[str, Any]) -> list[int]:
    """Return all error statuses that this route may answer, in order (test_no_request_causes_an_internal_error)."""
    found = set(_ANY_REQUEST)
    if path not in _OPEN:
        found |= {401, 403}
        if not path.startswith(_BY_ROLE_ALONE):
            found.add(429)
    if method in ("put", "post", "delete"):
        found |= {404, 409}
    if method in ("put", "post"):
        found |= {413, 415}
    if "{" in path:
        found.add(404)
    if path == "/v1/snapshot" or any(one["name"] == "if-match" for one in operation.get("parameters", ())):
        found.add(412)
    if path in _BRINGS_ARTIFACTS:
        found.add(422)
    return sorted(found)


def _refused(status: int) -> dict[str, Any]:
    return {
        "description": _MEANINGS[status],
        "headers": {"x-request-id": {"description": "The request's id.", "schema": _TEXT}},
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
