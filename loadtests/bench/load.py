"""The bench's client: closed loops of requests, or many streams held open. It only counts.

The client shares its CPU with the fake engines, so it does as little as possible. A slow client does not distort the
main figure: the gateway's own CPU time.
"""

import asyncio
import json
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle

import httptools

_CHAT = b"/v1/chat/completions"
_BATCH = 50  # connections opened concurrently, so that no accept queue overflows


@dataclass(frozen=True, slots=True)
class Target:
    port: int
    headers: bytes  # complete header lines, each with its CRLF
    tls: ssl.SSLContext | None = None
    warm_path: bytes = b""  # first request of every connection, which moves it off the fast lane


@dataclass(slots=True)
class Tally:
    requests: int = 0
    failures: int = 0
    round_trips_us: list[float] = field(default_factory=list)


def request(target: Target, body: bytes) -> bytes:
    head = b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n" % _CHAT
    return head + target.headers + b"content-length: %d\r\n\r\n" % len(body) + body


class Client(asyncio.Protocol):
    """One connection that sends the next request as soon as the last one is answered."""

    def __init__(self, target: Target, requests: Sequence[bytes], tally: Tally, until_s: float) -> None:
        self._requests = cycle(requests)
        self._warm_path = target.warm_path
        self._tally, self._until_s = tally, until_s
        self._parser = httptools.HttpResponseParser(self)
        self._warming = bool(target.warm_path)
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if self._warming:
            self._write(b"GET %b HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" % self._warm_path)
        else:
            self._send_next()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self._tally.failures += 1
            self.done.set_result(None)

    def on_message_complete(self) -> None:
        now_s = time.perf_counter()
        if self._warming:
            self._warming = False
        elif self._parser.get_status_code() != 200:
            self._tally.failures += 1
        else:
            self._tally.requests += 1
            self._tally.round_trips_us.append((now_s - self._asked_s) * 1e6)
        if now_s >= self._until_s:
            self.done.set_result(None)
            self._transport.close()
        else:
            self._send_next()

    def _send_next(self) -> None:
        self._asked_s = time.perf_counter()
        self._write(next(self._requests))

    def _write(self, data: bytes) -> None:
        self._transport.write(data)  # type: ignore[attr-defined]


async def closed_loop(
    target: Target, bodies: Sequence[bytes], connections: int, seconds: float, tally: Tally | None = None
) -> Tally:
    """Run `connections` clients for `seconds`; each sends its next request as soon as the last one is answered."""
    tally = tally if tally is not None else Tally()
    loop = asyncio.get_running_loop()
    until_s = time.perf_counter() + seconds
    requests = [request(target, body) for body in bodies]
    clients = []
    for _ in range(connections):
        _, client = await loop.create_connection(
            lambda: Client(target, requests, tally, until_s), "127.0.0.1", target.port, ssl=target.tls
        )
        clients.append(client)
    await asyncio.wait_for(asyncio.gather(*(client.done for client in clients)), seconds + 120)
    return tally


class HeldStream(asyncio.Protocol):
    """One stream that is held open and read."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._head_came = False  # a gateway may send the head long before the first event
        self.events = 0
        self.failed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(self._payload)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if not self._head_came:
            self._head_came = True
            self.failed = not data.startswith(b"HTTP/1.1 200")
        self.events += data.count(b"data: {")

    def connection_lost(self, exc: Exception | None) -> None:
        self.failed = self.failed or not self.events


async def hold_streams(target: Target, body: bytes, count: int) -> list[HeldStream]:
    """Open `count` streams in small batches."""
    loop = asyncio.get_running_loop()
    payload = request(target, body)
    streams: list[HeldStream] = []
    while len(streams) < count:
        batch = [
            loop.create_connection(lambda: HeldStream(payload), "127.0.0.1", target.port, ssl=target.tls)
            for _ in range(min(_BATCH, count - len(streams)))
        ]
        streams += [stream for _, stream in await asyncio.gather(*batch)]
    return streams


async def set_engine_pace(port: int, **pace: float) -> int:
    """Change the fake fleet's behaviour (`engine.Pace`) and return the number of its open requests."""
    query = "&".join(f"{name}={value:f}" for name, value in pace.items())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET /pace?{query} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        return int(json.loads(await reader.readexactly(length))["open"])
    finally:
        writer.close()
