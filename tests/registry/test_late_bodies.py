"""Bodies that arrived while the registry's event loop stalled are read before they count as slow."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from starlette.requests import Request

from functions.artifacts.ingest import IngestPolicy
from functions.registry import artifact_routes, conventions

_BODY = b"x" * 100


async def _receive() -> dict[str, Any]:
    time.sleep(0.4)  # real time: the loop's own clock
    for _ in range(3):  # timers run before sockets are read
        await asyncio.sleep(0)
    return {"type": "http.request", "body": _BODY, "more_body": False}


async def _whole(request: Request) -> bytes:
    return b"".join(await conventions.read_body(request, 1000))


async def _upload(request: Request) -> bytes:
    return b"".join([block async for block in artifact_routes._blocks(request, IngestPolicy())])


@pytest.mark.parametrize("read", [_whole, _upload])
async def test_body_received_during_a_stall_is_in_time(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[Request], Any]
) -> None:
    monkeypatch.setattr(conventions, "_BODY_TIMEOUT_S", 0.2)
    monkeypatch.setattr(artifact_routes, "READ_TIMEOUT_S", 0.2)
    assert await read(Request({"type": "http", "headers": []}, _receive)) == _BODY
