"""Control channel of the controller: a Unix socket that accepts one order as a JSON line and answers with a JSON
line.

    {"do": "status"} | {"do": "stop"} | …                     all orders: `functions.controller.orders`
    {"ok": true, "result": …} | {"ok": false, "error": "…"}

Only the owner can enter the socket's directory. A process that can open the socket may send every order.
"""

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

LINE_MAX_BYTES = 1024 * 1024
ORDER_TIMEOUT_S = 10.0  # limit for a client to send its order after it has connected
ANSWER_TIMEOUT_S = 60.0  # long, as `status` queries other processes; a dead controller refuses immediately

Handler = Callable[[dict[str, Any]], Awaitable[Any]]


class OrderRefused(Exception):
    """The order cannot be carried out; the message says why."""


class ControllerGone(Exception):
    """No controller answers on the socket."""


async def serve_control(path: Path, handle: Handler) -> asyncio.Server:
    """Start the server on the Unix socket `path`; it answers one order a connection with what `handle` returns. An
    OrderRefused that `handle` raises becomes the answer."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, ValueError):  # the client left, stalled or sent too much
            async with asyncio.timeout(ORDER_TIMEOUT_S):
                line = await reader.readline()
            writer.write(json.dumps(await _answer(line, handle)).encode() + b"\n")
            await writer.drain()
        writer.close()

    return await asyncio.start_unix_server(connected, sock=_listener(path), limit=LINE_MAX_BYTES)


def ask_controller(path: Path, order: dict[str, Any], timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
    """Send one order to the controller on the socket and return its result. Raises ControllerGone if none answers, or
    OrderRefused."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
            channel.settimeout(timeout_s)
            channel.connect(str(path))
            channel.sendall(json.dumps(order).encode() + b"\n")
            with channel.makefile("rb") as answers:
                line = answers.readline(LINE_MAX_BYTES)
    except OSError as error:
        raise ControllerGone(f"no controller answers on {path}: {error}") from error
    if not line:
        raise ControllerGone(f"the controller on {path} closed the connection without an answer")
    answer = json.loads(line)
    if not answer["ok"]:
        raise OrderRefused(answer["error"])
    return answer["result"]


def _listener(path: Path) -> socket.socket:
    """Return a socket bound to `path`, open to its owner only, in place of an existing one. The caller holds the
    controller's lock, so an existing socket belongs to a dead controller."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o600)
    return listener


async def _answer(line: bytes, handle: Handler) -> dict[str, Any]:
    try:
        order = json.loads(line)
        if not isinstance(order, dict):
            return {"ok": False, "error": "an order is one JSON object on one line"}
        return {"ok": True, "result": await handle(order)}
    except (ValueError, RecursionError) as error:
        return {"ok": False, "error": f"not an order: {error}"}
    except OrderRefused as error:
        return {"ok": False, "error": str(error)}
