"""Upload of one file from a form to the store, with a few MiB of it in memory at any time.

The client is paused while a part is written (its next bytes are not requested), so that a slow store slows the client
and does not fill the gateway's memory. A file over the limit is rejected as soon as its announced or its counted
bytes exceed it.

Slots are few, so a slow upload may not hold one, and one tenant may not hold the last ones:

    a tenant's second slot      only if two stay free after it: of 8, four tenants hold 7, and a fifth has the last
    a client's bytes            at least 32 KiB for each second of waiting for the client, once that exceeds 30 s; else
                                408 if fewer than two slots are free and more of the file is expected. Time in which
                                the store writes does not count (test_slow_upload_is_refused)
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

from fastapi import Request
from starlette.requests import ClientDisconnect

from functions.artifacts.s3_large import LargeWriter
from functions.fleet import own_stalls
from functions.gateway import errors
from functions.gateway.batch.files.store import FileStore
from functions.gateway.batch.limits import EXPIRY_MAX_S, EXPIRY_MIN_S
from functions.gateway.errors import ErrorAnswer, RequestRejected, bad_request, quote
from functions.gateway.http.headers import announced_bytes
from functions.gateway.http.plain import ClientLeft
from functions.gateway.tenant_limits import TenantShares
from functions.http.multipart import MultipartForm, MultipartInvalid, boundary_of

_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"


class UploadForm(MultipartForm):
    """Form with a batch's file: part "file" and a few fields. `feed` returns bytes of the file; `end`
    checks the form.
    """

    def __init__(self, content_type: str) -> None:
        super().__init__(boundary_of(content_type))
        self.filename: str | None = None  # None means no file part yet
        self._pieces: list[bytes] = []

    def feed(self, block: bytes) -> list[bytes]:
        self.write(block)
        found, self._pieces = self._pieces, []
        return found

    def end(self) -> None:
        super().end()
        if self.filename is None:
            raise MultipartInvalid("The form has no part 'file'.")

    def file_begins(self, filename: bytes) -> None:
        if self.filename is not None:
            raise MultipartInvalid("The form has two parts 'file'. Send one file at a time.")
        self.filename = filename.decode(errors="replace")

    def file_data(self, piece: bytes) -> None:
        self._pieces.append(piece)


_WRITE_BYTES = 1024 * 1024  # size of one write by the writer's thread
_FORM_BYTES = 64 * 1024  # the form around the file
_SILENCE_S = 30.0  # timeout between two blocks
_LEAST_BYTES_PER_S = 32 * 1024  # an eighth of what a file of 200 MB needs to arrive in time
_LEAST_AFTER_S = 30.0
_SHORT_PLACES = 2  # fewer free slots than this are short
_FILENAME_CHARS = 255
PURPOSES = ("batch",)


class UploadSlots(TenantShares):
    """Slots for concurrent uploads. Owned by one event loop."""

    def __init__(self, most: int, most_per_tenant: int) -> None:
        super().__init__(most, most_per_tenant)

    @property
    def is_short(self) -> bool:
        return self._free() < _SHORT_PLACES

    def _free(self) -> int:
        return self.most - self.held

    @contextmanager
    def reserved(self, tenant: str, amount: int = 1) -> Iterator[None]:
        held = self.held_by(tenant)
        if held >= self._most_per_tenant:
            message = f"You have {held} uploads under way, which is the limit. Wait for one to end."
            raise RequestRejected(ErrorAnswer(429, "requests", "too_many_uploads", message, retry_after_s=5))
        free = self._free()
        if free < 1 or (held and free - 1 <= held):
            raise RequestRejected(
                errors.unavailable("All slots for uploads are in use. Try again in 5 s.", "overloaded", 5)
            )
        with super().reserved(tenant, amount):
            yield


async def receive(
    request: Request,
    store: FileStore,
    writer: LargeWriter,
    max_bytes: int,
    *,
    places: UploadSlots,
    clock: Callable[[], float],
) -> UploadForm:
    """Write the form's file to the store; return the checked form.

    If this raises, the upload is aborted. Raises RequestRejected if the form is invalid, too large or has no bytes.
    """
    if (announced_bytes(request.scope["headers"]) or 0) > max_bytes + _FORM_BYTES:
        raise too_large(max_bytes)
    try:
        form = UploadForm(request.headers.get("content-type", ""))
        await _write(form, _blocks(request, max_bytes + _FORM_BYTES, places, clock), store, writer, max_bytes)
        form.end()
        check_fields(form)
        if not writer.written_bytes:
            raise bad_request("The file is empty. Send one JSON object a line.", param="file", code="empty_file")
        await store.call(writer.finish)
    except MultipartInvalid as error:
        await store.call(writer.abort)
        raise bad_request(str(error), code="invalid_form") from error
    except BaseException:
        await asyncio.shield(store.call(writer.abort))
        raise
    return form


def check_fields(form: UploadForm) -> None:
    for name in form.fields:
        if name not in ("purpose", _ANCHOR, _SECONDS):
            raise bad_request(
                f"The form field {quote(name)} is not supported. Omit it.", param=name[:64], code="unknown_parameter"
            )
    if form.fields.get("purpose") not in PURPOSES:
        raise bad_request(f"'purpose' must be {_quoted(PURPOSES)}: only batches read files.", param="purpose")

    own_expiry_s(form)


def own_expiry_s(form: UploadForm) -> int | None:
    """Return the seconds after which the owner wants the file deleted, or None if the form does not say.

    Raises RequestRejected (400) if they are malformed or out of bounds.
    """
    anchor, seconds = form.fields.get(_ANCHOR), form.fields.get(_SECONDS)
    if anchor is None and seconds is None:
        return None
    is_number = seconds is not None and seconds.isascii() and seconds.isdigit() and len(seconds) <= 9
    return checked_expiry_s(anchor, int(seconds) if seconds is not None and is_number else None, "expires_after")


def checked_expiry_s(anchor: object, seconds: int | None, param: str) -> int:
    """Return `seconds`; raise RequestRejected (400) if they are out of bounds or the anchor is not created_at."""
    if anchor != "created_at" or seconds is None or not EXPIRY_MIN_S <= seconds <= EXPIRY_MAX_S:
        message = f"'{param}' must have the anchor created_at and seconds from {EXPIRY_MIN_S} to {EXPIRY_MAX_S}."
        raise bad_request(message, param=param)
    return seconds


def _quoted(names: tuple[str, ...]) -> str:
    return " or ".join(f'"{name}"' for name in names)


def filename_of(form: UploadForm) -> str:
    shown = "".join(char for char in form.filename or "" if char.isprintable())
    return shown[:_FILENAME_CHARS] or "file"


def too_large(max_bytes: int) -> RequestRejected:
    message = f"The file is over the limit of {max_bytes} bytes. Split it into several files."
    return RequestRejected(ErrorAnswer(413, "invalid_request_error", "file_too_large", message, "file"))


def _too_slow() -> RequestRejected:
    message = (
        f"The upload is slower than {_LEAST_BYTES_PER_S // 1024} KiB a second, and other uploads need its slot. "
        "Use a faster connection."
    )
    return RequestRejected(ErrorAnswer(408, "invalid_request_error", "request_timeout", message, "file"))


async def _write(
    form: UploadForm, blocks: AsyncIterator[bytes], store: FileStore, writer: LargeWriter, max_bytes: int
) -> None:
    held, written_bytes = bytearray(), 0
    async for block in blocks:
        for piece in form.feed(block):
            held += piece
        if written_bytes + len(held) > max_bytes:
            raise too_large(max_bytes)
        if len(held) >= _WRITE_BYTES:
            written_bytes += len(held)
            await store.call(writer.write, bytes(held))
            held.clear()
    await store.call(writer.write, bytes(held))


async def _blocks(
    request: Request, max_bytes: int, places: UploadSlots, clock: Callable[[], float]
) -> AsyncIterator[bytes]:
    received_bytes, waited_s = 0, 0.0
    announced = announced_bytes(request.scope["headers"])
    stream = request.stream()
    while True:
        asked_s = clock()
        try:
            async with own_stalls.timeout(_SILENCE_S):
                block = await anext(stream, None)
        except TimeoutError as error:
            raise RequestRejected(errors.request_timeout("The body")) from error
        except ClientDisconnect as error:
            raise ClientLeft from error
        if block is None:
            return
        received_bytes += len(block)
        waited_s += clock() - asked_s
        is_slow = waited_s > _LEAST_AFTER_S and received_bytes < waited_s * _LEAST_BYTES_PER_S
        if is_slow and places.is_short and block and received_bytes != announced:
            raise _too_slow()
        if received_bytes > max_bytes:
            raise too_large(max_bytes - _FORM_BYTES)
        yield block
