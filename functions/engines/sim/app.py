"""The FastAPI application: its routes, and the conversion of a Refusal into a response."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import JSONResponse, Response

from functions.engines.sim.generation_routes import dialect_routes, generation_routes
from functions.engines.sim.guards import CommonHeaders, FaultGate
from functions.engines.sim.parts import EngineParts
from functions.engines.sim.plain_routes import (
    VLLM_VERSION,
    adapter_routes,
    fault_routes,
    sleep_routes,
    status_routes,
    tokenizer_routes,
)
from functions.engines.sim.pooling_routes import pooling_routes
from functions.engines.sim.refusals import EngineRefusal, malformed

# Schema errors in vLLM's form: a count, then one pydantic error per line, bounded, without pydantic's inner names.


_MAX_ERRORS = 10
_MAX_INPUT_CHARS = 200
_MAX_ERROR_CHARS = 1000
_INNER = frozenset(
    {"function-wrap", "function-after", "function-before", "json-or-python", "lax-or-strict", "nullable", "union"}
    | {"str", "int", "float", "bool", "bytes", "list", "tuple", "dict", "set", "none"}
)


def refusal_of(errors: Sequence[Any]) -> EngineRefusal:
    label = "error" if len(errors) == 1 else "errors"
    lines = "".join(f"  {_line(error)}\n" for error in errors[:_MAX_ERRORS])
    more = f"  ...and {len(errors) - _MAX_ERRORS} more {label}\n" if len(errors) > _MAX_ERRORS else ""
    message = f"{len(errors)} validation {label}:\n{lines}{more}".strip()
    return malformed(message, param=_param(errors))


def _param(errors: Sequence[Any]) -> str | None:
    first = errors[0] if errors else None
    return _dotted(first["loc"]) if isinstance(first, Mapping) and first.get("loc") else None


def _line(error: Any) -> str:
    if not isinstance(error, Mapping):
        return str(error)[:_MAX_ERROR_CHARS]
    shown = dict(error)
    shown["loc"] = _dotted(error.get("loc", ()))
    if "input" in shown:
        shown["input"] = _shortened(shown["input"])
    text = str(shown)
    return text if len(text) <= _MAX_ERROR_CHARS else text[:_MAX_ERROR_CHARS] + "...[truncated]"


def _shortened(value: object) -> object:
    if isinstance(value, list | tuple | set | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    if isinstance(value, bytes):
        return f"<bytes of {len(value)} bytes>"
    text = str(value)
    return text if len(text) <= _MAX_INPUT_CHARS else text[:_MAX_INPUT_CHARS] + "...[truncated]"


def _dotted(loc: Sequence[object]) -> str:
    outer = [str(part) for part in loc if not _is_inner(str(part))]
    return ".".join(outer or map(str, loc))


def _is_inner(part: str) -> bool:
    """Return True for pydantic's internal names: schema kinds, union branches, body classes. vLLM hides its own."""
    return part.lower() in _INNER or part.endswith("Body") or any(char in "[](){}" for char in part)


def build_app(parts: EngineParts) -> FastAPI:
    app = FastAPI(title="shoal simulated engine", version=VLLM_VERSION, docs_url=None, redoc_url=None)
    generates = parts.settings.task == "generate"
    answering = (generation_routes, dialect_routes) if generates else (pooling_routes,)
    routers = [*answering, status_routes, tokenizer_routes, fault_routes]
    if parts.settings.lora_routes:
        routers.append(adapter_routes)
    if parts.settings.dev_routes:
        routers.append(sleep_routes)
    for router in routers:  # `include_router` would build each route again, and once more at its first request
        app.router.routes.extend(router(parts).routes)
    app.add_exception_handler(EngineRefusal, _refused)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_middleware(CommonHeaders, request_ids=parts.settings.request_id_headers)
    app.add_middleware(FaultGate, faults=parts.faults)
    return app


async def _refused(request: Request, error: Exception) -> Response:
    refusal = cast(EngineRefusal, error)
    return JSONResponse(refusal.body(), status_code=refusal.status)


async def _malformed(request: Request, error: Exception) -> Response:
    refusal = refusal_of(cast(RequestValidationError, error).errors())
    return await _refused(request, refusal)
