"""Error responses in OpenAI's error format, with messages that tell the caller what to do."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 409: "conflict_error"}
_HINTS = {
    404: "there is no such route; GET /openapi.json lists all routes",
    405: "this route does not support that method; GET /openapi.json lists its methods",
}


@dataclass(eq=False)
class ApiError(Exception):
    """A rejected request. `code` is for programs, `message` for people."""

    status: int
    code: str
    message: str
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def error_body(status: int, code: str | None, message: str, param: str | None = None) -> dict[str, Any]:
    type_ = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": type_, "param": param, "code": code}}


def install_error_handlers(app: FastAPI) -> None:
    """Make the app answer its own and the framework's errors in the one format, and unforeseen exceptions with 500."""
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RequestValidationError, _invalid_parameters)
    app.add_exception_handler(HTTPException, _framework_error)
    app.add_exception_handler(Exception, _unforeseen)


async def _api_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    body = error_body(error.status, error.code, error.message, error.param)
    return JSONResponse(body, error.status, headers=dict(error.headers))


async def _invalid_parameters(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    param = str(first["loc"][-1])
    message = f"the parameter {param} is invalid: {first['msg'][:1].lower()}{first['msg'][1:]}"
    return JSONResponse(error_body(400, "invalid_parameter", message, param), 400)


async def _framework_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    message = _HINTS.get(error.status_code, str(error.detail))
    return JSONResponse(error_body(error.status_code, None, message), error.status_code, headers=error.headers)


async def _unforeseen(_: Request, __: Exception) -> JSONResponse:
    """Answer 500. The request envelope logs the error with the request's id."""
    message = "the registry failed on this request; look for its x-request-id in the registry's log"
    return JSONResponse(error_body(500, "internal_error", message), 500)
