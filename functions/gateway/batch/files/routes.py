"""OpenAI's `/v1/files` for the files of batches."""

from collections.abc import AsyncIterator
from typing import Any, Literal

from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from functions.artifacts.errors import ArtifactMissing, StoreUnavailable
from functions.gateway.batch.files import names, upload
from functions.gateway.batch.files.shelf import KEPT_PURPOSES, PAGE_DEFAULT, PAGE_MAX, FileRecord
from functions.gateway.batch.files.store import storage_unavailable
from functions.gateway.batch.service import Batches
from functions.gateway.errors import ErrorAnswer, RequestRejected, quote
from functions.gateway.http.plain import ClientLeft
from functions.gateway.intake.callers import identify_lookup

_LEFT = 499


def add_routes(batches: Batches, app: FastAPI) -> None:
    services = batches.services

    @app.post("/v1/files")
    async def create(request: Request) -> Response:
        return await _create(batches, request)

    @app.get("/v1/files")
    async def listing(
        request: Request,
        after: str | None = None,
        purpose: str | None = None,
        limit: int = Query(PAGE_DEFAULT, ge=1, le=10_000),
        order: Literal["asc", "desc"] = "desc",
    ) -> dict[str, Any]:
        _, caller = identify_lookup(services, request)
        if purpose is not None and purpose not in KEPT_PURPOSES:  # no stored file has it, so none need be read
            return as_list([], has_more=False)
        most, ascending = min(limit, PAGE_MAX), order == "asc"
        try:
            with batches.listings.reserved(caller.tenant):
                page, more = await batches.shelf.page(
                    caller.tenant, after=after, limit=most, purpose=purpose, ascending=ascending
                )
        except StoreUnavailable as error:
            raise storage_unavailable(error) from error
        return as_list([record.file_object() for record in page], has_more=more)

    @app.get("/v1/files/{file_id}")
    async def one(request: Request, file_id: str) -> dict[str, Any]:
        _, caller = identify_lookup(services, request)
        return (await _found(batches, caller.tenant, file_id)).file_object()

    @app.get("/v1/files/{file_id}/content")
    async def content(request: Request, file_id: str) -> Response:
        _, caller = identify_lookup(services, request)
        record = await _found(batches, caller.tenant, file_id)
        return await _content(batches, caller.tenant, record)

    @app.delete("/v1/files/{file_id}")
    async def delete(request: Request, file_id: str) -> dict[str, Any]:
        _, caller = identify_lookup(services, request)
        record = await _found(batches, caller.tenant, file_id)
        try:
            reader = await batches.reader_of(caller.tenant, record.id)
            if reader is not None:
                raise file_in_use(reader)
            await batches.shelf.delete(caller.tenant, record.id)
        except StoreUnavailable as error:
            raise storage_unavailable(error) from error
        return {"id": record.id, "object": "file", "deleted": True}


async def _create(batches: Batches, request: Request) -> Response:
    services = batches.services
    _, caller = identify_lookup(services, request)
    tenant = caller.tenant
    limits = batches.limits
    try:
        with batches.uploads.reserved(tenant):
            if await batches.shelf.count(tenant) >= limits.files_per_tenant:
                raise too_many_files(limits.files_per_tenant)
            file_id = names.new_id("file", services.wall_clock())
            writer = batches.shelf.open_writer(tenant, file_id)
            form = await upload.receive(
                request, batches.store, writer, limits.file_bytes, places=batches.uploads, clock=services.clock
            )
            record = await batches.shelf.save_record(
                tenant,
                file_id,
                size_bytes=writer.written_bytes,
                filename=upload.filename_of(form),
                purpose=form.fields["purpose"],
                now_unix_s=services.wall_clock(),
                expiry_s=upload.own_expiry_s(form),
            )
    except StoreUnavailable as error:
        raise storage_unavailable(error) from error
    except ClientLeft:
        return Response(status_code=_LEFT)  # the client has left
    return JSONResponse(record.file_object())


async def _found(batches: Batches, tenant: str, file_id: str) -> FileRecord:
    try:
        record = await batches.shelf.find(tenant, file_id)
    except StoreUnavailable as error:
        raise storage_unavailable(error) from error
    if record is None:
        raise file_not_found(file_id)
    return record


async def _content(batches: Batches, tenant: str, record: FileRecord) -> Response:
    """Return the response that streams a file's content.

    The first block is read before the head is sent, so that an outage is an error answer and a missing file a 404.
    """
    blocks = batches.shelf.content(tenant, record.id)
    try:
        first = await anext(blocks, b"")
    except StoreUnavailable as error:
        raise storage_unavailable(error) from error
    except ArtifactMissing as error:
        raise file_not_found(record.id) from error
    headers = {
        "content-length": str(record.size_bytes),
        "content-disposition": f'attachment; filename="{record.id}.jsonl"',
        "x-content-type-options": "nosniff",
        "cache-control": "no-store",
    }
    return StreamingResponse(_all(first, blocks), media_type="application/octet-stream", headers=headers)


async def _all(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield all blocks. If the store fails, the connection is cut: the client gets fewer bytes than announced."""
    yield first
    async for block in rest:
        yield block


def as_list(data: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"object": "list", "data": data, "has_more": has_more, **ends}


def file_not_found(file_id: str) -> RequestRejected:
    message = f"There is no file {quote(file_id)}. GET /v1/files lists your files."
    return RequestRejected(ErrorAnswer(404, "invalid_request_error", "file_not_found", message, "id"))


def too_many_files(most: int) -> RequestRejected:
    message = f"You have {most} files, which is the limit. Delete files that you no longer need."
    return RequestRejected(ErrorAnswer(429, "requests", "too_many_files", message))


def file_in_use(batch_id: str) -> RequestRejected:
    message = f"The batch {batch_id} still reads this file. Cancel the batch, or wait for its end."
    return RequestRejected(ErrorAnswer(409, "invalid_request_error", "file_in_use", message, "id"))
