"""`GET /openapi.json`: the routes that tenants, operators and followers call; with the internal token, all.

Routes below /internal are between the platform's own processes and change with them, so strangers are not told.
FastAPI makes the document of the routes; added are the bearer token, and the shape that every error has.
"""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request

from functions.registry.errors import ApiError

PATH = "/openapi.json"
_INTERNAL = "/internal/"
_OPEN = {"/healthz", "/readyz", "/metrics"}  # for everyone who can reach the registry
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
_REFUSED = {
    "description": "Refused: `message` says what to do, `code` is for programs",
    "headers": {"x-request-id": {"description": "The request's id.", "schema": _TEXT}},
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}


def install(app: FastAPI, require_token: Callable[[Request], None]) -> None:
    """Adds the route; `require_token` raises ApiError for whoever does not show the internal token."""

    @app.get(PATH, include_in_schema=False)
    async def openapi(request: Request) -> dict[str, Any]:
        try:
            require_token(request)
        except ApiError:
            return public(app)
        return whole(app)


def public(app: FastAPI) -> dict[str, Any]:
    made = whole(app)
    return made | {"paths": {path: methods for path, methods in made["paths"].items() if _INTERNAL not in path}}


def whole(app: FastAPI) -> dict[str, Any]:
    made = app.openapi()
    if "securitySchemes" in made.get("components", {}):  # FastAPI keeps what it has made
        return made
    components = made.setdefault("components", {})
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    components.setdefault("schemas", {})["Error"] = _ERROR
    for path, methods in made["paths"].items():
        for operation in methods.values():
            operation["responses"].pop("422", None)  # parameters that are wrong are refused with 400, as all errors are
            operation["responses"]["default"] = _REFUSED
            operation["security"] = [] if path in _OPEN else [{"token": []}]
    for unused in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(unused, None)
    return made
