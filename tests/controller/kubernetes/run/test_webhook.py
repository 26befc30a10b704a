"""The webhook for git servers: which signatures count, which pushes matter, and its limits under a flood."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from functions.controller.kubernetes.run.webhook import (
    BODIES_MAX_BYTES,
    BODY_MAX_BYTES,
    BURST,
    CONNECTIONS_MAX,
    PATH,
    Webhook,
    is_signed,
    may_move_branch,
)

SECRET = b"a secret of a git server"
PUSH = json.dumps({"ref": "refs/heads/main", "after": "0" * 40}).encode()


def digest(body: bytes, secret: bytes = SECRET) -> str:
    return hmac.new(secret, body, hashlib.sha256).hexdigest()


def github(body: bytes = PUSH, event: str = "push", secret: bytes = SECRET) -> dict[str, str]:
    return {"x-github-event": event, "x-hub-signature-256": f"sha256={digest(body, secret)}"}


def gitea(body: bytes = PUSH) -> dict[str, str]:
    return {"x-gitea-event": "push", "x-gitea-signature": digest(body)}


def gitlab(token: bytes = SECRET, event: str = "Push Hook") -> dict[str, str]:
    return {"x-gitlab-event": event, "x-gitlab-token": token.decode()}


def raw(headers: dict[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): value.encode() for name, value in headers.items()}


@pytest.mark.parametrize("headers", [github(), gitea(), gitlab(), {"x-forgejo-signature": digest(PUSH)}])
def test_valid_signature_of_each_git_server_is_accepted(headers: dict[str, str]) -> None:
    assert is_signed(raw(headers), PUSH, SECRET)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        github(secret=b"another secret, as long"),
        {"x-hub-signature-256": digest(PUSH)},
        {"x-hub-signature-256": f"sha256={digest(PUSH).upper()}"},
        {"x-hub-signature": f"sha1={digest(PUSH)}"},
        {"x-gitea-signature": ""},
        gitlab(b"another"),
        gitlab(b""),
        {"authorization": f"Bearer {SECRET.decode()}"},
    ],
)
def test_other_signatures_are_refused(headers: dict[str, str]) -> None:
    assert not is_signed(raw(headers), PUSH, SECRET)


def test_signature_covers_the_body() -> None:
    assert not is_signed(raw(github()), PUSH + b" ", SECRET)


class Delivery:
    """A delivery whose body arrives in pieces, as the test sends them."""

    def __init__(self, hook: Webhook, headers: dict[str, str]) -> None:
        scope = {"type": "http", "method": "POST", "path": PATH, "headers": list(raw(headers).items())}
        self.pieces: asyncio.Queue[dict[str, object]] = asyncio.Queue()
        self.sent: list[dict[str, object]] = []
        self._done = asyncio.ensure_future(hook(scope, self.pieces.get, self._send))

    async def _send(self, message: object) -> None:
        self.sent.append(message)  # type: ignore[arg-type]

    async def sends(self, piece: bytes, *, last: bool = False) -> None:
        self.pieces.put_nowait({"type": "http.request", "body": piece, "more_body": not last})
        for _ in range(5):
            await asyncio.sleep(0)

    async def status(self) -> object:
        await self._done
        return self.sent[0]["status"]


async def test_bodies_of_all_deliveries_together_are_bounded() -> None:
    """Sixty-four bodies of two megabytes, from any client of the port, would exceed the controller's memory."""
    hook = Webhook(SECRET, "main", lambda: None)
    most = b"x" * BODY_MAX_BYTES
    held = [Delivery(hook, github()) for _ in range(BODIES_MAX_BYTES // BODY_MAX_BYTES)]
    for each in held:
        await each.sends(most)
    over = Delivery(hook, github())
    await over.sends(b"x")
    assert hook._held_bytes == BODIES_MAX_BYTES
    await over.sends(b"", last=True)
    assert await over.status() == 429
    for each in held:
        await each.sends(b"", last=True)
        assert await each.status() == 401
    assert hook._held_bytes == 0


@pytest.mark.parametrize("headers", [{}, gitlab(b"another"), {"authorization": "Bearer x"}])
async def test_body_without_a_signature_is_not_buffered(headers: dict[str, str]) -> None:
    hook = Webhook(SECRET, "main", lambda: None)
    delivery = Delivery(hook, headers)
    await delivery.sends(b"x" * 1000)
    assert hook._held_bytes == 0
    await delivery.sends(b"", last=True)
    assert await delivery.status() == 401


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        (github(), PUSH, True),
        (gitlab(), PUSH, True),
        (github(event="ping"), b"{}", False),
        (gitlab(event="Tag Push Hook"), PUSH, False),
        (github(), b'{"ref": "refs/heads/other"}', False),
        (github(), b'{"ref": "refs/tags/main"}', False),
        (github(), b"payload=%7B%7D", True),
        ({}, b"{}", True),
        (github(), b'["ref"]', True),
    ],
)
def test_deliveries_that_may_have_moved_the_branch(headers: dict[str, str], body: bytes, expected: bool) -> None:
    assert may_move_branch(raw(headers), body, "main") is expected


class Listening:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.pushes = 0
        self.results: list[str] = []
        self.hook = Webhook(SECRET, "main", self._pushed, self.results.append, clock=lambda: self.now_s)
        self.port = 0

    def _pushed(self) -> None:
        self.pushes += 1

    @asynccontextmanager
    async def open(self) -> AsyncIterator[httpx.AsyncClient]:
        server = await self.hook.listen("127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=30, trust_env=False) as client:
            yield client
        server.close()


async def test_only_pushes_are_accepted() -> None:
    listening = Listening()
    async with listening.open() as client:
        answers = [
            await client.post(PATH, content=PUSH, headers=github()),
            await client.post(f"{PATH}?x=1", content=PUSH, headers=gitlab()),
            await client.post(PATH, content=b"{}", headers=github(b"{}", "ping")),
            await client.post(PATH, content=PUSH, headers=github(secret=b"another secret, as long")),
            await client.post(PATH, content=PUSH),
            await client.get(PATH, headers=github(b"")),
            await client.post("/", content=PUSH, headers=github()),
        ]
    assert [answer.status_code for answer in answers] == [202, 202, 200, 401, 401, 405, 404]
    assert listening.pushes == 2
    assert listening.results == ["taken", "taken", "passed_over", "unsigned", "unsigned", "malformed", "malformed"]


async def test_chunked_body_and_expect_continue_are_supported() -> None:
    listening = Listening()

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(PUSH), 7):
            yield PUSH[at : at + 7]

    async with listening.open() as client:
        assert (await client.post(PATH, content=pieces(), headers=github())).status_code == 202
        reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
        head = "".join(f"{name}: {value}\r\n" for name, value in github().items())
        size = f"content-length: {len(PUSH)}\r\nexpect: 100-continue\r\n"
        writer.write(f"POST {PATH} HTTP/1.1\r\nhost: x\r\n{size}{head}\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 100 ")
        writer.write(PUSH)
        assert b"HTTP/1.1 202 Accepted" in await reader.read()
        writer.close()


async def test_a_body_is_bounded_and_the_answer_reaches_the_client() -> None:
    listening = Listening()
    async with listening.open() as client:
        most = b"x" * BODY_MAX_BYTES
        assert (await client.post(PATH, content=most, headers=github(most))).status_code == 202
        assert (await client.post(PATH, content=most + b"x", headers=github(most + b"x"))).status_code == 413
    assert listening.pushes == 1


async def test_requests_of_all_clients_are_bounded() -> None:
    listening = Listening()
    async with listening.open() as client:
        for _ in range(BURST):
            assert (await client.post(PATH, content=PUSH)).status_code == 401
        refused = await client.post(PATH, content=PUSH, headers=github())
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "60")
        listening.now_s += 1.0  # five more
        assert (await client.post(PATH, content=PUSH, headers=github())).status_code == 202
    assert listening.results[-2:] == ["limited", "taken"]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01", b"400"),
        (b"GET\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\n" + b"a: b\r\n" * 9000, b"431"),
    ],
)
async def test_malformed_http_request_is_refused(request_: bytes, status: bytes) -> None:
    listening = Listening()
    async with listening.open():
        reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
        writer.write(request_ + b"\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 " + status)
        writer.close()
    assert listening.results == ["malformed"]


async def test_silent_connections_do_not_block_others() -> None:
    """Sixteen silent connections used to block the port for ten seconds at a time."""
    listening = Listening()
    async with listening.open() as client:
        silent = [await asyncio.open_connection("127.0.0.1", listening.port) for _ in range(CONNECTIONS_MAX)]
        await asyncio.sleep(0.05)
        assert (await client.post(PATH, content=PUSH, headers=github())).status_code == 202
        assert await silent[0][0].read() == b"", "the longest silent one gave way"
        for _, writer in silent:
            writer.close()
    assert listening.results == ["limited", "taken"]
