"""Webhook for git servers: a push is told, and the branch is fetched at once instead of at the next poll.

    POST /hooks/git        GitHub, Gitea, Forgejo, Gogs, GitLab; their `push`
    202                    fetched as soon as may be
    200                    nothing to do: another branch, another event, a ping
    401                    no signature, or not by our secret
    404 405 400 413 429    another path; another method; no request; a body over BODY_MAX_BYTES; too many requests

What is told is never believed: the body says only which branch may have moved, and what it is now is read from the
remote. So a delivery that is played again fetches once more, and nothing else.

Bounds: CONNECTIONS_MAX at a time, each READ_WITHIN_S for its request, PER_MINUTE requests in all, whoever they are
from; whoever floods it delays pushes to the next poll. Signatures are compared in constant time, after the whole body
was read. Neighbours: `git_side` fetches; `process` tells the leader, where another process was told.
"""

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import h11
import orjson

from functions.decisions.quota.token_bucket import US_PER_S, TokenBucket

PATH = "/hooks/git"
BODY_MAX_BYTES = 2 * 1024 * 1024  # a push of 2,000 commits is about 1 MB
CONNECTIONS_MAX = 16
READ_WITHIN_S = 10.0
PER_MINUTE, BURST = 300, 60
SECRET_MIN_CHARS = 16
_HEAD_MAX_BYTES = 16 * 1024
_READ_BYTES = 64 * 1024
_LINGER_S = 1.0

# by header: what comes before the hex digits of HMAC-SHA256(secret, body)
_SIGNATURES = {
    b"x-hub-signature-256": b"sha256=",  # GitHub; Gitea and Forgejo send it too
    b"x-gitea-signature": b"",
    b"x-forgejo-signature": b"",
    b"x-gogs-signature": b"",
}
_TOKEN = b"x-gitlab-token"  # GitLab sends the secret itself
_EVENTS = (b"x-github-event", b"x-gitea-event", b"x-forgejo-event", b"x-gogs-event", b"x-gitlab-event")
_PUSHES = frozenset({b"push", b"Push Hook"})

Headers = Mapping[bytes, bytes]  # names in small letters
Result = Literal["taken", "passed_over", "unsigned", "malformed", "limited"]

_log = logging.getLogger(__name__)


class Reply(NamedTuple):
    status: int
    text: str
    result: Result


class _Request(NamedTuple):
    method: bytes
    path: bytes
    headers: Headers
    body: bytes


def is_signed(headers: Headers, body: bytes, secret: bytes) -> bool:
    """Whether one of the signatures that came is ours."""
    expected = hmac.digest(secret, body, hashlib.sha256).hex().encode()
    for name, prefix in _SIGNATURES.items():
        if name in headers and hmac.compare_digest(headers[name], prefix + expected):
            return True
    return _TOKEN in headers and hmac.compare_digest(headers[_TOKEN], secret)


def moves(headers: Headers, body: bytes, branch: str) -> bool:
    """Whether it tells that the branch may have moved; who names no event or no branch may mean it."""
    event = next((headers[name] for name in _EVENTS if name in headers), b"push")
    if event not in _PUSHES:
        return False
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        return True
    ref = told.get("ref") if isinstance(told, dict) else None
    return ref is None or ref == f"refs/heads/{branch}"


class Webhook:
    """Owned by one event loop."""

    def __init__(
        self,
        secret: bytes,
        branch: str,
        on_push: Callable[[], None],
        on_result: Callable[[Result], None] = lambda _: None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._secret, self._branch = secret, branch
        self._on_push, self._on_result = on_push, on_result
        self._clock = clock
        self._bucket = TokenBucket(PER_MINUTE, BURST, 60, self._now_us())
        self._open = 0

    async def listen(self, host: str, port: int) -> asyncio.Server:
        """OSError where that cannot be."""
        return await asyncio.start_server(self._connected, host, port, limit=_READ_BYTES)

    def reply(self, request: _Request) -> Reply:
        """What to say to a whole request, and whether to fetch."""
        if request.path.partition(b"?")[0] != PATH.encode():
            return Reply(404, f"git servers tell of pushes at {PATH}", "malformed")
        if request.method != b"POST":
            return Reply(405, "POST it", "malformed")
        if not is_signed(request.headers, request.body, self._secret):
            return Reply(401, "not signed with this installation's webhook secret", "unsigned")
        if not moves(request.headers, request.body, self._branch):
            return Reply(200, f"nothing to do: {self._branch} is followed", "passed_over")
        self._on_push()
        return Reply(202, f"{self._branch} is fetched", "taken")

    # inside

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._open >= CONNECTIONS_MAX:
            writer.transport.abort()
            self._on_result("limited")
            return
        self._open += 1
        try:
            async with asyncio.timeout(READ_WITHIN_S):
                await self._serve(reader, writer)
        except (TimeoutError, OSError, h11.ProtocolError):
            pass  # whoever it was is gone, or is no HTTP client
        finally:
            self._open -= 1
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_MAX_BYTES)
        reply = self._limited()
        if reply is None:
            try:
                request = await _read(connection, reader, writer)
            except h11.RemoteProtocolError as error:
                reply = Reply(400, str(error)[:200], "malformed")
            else:
                reply = self.reply(request) if request is not None else _TOO_LARGE
        self._on_result(reply.result)
        if reply.result == "unsigned":
            _log.warning("a webhook delivery was refused: %s", reply.text)
        writer.write(_written(reply))
        await writer.drain()
        writer.write_eof()
        async with asyncio.timeout(_LINGER_S):  # what was not read would make the answer get lost
            while await reader.read(_READ_BYTES):
                pass

    def _limited(self) -> Reply | None:
        bucket = self._bucket
        bucket.advance(self._now_us())
        if bucket.wait_us(bucket.unit):
            return Reply(429, "too many requests: the branch is polled besides", "limited")
        bucket.add(bucket.unit)
        return None

    def _now_us(self) -> int:
        return int(self._clock() * US_PER_S)


_TOO_LARGE = Reply(413, f"a body of at most {BODY_MAX_BYTES} bytes", "malformed")


async def _read(
    connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> _Request | None:
    """The request; None where its body is too large. RemoteProtocolError where it is none."""
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            if connection.they_are_waiting_for_100_continue:
                writer.write(connection.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
            connection.receive_data(await reader.read(_READ_BYTES))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > BODY_MAX_BYTES:
                return None
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            return _Request(head.method, head.target, dict(head.headers), bytes(body))
        else:
            raise h11.RemoteProtocolError("no whole request")


def _written(reply: Reply) -> bytes:
    """The answer, after which the connection ends. Written by hand: the request may have been none."""
    reasons = {200: "OK", 202: "Accepted", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found"}
    reasons |= {405: "Method Not Allowed", 413: "Content Too Large", 429: "Too Many Requests"}
    more = "retry-after: 60\r\n" if reply.status == 429 else ""
    body = f"{reply.text}\n".encode()
    head = f"HTTP/1.1 {reply.status} {reasons[reply.status]}\r\ncontent-type: text/plain; charset=utf-8\r\n{more}"
    return f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body
