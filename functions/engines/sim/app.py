"""The FastAPI application: routes, and the one place where a Refusal becomes a response."""

from typing import cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import JSONResponse, Response

from functions.engines.sim.adapter_routes import adapter_routes
from functions.engines.sim.dialect_routes import dialect_routes
from functions.engines.sim.generation_routes import generation_routes
from functions.engines.sim.guards import CommonHeaders, FaultGate
from functions.engines.sim.parts import Parts
from functions.engines.sim.plain_routes import VLLM_VERSION, fault_routes, status_routes, tokenizer_routes
from functions.engines.sim.pooling_routes import pooling_routes
from functions.engines.sim.refusals import Refusal
from functions.engines.sim.schema_errors import refusal_of
from functions.engines.sim.sleep_routes import sleep_routes


def build_app(parts: Parts) -> FastAPI:
    app = FastAPI(title="shoal simulated engine", version=VLLM_VERSION, docs_url=None, redoc_url=None)
    generates = parts.settings.task == "generate"
    answering = (generation_routes, dialect_routes) if generates else (pooling_routes,)
    for router in (*answering, status_routes, tokenizer_routes, fault_routes):
        app.include_router(router(parts))
    if parts.settings.lora_routes:
        app.include_router(adapter_routes(parts))
    if parts.settings.dev_routes:
        app.include_router(sleep_routes(parts))
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_middleware(CommonHeaders, request_ids=parts.settings.request_id_headers)
    app.add_middleware(FaultGate, faults=parts.faults)
    return app


async def _refused(request: Request, error: Exception) -> Response:
    refusal = cast(Refusal, error)
    return JSONResponse(refusal.body(), status_code=refusal.status)


async def _malformed(request: Request, error: Exception) -> Response:
    refusal = refusal_of(cast(RequestValidationError, error).errors())
    return await _refused(request, refusal)
