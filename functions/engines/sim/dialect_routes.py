"""POST /v1/responses, /v1/messages and /v1/messages/count_tokens."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from functions.engines.sim.accept import Work, spoken
from functions.engines.sim.dialects import (
    MessageEvents,
    MessagesBody,
    ResponseEvents,
    ResponsesBody,
    whole_message,
    whole_response,
)
from functions.engines.sim.generation_routes import answer, envelope_of
from functions.engines.sim.guards import json_only
from functions.engines.sim.parts import Parts
from functions.engines.sim.progress import Progress
from functions.engines.sim.protocol import ChatBody
from functions.engines.sim.refusals import Refusal


def dialect_routes(parts: Parts) -> APIRouter:
    router = APIRouter(dependencies=[Depends(json_only)])
    _add_responses(router, parts)
    _add_messages(router, parts)
    return router


def _add_responses(router: APIRouter, parts: Parts) -> None:
    @router.post("/v1/responses")
    async def responses(body: ResponsesBody, request: Request) -> Response:
        chat = body.as_chat()
        work = _accepted(parts, chat, request)
        envelope = envelope_of(parts, work, chat, request, "resp")

        def whole(replies: Sequence[Progress]) -> dict[str, Any]:
            return whole_response(envelope, body, work.prompt_tokens, replies)

        return await answer(parts, request, work, ResponseEvents(envelope, body) if body.stream else whole)


def _add_messages(router: APIRouter, parts: Parts) -> None:
    @router.post("/v1/messages")
    async def messages(body: MessagesBody, request: Request) -> Response:
        try:
            chat = body.as_chat()
            work = _accepted(parts, chat, request)
        except Refusal as refusal:
            return _refused(refusal)
        envelope = envelope_of(parts, work, chat, request, "chatcmpl")

        def whole(replies: Sequence[Progress]) -> dict[str, Any]:
            return whole_message(envelope, work.prompt_tokens, replies)

        return await answer(parts, request, work, MessageEvents(envelope) if body.stream else whole)

    @router.post("/v1/messages/count_tokens")
    async def count_tokens(body: MessagesBody) -> Response:
        try:
            parts.acceptor.find_model(body.model)
            turns = spoken(body.as_chat().messages)
            text = parts.acceptor.render(turns, add_generation_prompt=True, tools=None)
        except Refusal as refusal:
            return _refused(refusal)
        return JSONResponse({"input_tokens": len(parts.acceptor.prompt_of(text).ids)})


def _accepted(parts: Parts, chat: ChatBody, request: Request) -> Work:
    parts.acceptor.find_model(chat.model)
    parts.engine.check_admission(1)
    return parts.acceptor.chat(chat, request.headers)


def _refused(refusal: Refusal) -> Response:
    error = {"type": refusal.kind, "message": refusal.message}
    return JSONResponse({"type": "error", "error": error}, status_code=refusal.status)
