"""A played client connection to the fast lane: bytes without sockets.

connection = Connection(play)
connection >> POST(body)            # the client sends
await play.connects()               # the engine side, from engine_rig
assert connection.answers == [...]  # what the client got, as HTTP
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import httptools
import uvicorn
from uvicorn.server import ServerState

from functions.gateway.http.asgi import make_app
from functions.gateway.http.lane import LaneProtocol
from tests.gateway import sse
from tests.gateway.engine_rig import Play
from tests.gateway.rig import ACME_KEY, heartbeat

CHAT_BODY = sse.compact({"model": "acme/bot", "messages": [{"role": "user", "content": "hi"}]})
STREAM_BODY = sse.compact({"model": "acme/bot", "stream": True, "messages": [{"role": "user", "content": "hi"}]})


def post(
    body: bytes = CHAT_BODY,
    path: str = "/v1/chat/completions",
    key: str | None = ACME_KEY,
    length: int | None = None,
    version: str = "1.1",
    method: str = "POST",
    **headers: str,
) -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: shoal.test", "Content-Type: application/json"]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    if "transfer_encoding" not in headers:
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def get(path: str = "/healthz", **headers: str) -> bytes:
    more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"GET {path} HTTP/1.1\r\nHost: shoal.test\r\n{more}\r\n".encode()


@dataclass
class HttpAnswer:
    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool

    @property
    def error(self) -> dict[str, Any]:
        document = json.loads(self.body)
        assert list(document) == ["error"]
        error: dict[str, Any] = document["error"]
        assert sorted(error) == ["code", "message", "param", "type"]
        assert self.headers["x-request-id"]
        assert self.headers["content-type"] == "application/json"
        return error

    @property
    def code(self) -> str | None:
        code: str | None = self.error["code"]
        return code


def read_answers(data: bytes) -> list[HttpAnswer]:
    """Parse every answer in a connection's bytes strictly, 1xx included."""
    answers: list[HttpAnswer] = []

    class Reader:
        def on_message_begin(self) -> None:
            answers.append(HttpAnswer(0, {}, b"", False))

        def on_header(self, name: bytes, value: bytes) -> None:
            assert name.decode().lower() not in answers[-1].headers, f"{name!r} twice"
            answers[-1].headers[name.decode().lower()] = value.decode()

        def on_headers_complete(self) -> None:
            answers[-1].status = parser.get_status_code()

        def on_body(self, body: bytes) -> None:
            answers[-1].body += body

        def on_message_complete(self) -> None:
            answers[-1].complete = True

    parser = httptools.HttpResponseParser(Reader())
    parser.feed_data(data)
    return answers


class ClientTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.got = bytearray()
        self.closing = self.aborted = self.reading_paused = False
        self.unread_bytes = 0
        self.protocol: Any = None

    def write(self, data: Any) -> None:
        if not self.closing:
            self.got += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def pause_reading(self) -> None:
        self.reading_paused = True

    def resume_reading(self) -> None:
        self.reading_paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignored: the test decides when the buffer is full."""

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 6)}.get(name, default)


class Server:
    """One configuration and one state for all connections, as in uvicorn."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.state = ServerState()
        self.config = uvicorn.Config(make_app(play.gateway), lifespan="off", ws="none", log_config=None)
        self.config.load()


class Connection:
    def __init__(self, play: Play, server: Server | None = None, *, handshake_s: float = 0.0) -> None:
        self.play = play
        self.server = server or Server(play)
        self.transport = ClientTransport()
        self.lane = LaneProtocol(play.gateway, self.server.config, self.server.state, {})
        self.transport.protocol = self.lane
        play.rig.clock.forward(handshake_s)
        self.lane.connection_made(self.transport)

    def __rshift__(self, data: bytes) -> "Connection":
        if not self.transport.closing:
            self.transport.protocol.data_received(data)
        return self

    @property
    def answers(self) -> list[HttpAnswer]:
        return read_answers(bytes(self.transport.got))

    @property
    def answer(self) -> HttpAnswer:
        assert len(self.answers) == 1, self.answers
        return self.answers[0]

    @property
    def statuses(self) -> list[int]:
        return [answer.status for answer in self.answers]

    @property
    def closed(self) -> bool:
        return self.transport.closing

    @property
    def cut(self) -> bool:
        return self.transport.aborted

    @property
    def on_the_lane(self) -> bool:
        return self.transport.protocol is self.lane

    def leaves(self) -> None:
        self.transport.closing = True
        self.transport.protocol.connection_lost(None)

    def stops_reading(self) -> None:
        self.transport.protocol.pause_writing()

    def reads_on(self) -> None:
        self.transport.protocol.resume_writing()

    def after(self, seconds: float) -> None:
        """Advance the clock; replicas keep sending heartbeats and the sweep runs."""
        self.play.rig.clock.forward(seconds)
        for beat, _ in self.play.gateway.services.fleet.heartbeats():
            self.play.gateway.receive_heartbeat(heartbeat(beat.replica_id, sequence=beat.sequence + 1))
        self.play.gateway.sweep()
