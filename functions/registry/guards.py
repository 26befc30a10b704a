"""What stands before a route: the internal token, bounded bodies, and clients that leave while they wait."""

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from functions.registry.errors import ApiError

_BEARER = "bearer "
_BODY_TIMEOUT_S = 60.0

Answer = TypeVar("Answer")


def require_token(token: str) -> Callable[[Request], None]:
    """A dependency that lets only holders of the token pass; the comparison's time tells nothing about it."""
    expected = hashlib.sha256(token.encode()).digest()

    def check(request: Request) -> None:
        header = request.headers.get("authorization", "")
        given = header[len(_BEARER) :].strip() if header[: len(_BEARER)].lower() == _BEARER else ""
        shown = hashlib.sha256(given.encode("utf-8", "surrogatepass")).digest()
        if not hmac.compare_digest(shown, expected):
            message = "this route needs the installation's internal token: Authorization: Bearer <token>"
            raise ApiError(401, "invalid_internal_token", message, headers={"www-authenticate": "Bearer"})

    return check


async def read_body(request: Request, max_bytes: int) -> list[bytes]:
    """The whole body in pieces, or ApiError: too large, too slow, or the client left."""
    too_large = ApiError(413, "body_too_large", f"the body is over the limit of {max_bytes} bytes")
    declared = request.headers.get("content-length", "0")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > max_bytes:
        raise too_large
    parts: list[bytes] = []
    size_bytes = 0
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            async for part in request.stream():
                size_bytes += len(part)
                if size_bytes > max_bytes:
                    raise too_large
                parts.append(part)
    except TimeoutError as error:
        message = f"the body did not arrive within {_BODY_TIMEOUT_S:.0f} s"
        raise ApiError(408, "body_too_slow", message, headers={"connection": "close"}) from error
    except ClientDisconnect as error:
        raise ApiError(400, "body_incomplete", "the client left before its body was complete") from error
    return parts


async def unless_client_leaves(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer | None:
    """The result of `work`, or None as soon as the client is gone: nothing goes on for nobody."""
    try:
        async with asyncio.TaskGroup() as group:
            working = group.create_task(work)
            leaving = group.create_task(_client_gone(request))
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            leaving.cancel()
            working.cancel()  # has no effect on one that is done
    except ExceptionGroup as group_error:
        raise group_error.exceptions[0] from None  # what the work raised, as itself
    return None if working.cancelled() else working.result()


async def _client_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass  # the rest of a body that a GET should not have
