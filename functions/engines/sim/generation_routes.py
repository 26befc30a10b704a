"""POST /v1/chat/completions and /v1/completions, and the usage log of what was computed for each answer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from functions.engines.sim.accept import Work, to_chat_messages
from functions.engines.sim.bodies import chat_response, completion_response, full_usage
from functions.engines.sim.chunks import DONE, ChatChunks, Chunks, CompletionChunks, StreamOptions
from functions.engines.sim.dialects import (
    MessageEvents,
    MessagesBody,
    ResponseEvents,
    ResponsesBody,
    whole_message,
    whole_response,
)
from functions.engines.sim.faults import Faults, Malformed
from functions.engines.sim.guards import json_only
from functions.engines.sim.lifecycle import Phase
from functions.engines.sim.parts import EngineParts
from functions.engines.sim.progress import Envelope, Progress
from functions.engines.sim.protocol import ChatBody, CompletionBody, GenerationBody
from functions.engines.sim.refusals import EngineRefusal
from functions.engines.sim.stream import StreamResponse
from functions.engines.sim.whole import BodyOf, generate_whole, html_response, json_response

Note = Callable[[int, Sequence[Progress]], None]


def note_to(path: Path, request_id: str) -> Note:
    """Return a function that writes one line of the usage log for each answer.

        <request id> <prompt tokens> <cached tokens> <completion tokens>

    It is written in the step of the answer's end, as a record of usage that never passed through a gateway.
    """

    def note(prompt_tokens: int, replies: Sequence[Progress]) -> None:
        usage = full_usage(prompt_tokens, replies, details=True, creation=False)
        cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
        with path.open("a") as log:
            log.write(f"{request_id} {prompt_tokens} {cached_tokens} {usage['completion_tokens']}\n")

    return note


class NotedChunks:
    """Stream that writes a usage log line at its end."""

    def __init__(self, chunks: Chunks, note: Note) -> None:
        self._chunks = chunks
        self._note = note

    def opening(self, replies: Sequence[Progress]) -> bytes:
        return self._chunks.opening(replies)

    def tokens(self, reply: Progress, start: int, end: int) -> bytes:
        return self._chunks.tokens(reply, start, end)

    def closing(self, prompt_tokens: int, replies: Sequence[Progress]) -> bytes:
        self._note(prompt_tokens, replies)
        return self._chunks.closing(prompt_tokens, replies)


def noted_body(
    body_of: Callable[[Sequence[Progress]], dict[str, Any]], prompt_tokens: int, note: Note
) -> Callable[[Sequence[Progress]], dict[str, Any]]:
    """Return a function that builds a whole answer and writes its usage log line."""

    def body(replies: Sequence[Progress]) -> dict[str, Any]:
        note(prompt_tokens, replies)
        return body_of(replies)

    return body


def generation_routes(parts: EngineParts) -> APIRouter:
    router = APIRouter(dependencies=[Depends(json_only)])

    @router.post("/v1/chat/completions")
    async def chat(body: ChatBody, request: Request) -> Response:
        parts.acceptor.find_model(body.model)
        parts.engine.check_admission(body.n or 1)
        _refuse_text_while_draining(parts)
        try:
            work = await _with_blocks(parts, body, parts.acceptor.chat(body, request.headers))
        except EngineRefusal as refusal:
            return _refusal_response(refusal, streamed=bool(body.stream))
        envelope = envelope_of(parts, work, body, request, "chatcmpl")
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        chunks = ChatChunks(envelope, replace(_stream_options(parts, body), logprobs=logprobs))

        def whole(replies: Sequence[Progress]) -> dict[str, Any]:
            return chat_response(envelope, body, work.prompt_tokens, replies) | _handed_over(parts, work)

        return await answer(parts, request, work, chunks if body.stream else whole)

    @router.post("/v1/completions")
    async def complete(body: CompletionBody, request: Request) -> Response:
        parts.acceptor.find_model(body.model)
        parts.engine.check_admission(body.n)
        if isinstance(body.prompt, str):
            _refuse_text_while_draining(parts)
        try:
            work = await _with_blocks(parts, body, parts.acceptor.completion(body, request.headers))
        except EngineRefusal as refusal:
            return _refusal_response(refusal, streamed=bool(body.stream))
        envelope = envelope_of(parts, work, body, request, "cmpl")
        options = replace(_stream_options(parts, body), logprobs=body.logprobs, echo=bool(body.echo))

        def whole(replies: Sequence[Progress]) -> dict[str, Any]:
            answered = completion_response(envelope, body, work.prompt_tokens, replies, parts.model.tokenizer)
            return answered | _handed_over(parts, work)

        return await answer(parts, request, work, CompletionChunks(envelope, options) if body.stream else whole)

    return router


async def _with_blocks(parts: EngineParts, body: GenerationBody, work: Work) -> Work:
    """Return the work with the prompt's KV blocks from another engine, or with a name under which to hold its own, as
    the body's `kv_transfer_params` say; unchanged without them."""
    params, transfers = body.kv_transfer_params, parts.kv_transfers
    if not params:
        return work
    received = await transfers.receive(params, work.prompt_tokens) if len(work.choices) == 1 else work.received
    return replace(
        work, received=received, hold_as=transfers.choose_hold_name(params, body.request_id or uuid4().hex[:16])
    )


def _handed_over(parts: EngineParts, work: Work) -> dict[str, Any]:
    """Return the fields of a prefill's answer that the decoding engine needs; empty if no blocks are held for it."""
    held = parts.engine.core.scheduler.held.find(work.hold_as) if work.hold_as else None
    if held is None:
        return {}
    params = parts.kv_transfers.transfer_params(work.hold_as, held.blocks, held.tokens, held.cached_tokens)
    return {"kv_transfer_params": params}


async def answer(parts: EngineParts, request: Request, work: Work, form: Chunks | BodyOf) -> Response:
    """Generate the answer, with the faults drawn for it; without tokens while draining. `form` is either a stream
    writer or a function that builds one body."""
    faults = parts.faults.draw_for_request(work.model)
    if faults.delay_s is not None:
        await parts.clock.sleep_until(parts.clock.now_s() + faults.delay_s)
    if faults.error_status is not None:
        return _injected_error(faults, faults.error_status)
    if faults.malformed is Malformed.HTML_BODY:
        return html_response()
    drained = parts.lifecycle.phase is Phase.DRAINING
    if parts.settings.usage_log is not None and not drained:
        note = note_to(parts.settings.usage_log, request.headers.get("x-request-id") or "-")
        form = noted_body(form, work.prompt_tokens, note) if callable(form) else NotedChunks(form, note)
    if not callable(form):
        return StreamResponse(parts.engine, work, form, faults, drained=drained)
    if drained:
        return json_response(form([Progress(choice) for choice in work.choices]), faults)
    return await generate_whole(request, parts.engine, work, form, faults)


def _refusal_response(refusal: EngineRefusal, *, streamed: bool) -> Response:
    """Return a late refusal of a stream as its only event; raise any other refusal for `app`."""
    if not (streamed and refusal.late):
        raise refusal
    return Response(refusal.event() + DONE, media_type="text/event-stream")


def _refuse_text_while_draining(parts: EngineParts) -> None:
    """Raise EngineRefusal while draining, for text: vLLM stops its tokenizer threads first. Token ids reach the engine,
    which aborts."""
    if parts.lifecycle.phase is Phase.DRAINING:
        raise EngineRefusal("cannot schedule new futures after shutdown", kind="InternalServerError", status=500)


def envelope_of(parts: EngineParts, work: Work, body: GenerationBody, request: Request, kind: str) -> Envelope:
    name = request.headers.get("x-request-id") or body.request_id or uuid4().hex[:16]
    return Envelope(
        request_id=f"{kind}-{name}",
        model=work.model,
        created_s=int(parts.clock.wall_s()),
        fingerprint=parts.fingerprint,
        prompt_token_details=parts.settings.prompt_token_details,
    )


def _stream_options(parts: EngineParts, body: GenerationBody) -> StreamOptions:
    options = body.stream_options
    usage = parts.settings.force_usage or bool(options and options.include_usage)
    continuous = parts.settings.force_usage or (usage and bool(options and options.continuous_usage_stats))
    return StreamOptions(usage=usage, continuous_usage=continuous, token_ids=bool(body.return_token_ids))


def _injected_error(faults: Faults, status: int) -> Response:
    refusal = EngineRefusal("Injected by /sim/faults.", kind="InternalServerError", status=status)
    response = json_response(refusal.body(), Faults())
    response.status_code = status
    if faults.retry_after_s is not None:
        response.headers["retry-after"] = f"{faults.retry_after_s:g}"
    return response


# POST /v1/responses, /v1/messages and /v1/messages/count_tokens.


def dialect_routes(parts: EngineParts) -> APIRouter:
    router = APIRouter(dependencies=[Depends(json_only)])
    _add_responses(router, parts)
    _add_messages(router, parts)
    return router


def _add_responses(router: APIRouter, parts: EngineParts) -> None:
    @router.post("/v1/responses")
    async def responses(body: ResponsesBody, request: Request) -> Response:
        chat = body.as_chat()
        work = _accepted(parts, chat, request)
        envelope = envelope_of(parts, work, chat, request, "resp")

        def whole(replies: Sequence[Progress]) -> dict[str, Any]:
            return whole_response(envelope, body, work.prompt_tokens, replies)

        return await answer(parts, request, work, ResponseEvents(envelope, body) if body.stream else whole)


def _add_messages(router: APIRouter, parts: EngineParts) -> None:
    @router.post("/v1/messages")
    async def messages(body: MessagesBody, request: Request) -> Response:
        try:
            chat = body.as_chat()
            work = _accepted(parts, chat, request)
        except EngineRefusal as refusal:
            return _refused(refusal)
        envelope = envelope_of(parts, work, chat, request, "chatcmpl")

        def whole(replies: Sequence[Progress]) -> dict[str, Any]:
            return whole_message(envelope, work.prompt_tokens, replies)

        return await answer(parts, request, work, MessageEvents(envelope) if body.stream else whole)

    @router.post("/v1/messages/count_tokens")
    async def count_tokens(body: MessagesBody) -> Response:
        try:
            parts.acceptor.find_model(body.model)
            turns = to_chat_messages(body.as_chat().messages)
            text = parts.acceptor.render(turns, add_generation_prompt=True, tools=None)
        except EngineRefusal as refusal:
            return _refused(refusal)
        return JSONResponse({"input_tokens": len(parts.acceptor.prompt_of(text).ids)})


def _accepted(parts: EngineParts, chat: ChatBody, request: Request) -> Work:
    parts.acceptor.find_model(chat.model)
    parts.engine.check_admission(1)
    return parts.acceptor.chat(chat, request.headers)


def _refused(refusal: EngineRefusal) -> Response:
    error = {"type": refusal.kind, "message": refusal.message}
    return JSONResponse({"type": "error", "error": error}, status_code=refusal.status)
