"""Webhook for git servers: after a push, the branch is fetched immediately instead of at the next poll.

    POST /hooks/git        `push` deliveries of GitHub, Gitea, Forgejo, Gogs, GitLab
    202                    the branch is fetched as soon as possible
    200                    nothing to do: another branch, another event, a ping
    401                    no signature, or not by our secret
    404 405 413 429        another path; another method; a body over BODY_MAX_BYTES; too many requests, or bodies
    400 408 431            no valid request; a request that is too slow; a head that is too large

The content of a delivery is never trusted. The body only says which branch may have moved; its tip is read from the
remote. So a replayed delivery causes one more fetch, and nothing else.

Bodies without a signature, or for another path or method, are not stored. The bodies of all deliveries together are
at most BODIES_MAX_BYTES; beyond that, a delivery gets 429.

Bounds: CONNECTIONS_MAX at a time, of which the longest silent one is closed for a new one. Each has READ_WITHIN_S for
its head and as long for its body (`functions.http`). PER_MINUTE requests are accepted in all, from any sender; a
flood only delays pushes to the next poll. Signatures are compared in constant time, after the whole body was read.

Neighbours: `git_reconciler` fetches; `pushes` notifies the leader if another process received the push.
"""

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import orjson

from functions.decisions.quota.token_bucket import US_PER_S, TokenBucket
from functions.http.binding import bind_socket
from functions.http.connections import Connections
from functions.http.guard import Bounds, Guard, Receive, Scope, Send
from functions.http.listening import serve

PATH = "/hooks/git"
BODY_MAX_BYTES = 2 * 1024 * 1024  # a push of 2,000 commits is about 1 MB
BODIES_MAX_BYTES = 8 * BODY_MAX_BYTES
CONNECTIONS_MAX = 64
READ_WITHIN_S = 10.0
PER_MINUTE, BURST = 300, 60
SECRET_MIN_CHARS = 16
BOUNDS = Bounds(head_s=READ_WITHIN_S, body_s=READ_WITHIN_S, keep_alive_s=READ_WITHIN_S, write_stall_s=READ_WITHIN_S)

# by header: prefix of the hex digits of HMAC-SHA256(secret, body)
_SIGNATURES = {
    b"x-hub-signature-256": b"sha256=",  # GitHub; Gitea and Forgejo send it too
    b"x-gitea-signature": b"",
    b"x-forgejo-signature": b"",
    b"x-gogs-signature": b"",
}
_TOKEN = b"x-gitlab-token"  # GitLab sends the secret itself
_EVENTS = (b"x-github-event", b"x-gitea-event", b"x-forgejo-event", b"x-gogs-event", b"x-gitlab-event")
_PUSHES = frozenset({b"push", b"Push Hook"})

Headers = Mapping[bytes, bytes]  # names in lower case
Result = Literal["taken", "passed_over", "unsigned", "malformed", "limited"]

_log = logging.getLogger(__name__)


class Reply(NamedTuple):
    status: int
    text: str
    result: Result


def is_signed(headers: Headers, body: bytes, secret: bytes) -> bool:
    """Return True if one of the delivery's signatures is that of the body by our secret, or if its token is our
    secret."""
    expected = hmac.digest(secret, body, hashlib.sha256).hex().encode()
    for name, prefix in _SIGNATURES.items():
        if name in headers and hmac.compare_digest(headers[name], prefix + expected):
            return True
    return _TOKEN in headers and hmac.compare_digest(headers[_TOKEN], secret)


def may_move_branch(headers: Headers, body: bytes, branch: str) -> bool:
    """Return True if the delivery is about a push to the branch; also if it names no event or no branch, or is no
    JSON."""
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
    """ASGI application, owned by one event loop."""

    def __init__(
        self,
        secret: bytes,
        branch: str,
        on_push: Callable[[], None],
        on_result: Callable[[Result], None] = lambda _: None,
        *,
        clock: Callable[[], float] = time.monotonic,
        bounds: Bounds = BOUNDS,
    ) -> None:
        self._secret, self._branch = secret, branch
        self._on_push, self._on_result = on_push, on_result
        self._clock = clock
        self._bucket = TokenBucket(PER_MINUTE, BURST, 60, self._now_us())
        self._bounds = bounds
        self._held_bytes = 0  # size of the bodies that are being read

    async def listen(self, host: str, port: int) -> asyncio.Server:
        """Start listening and return the server; raise OSError if the address cannot be used."""
        connections = Connections(CONNECTIONS_MAX, on_closed=lambda reason: self._on_result("limited"))
        guard = Guard(self._bounds, connections, on_refused=lambda status: self._on_result("malformed"))
        return await serve(self, bind_socket(host, port), guard)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        reply = self._limited()
        if reply is None:
            read = await self._read(receive, self._refused_by_head(scope["method"], scope["path"], headers))
            reply = read if isinstance(read, Reply) else self.reply(headers, read)
        self._on_result(reply.result)
        if reply.result == "unsigned":
            _log.warning("a webhook delivery was refused: %s", reply.text)
        content = f"{reply.text}\n".encode()
        answered = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(content))]
        answered += [(b"connection", b"close"), *([(b"retry-after", b"60")] if reply.status == 429 else [])]
        await send({"type": "http.response.start", "status": reply.status, "headers": answered})
        await send({"type": "http.response.body", "body": content})

    def reply(self, headers: Headers, body: bytes) -> Reply:
        """Return the answer to a complete delivery, and request a fetch if it is for the branch."""
        if not is_signed(headers, body, self._secret):
            return _UNSIGNED
        if not may_move_branch(headers, body, self._branch):
            return Reply(200, f"nothing to do: only pushes to {self._branch} are fetched", "passed_over")
        self._on_push()
        return Reply(202, f"{self._branch} will be fetched", "taken")

    # inside

    def _limited(self) -> Reply | None:
        bucket = self._bucket
        bucket.advance(self._now_us())
        if bucket.wait_us(bucket.unit):
            return Reply(429, "too many requests; the push is found at the next poll", "limited")
        bucket.add(bucket.unit)
        return None

    def _now_us(self) -> int:
        return int(self._clock() * US_PER_S)

    def _refused_by_head(self, method: str, path: str, headers: Headers) -> Reply | None:
        """Return the refusal that no body can change (wrong path or method, no signature), or None."""
        if path != PATH:
            return Reply(404, f"not found; send push deliveries to {PATH}", "malformed")
        if method != "POST":
            return Reply(405, "method not allowed; use POST", "malformed")
        may_be_signed = not _SIGNATURES.keys().isdisjoint(headers) or is_signed(headers, b"", self._secret)
        return None if may_be_signed else _UNSIGNED

    async def _read(self, receive: Receive, refused: Reply | None) -> bytes | Reply:
        """Return the body, or a refusal (`refused`, or one because it is too large). The body is read to its end in
        both cases, or the answer would get lost."""
        body, size_bytes = bytearray(), 0
        try:
            while True:
                message = await receive()
                part = message.get("body", b"")
                size_bytes += len(part)
                refused = refused or self._over(size_bytes, len(part))
                if refused is None:
                    self._held_bytes += len(part)
                    body += part
                elif body:
                    self._held_bytes -= len(body)
                    body.clear()
                if not message.get("more_body", False):
                    return refused or bytes(body)
        finally:
            self._held_bytes -= len(body)

    def _over(self, size_bytes: int, more_bytes: int) -> Reply | None:
        if size_bytes > BODY_MAX_BYTES:
            return _TOO_LARGE
        return _TOO_MANY if self._held_bytes + more_bytes > BODIES_MAX_BYTES else None


_TOO_LARGE = Reply(413, f"the body is over the limit of {BODY_MAX_BYTES} bytes", "malformed")
_TOO_MANY = Reply(429, "too many deliveries at a time; the push is found at the next poll", "limited")
_UNSIGNED = Reply(401, "not signed with this installation's webhook secret", "unsigned")
