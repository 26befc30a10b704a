"""OpenAI's `/v1/batches`."""

import asyncio
import logging
from dataclasses import replace
from typing import Any

import msgspec
from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect

from functions.artifacts.errors import StoreUnavailable
from functions.decisions.batch import record as batch_moves
from functions.decisions.batch.choice import window_s
from functions.decisions.batch.record import BatchRecord, IllegalMove, LineProblem, Status, Tally
from functions.decisions.request.access import Caller
from functions.fleet import own_stalls
from functions.gateway import errors
from functions.gateway.batch.conductor import ENDPOINTS
from functions.gateway.batch.files import names
from functions.gateway.batch.files import routes as files
from functions.gateway.batch.files.routes import as_list
from functions.gateway.batch.files.store import storage_unavailable
from functions.gateway.batch.files.upload import checked_expiry_s
from functions.gateway.batch.log import BatchProgress, LogBroken, OutcomeUnknown, Overtaken, TooManyOpen
from functions.gateway.batch.service import Batches
from functions.gateway.errors import ErrorAnswer, RequestRejected, bad_request, quote
from functions.gateway.http.headers import check_json_body
from functions.gateway.intake.callers import identify_lookup
from functions.gateway.intake.json_body import parse_object

# Batch objects of OpenAI's API.


_STAMPED: tuple[Status, ...] = (
    "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled",
)  # fmt: skip


def batch_object(record: BatchRecord, progress: BatchProgress | None = None) -> dict[str, Any]:
    """Return the batch as OpenAI's API shows it, with the counts of `progress` if given and the batch is not over."""
    tally = record.tally if record.is_over or progress is None else progress.tally
    return {
        "id": record.id,
        "object": "batch",
        "endpoint": record.endpoint,
        "input_file_id": record.input_file_id,
        "completion_window": record.completion_window,
        "status": record.status,
        "errors": {"object": "list", "data": [_problem(one) for one in record.errors]} if record.errors else None,
        "output_file_id": record.output_file_id if record.has_output else None,
        "error_file_id": record.error_file_id if record.has_errors else None,
        "created_at": record.created_s,
        "expires_at": record.expires_s,
        **{f"{status}_at": record.stamps.get(status) for status in _STAMPED},
        "request_counts": {"total": record.lines, "completed": tally.completed, "failed": tally.failed},
        "usage": _usage(tally),
        "metadata": record.metadata or None,
    }


def _problem(problem: LineProblem) -> dict[str, Any]:
    return {"code": problem.code, "message": problem.message, "param": problem.param, "line": problem.line}


def _usage(tally: Tally) -> dict[str, Any]:
    return {
        "input_tokens": tally.prompt_tokens,
        "input_tokens_details": {"cached_tokens": tally.cached_tokens},
        "output_tokens": tally.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},  # engines count them as output tokens
        "total_tokens": tally.prompt_tokens + tally.completion_tokens,
    }


_BODY_BYTES = 64 * 1024
_BODY_S = 10.0
_DEPTH, _VALUES = 4, 200
_READS_AT_ONCE = 8
_CANCEL_TRIES = 5
_METADATA_PAIRS, _METADATA_KEY_CHARS, _METADATA_VALUE_CHARS = 16, 64, 512
_LEFT = 499
_log = logging.getLogger(__name__)
_KEPT_MAX = 2000  # batches of one tenant, including those that are over


class OutputExpiry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    anchor: str
    seconds: int


class BatchForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: OutputExpiry | None = None


def add_routes(batches: Batches, app: FastAPI) -> None:
    services = batches.services
    files.add_routes(batches, app)

    @app.post("/v1/batches")
    async def create(request: Request) -> Response:
        _, caller = identify_lookup(services, request)
        try:
            asked = await _read_form(request)
            batches.check_store()
            async with batches.creations.reserved(caller.tenant):
                created = await _create_batch(batches, caller, asked)
            return JSONResponse(batch_object(created))
        except (StoreUnavailable, LogBroken) as error:
            raise storage_unavailable(error) from error
        except ClientDisconnect:
            return Response(status_code=_LEFT)  # the client has left

    @app.get("/v1/batches")
    async def listing(
        request: Request, after: str | None = None, limit: int = Query(20, ge=1, le=100)
    ) -> dict[str, Any]:
        _, caller = identify_lookup(services, request)
        try:
            with batches.listings.reserved(caller.tenant):
                return await _page(batches, caller.tenant, after, limit)
        except StoreUnavailable as error:
            raise storage_unavailable(error) from error

    @app.get("/v1/batches/{batch_id}")
    async def one(request: Request, batch_id: str) -> dict[str, Any]:
        _, caller = identify_lookup(services, request)
        try:
            return await _show_batch(batches, caller.tenant, batch_id)
        except (StoreUnavailable, LogBroken) as error:
            raise storage_unavailable(error) from error

    @app.post("/v1/batches/{batch_id}/cancel")
    async def cancel(request: Request, batch_id: str) -> dict[str, Any]:
        _, caller = identify_lookup(services, request)
        try:
            record = await _cancel_batch(batches, caller.tenant, batch_id)
            return batch_object(record, await batches.log.progress(record.tenant, record.id))
        except (StoreUnavailable, LogBroken) as error:
            raise storage_unavailable(error) from error


async def _create_batch(batches: Batches, caller: Caller, asked: BatchForm) -> BatchRecord:
    tenant, limits = caller.tenant, batches.limits
    seconds = _check_form(asked)
    file = await batches.shelf.find(tenant, asked.input_file_id)
    if file is None or file.purpose != "batch":
        message = f"There is no file {quote(asked.input_file_id)} with the purpose batch. Upload it first."
        raise bad_request(message, param="input_file_id", code="file_not_found")
    if len(await batches.log.all_open(tenant)) >= limits.open_per_tenant:
        raise _too_many_open(limits.open_per_tenant)
    if len(await batches.log.ids(tenant)) >= _KEPT_MAX:
        raise _too_many(f"You have {_KEPT_MAX} batches, which is the limit. Old ones expire; send larger ones.")
    now_unix_s = batches.services.wall_clock()
    record = BatchRecord(
        id=names.new_id("batch", now_unix_s),
        tenant=tenant,
        key_id=caller.key_id,
        endpoint=asked.endpoint,
        input_file_id=file.id,
        completion_window=asked.completion_window,
        created_s=int(now_unix_s),
        expires_s=int(now_unix_s) + seconds,
        output_file_id=names.new_id("file", now_unix_s),
        error_file_id=names.new_id("file", now_unix_s),
        metadata=asked.metadata or {},
        output_expiry_s=expiry.seconds if (expiry := asked.output_expires_after) is not None else None,
    )
    try:
        opened = await _open_log(batches, record)
    except TooManyOpen as error:  # another gateway made some in the meantime
        raise _too_many_open(limits.open_per_tenant) from error
    batches.conductor.notify_record(opened)
    return opened


async def _open_log(batches: Batches, record: BatchRecord) -> BatchRecord:
    """Write the first record of a batch and return the batch's record, so that a client's retry makes no second batch.

    If the store fails, the record may still have been written, or appear later. Then a second record competes for the
    first one's number, and the one that is written first is the batch. If that is the second one, which says that the
    batch failed, OutcomeUnknown is raised.
    """
    try:
        await batches.log.open(record, batches.limits.open_per_tenant)
    except OutcomeUnknown:
        problem = LineProblem("not_created", "The store failed while the batch was created. Create it again.")
        given_up = batch_moves.failed(record, (problem,), int(batches.services.wall_clock()))
        try:
            await batches.log.append(replace(given_up, number=record.number))
        except Overtaken as overtaken:
            return overtaken.latest
        await batches.log.close(record)
        raise
    return record


def _check_form(asked: BatchForm) -> int:
    """Check the form and return the seconds of its completion window; raises RequestRejected (400) if it is invalid."""
    if asked.endpoint not in ENDPOINTS:
        raise bad_request(f"'endpoint' must be one of {', '.join(ENDPOINTS)}.", param="endpoint")
    seconds = window_s(asked.completion_window)
    if seconds is None:
        message = "'completion_window' must be 24h, or another number of minutes (m) or hours (h) up to 168h."
        raise bad_request(message, param="completion_window")
    expiry = asked.output_expires_after
    if expiry is not None:
        checked_expiry_s(expiry.anchor, expiry.seconds, "output_expires_after")
    pairs = asked.metadata or {}
    if len(pairs) > _METADATA_PAIRS or any(
        len(key) > _METADATA_KEY_CHARS or len(value) > _METADATA_VALUE_CHARS for key, value in pairs.items()
    ):
        message = (
            f"'metadata' may have at most {_METADATA_PAIRS} pairs, with keys of at most {_METADATA_KEY_CHARS} and "
            f"values of at most {_METADATA_VALUE_CHARS} characters."
        )
        raise bad_request(message, param="metadata")
    return seconds


async def _page(batches: Batches, tenant: str, after: str | None, limit: int) -> dict[str, Any]:
    ids = [one for one in reversed(await batches.log.ids(tenant)) if after is None or one < after]
    page: list[dict[str, Any]] = []
    for begin in range(0, min(limit, len(ids)), _READS_AT_ONCE):
        some = ids[begin : min(begin + _READS_AT_ONCE, limit)]
        found = await asyncio.gather(*(_show_listed(batches, tenant, one) for one in some))
        page += [one for one in found if one is not None]
    return as_list(page, has_more=len(ids) > limit)


async def _show_listed(batches: Batches, tenant: str, batch_id: str) -> dict[str, Any] | None:
    """Return a batch for the list, or None if its record cannot be read or it was deleted."""
    try:
        return await _show_batch(batches, tenant, batch_id)
    except LogBroken as error:
        _log.warning("the log of batch %s cannot be read: %s", batch_id, error)
        return None
    except RequestRejected:
        return None  # deleted in the meantime


async def _show_batch(batches: Batches, tenant: str, batch_id: str) -> dict[str, Any]:
    record = await _find_batch(batches, tenant, batch_id)
    progress = None if record.is_over else await batches.log.progress(tenant, batch_id)
    return batch_object(record, progress)


async def _find_batch(batches: Batches, tenant: str, batch_id: str) -> BatchRecord:
    record = await batches.log.latest(tenant, batch_id)
    if record is None:
        message = f"There is no batch {quote(batch_id)}. GET /v1/batches lists your batches."
        raise RequestRejected(ErrorAnswer(404, "invalid_request_error", "batch_not_found", message, "id"))
    return record


async def _cancel_batch(batches: Batches, tenant: str, batch_id: str) -> BatchRecord:
    """Cancel a batch and return its record; cancelling twice has no further effect.

    Raises RequestRejected: 404 without such a batch, 409 if it is over, 503 if its status changes all the time.
    """
    record = await _find_batch(batches, tenant, batch_id)
    for _ in range(_CANCEL_TRIES):
        if record.status in ("cancelling", "cancelled"):
            return record
        try:
            following = batch_moves.cancelled(record, int(batches.services.wall_clock()))
            await batches.log.append(following)
        except IllegalMove as error:
            message = f"The batch is {record.status} and cannot be cancelled any more."
            raise RequestRejected(ErrorAnswer(409, "invalid_request_error", "batch_over", message)) from error
        except Overtaken as overtaken:
            record = overtaken.latest
        else:
            batches.conductor.notify_record(following)
            return following
    raise RequestRejected(errors.unavailable("The batch is changing its status. Try again.", "overloaded", 1))


async def _read_form(request: Request) -> BatchForm:
    check_json_body(request.scope["headers"])
    body = bytearray()
    try:
        async with own_stalls.timeout(_BODY_S):
            async for block in request.stream():
                body += block
                if len(body) > _BODY_BYTES:
                    raise RequestRejected(errors.body_too_large(_BODY_BYTES))
    except TimeoutError as error:
        raise RequestRejected(errors.request_timeout("The body")) from error
    parsed = parse_object(bytes(body), _DEPTH, _VALUES)
    try:
        return msgspec.convert(parsed, BatchForm)
    except msgspec.ValidationError as error:
        raise bad_request(f"The body is not valid: {error}.") from error


def _too_many_open(most: int) -> RequestRejected:
    return _too_many(f"You have {most} open batches, which is the limit. Wait for one to end, or cancel one.")


def _too_many(message: str) -> RequestRejected:
    return RequestRejected(ErrorAnswer(429, "requests", "too_many_batches", message, retry_after_s=60))
