"""Sender of hostile inputs to one listener; it records for each whether it was answered, closed, or neither in time.

A whole request must be answered within `ANSWER_S`, or the connection closed. For any other input the server may wait
for more, but not for ever: the connection stays open until the server closes it, `CLOSE_S` at most. The server's idle
timers end these; those of the gateway are the longest.
"""

import asyncio
import contextlib
import random
import ssl
from collections import Counter
from dataclasses import dataclass, field

import httptools
import orjson

from tests.drills.hostile.inputs import HostileInput, Making, rubbish

ANSWER_S = 60.0  # on a machine with other load
CLOSE_S = 120.0
_ANSWER_MAX_BYTES = 256 * 1024  # a stream is read no further: the client leaves
_LEFT_OPEN = 60  # connections at a time per listener; beyond that the client leaves at once
_REQUESTS_PER_CONNECTION = 40


@dataclass(slots=True)
class Outcomes:
    """Results at one listener."""

    sent: Counter[str] = field(default_factory=Counter)  # by sort
    statuses: Counter[int] = field(default_factory=Counter)
    overloaded: int = 0  # 502, 503 or 504 with one of the product's reasons
    failures: list[str] = field(default_factory=list)  # 5xx, with the input
    hangs: list[str] = field(default_factory=list)
    unreachable: list[str] = field(default_factory=list)

    @property
    def inputs(self) -> int:
        return self.sent.total()


@dataclass(frozen=True, slots=True)
class Listener:
    name: str
    port: int
    tls: bool
    making: Making | None  # requests to its routes
    may_refuse: frozenset[str]  # codes of 503s and the like that name a reason useful to the caller


class Sender:
    def __init__(self, listener: Listener, seed: int) -> None:
        self.outcomes = Outcomes()
        self._listener = listener
        self._rng = random.Random(seed)
        self._left_open: set[asyncio.Task[None]] = set()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE

    async def send(self, count: int, at_once: int) -> None:
        """Send `count` inputs over several connections at once, then wait for those that the server must close."""
        left = [count]
        await asyncio.gather(*(self._client(left) for _ in range(at_once)))
        await asyncio.gather(*self._left_open)

    async def _client(self, left: list[int]) -> None:
        while left[0] > 0:
            is_request = self._listener.making is not None and self._rng.random() < 0.8
            try:
                if is_request:
                    await self._requests(left)
                else:
                    left[0] -= 1
                    await self._raw(rubbish(self._rng))
            except (ConnectionError, ssl.SSLError, EOFError):
                pass  # the server may do that
            except OSError as error:
                self.outcomes.unreachable.append(repr(error))

    async def _open(self, tls: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(ANSWER_S):
            return await asyncio.open_connection(
                "127.0.0.1", self._listener.port, ssl=self._context if tls else None, limit=_ANSWER_MAX_BYTES
            )

    # requests in sequence on one connection

    async def _requests(self, left: list[int]) -> None:
        assert self._listener.making is not None
        reader, writer = await self._open(self._listener.tls)
        try:
            for _ in range(_REQUESTS_PER_CONNECTION):
                if left[0] <= 0:
                    return
                left[0] -= 1
                given = self._listener.making(self._rng)
                self.outcomes.sent[given.sort] += 1
                writer.write(given.data)
                if not await self._answered(reader, given):
                    return
        finally:
            writer.transport.abort()

    async def _answered(self, reader: asyncio.StreamReader, given: HostileInput) -> bool:
        """Read the answer and return whether the connection may be reused."""
        answer = _Answer(is_head=given.data.startswith(b"HEAD "))
        try:
            async with asyncio.timeout(ANSWER_S):
                while not answer.complete and answer.size_bytes < _ANSWER_MAX_BYTES:
                    block = await reader.read(65536)
                    if not block:
                        break
                    answer.feed(block)
        except TimeoutError:
            self.outcomes.hangs.append(f"no answer in {ANSWER_S:.0f} s: {given.data[:600]!r}")
            return False
        self._judge(answer, given)
        return answer.complete and answer.keep_alive

    def _judge(self, answer: "_Answer", given: HostileInput) -> None:
        if not answer.status:
            return
        self.outcomes.statuses[answer.status] += 1
        if answer.status < 500:
            return
        says_why = answer.code in self._listener.may_refuse
        is_readiness = answer.status == 503 and given.data.startswith(b"HEAD /readyz")  # which has no body for a reason
        if is_readiness or (answer.status in (502, 503, 504) and says_why):
            self.outcomes.overloaded += 1
        else:
            self.outcomes.failures.append(f"{answer.status} {bytes(answer.body[:300])!r} to {given.data[:1500]!r}")

    # any other input

    async def _raw(self, given: HostileInput) -> None:
        self.outcomes.sent[given.sort] += 1
        reader, writer = await self._open(self._listener.tls and self._rng.random() < 0.7)
        for piece in _pieces(given):
            writer.write(piece)
            if given.slow:
                await asyncio.sleep(0.2)
        answer = _Answer(is_head=False)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                answer.feed(await reader.read(65536))
        self._judge(answer, given)
        if reader.at_eof() or len(self._left_open) >= _LEFT_OPEN:
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._until_closed(reader, writer, given))
        self._left_open.add(task)
        task.add_done_callback(self._left_open.discard)

    async def _until_closed(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, given: HostileInput
    ) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                while await reader.read(65536):
                    pass
        except TimeoutError:
            self.outcomes.hangs.append(f"open after {CLOSE_S:.0f} s: {given.sort}: {given.data[:200]!r}")
        except OSError:
            pass  # closed abruptly
        finally:
            writer.transport.abort()


def _pieces(given: HostileInput) -> list[bytes]:
    if not given.slow:
        return [given.data]
    step = max(1, len(given.data) // 20)
    return [given.data[start : start + step] for start in range(0, len(given.data), step)]


class _Answer:
    """First answer on a connection; bytes that are not HTTP have no status."""

    def __init__(self, *, is_head: bool) -> None:
        self._is_head = is_head
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.body = bytearray()
        self.size_bytes = 0
        self.complete, self.keep_alive = False, False

    def feed(self, data: bytes) -> None:
        self.size_bytes += len(data)
        if self.complete:
            return
        with contextlib.suppress(httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._parser.feed_data(data)

    @property
    def code(self) -> str:
        try:
            found = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return ""
        error = found.get("error", found) if isinstance(found, dict) else {}
        if isinstance(error, str):
            return error.partition(":")[0]
        if not isinstance(error, dict):
            return ""
        plain = next((name for name in ("reason", "ready", "message") if name in error), "")
        return str(error.get("code") or error.get("type") or plain)

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status
            self.keep_alive = self._parser.should_keep_alive()
            self.complete = self._is_head or status in (204, 304)

    def on_body(self, body: bytes) -> None:
        if not self.complete and len(self.body) < 4096:
            self.body += body

    def on_message_complete(self) -> None:
        self.complete = self.complete or self.status > 0
