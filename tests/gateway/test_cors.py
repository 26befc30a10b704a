"""CORS: pages of allowed origins may call and read, rejections included; without allowed origins no page may."""

import asyncio
import socket
import ssl
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from functions.gateway.http.asgi import make_app
from functions.gateway.http.cors import _EXPOSED, Origins
from functions.gateway.openapi import headers
from functions.http.connections import Connections
from functions.http.listening import listen
from tests.gateway.certificates import self_signed
from tests.gateway.client_rig import STREAM_BODY, Connection, post
from tests.gateway.hello import Playing
from tests.gateway.rig import Rig

PAGE = "https://app.example.com"
ASKS = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}


def browser(origins: str) -> httpx.AsyncClient:
    gateway = Rig().gateway
    gateway.services = replace(gateway.services, origins=Origins.parse(origins))
    return httpx.AsyncClient(transport=httpx.ASGITransport(make_app(gateway)), base_url="https://localhost")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/v1/files"])
async def test_a_preflight_of_a_named_origin_is_answered_without_a_key(path: str) -> None:
    async with browser(f"{PAGE}, http://localhost:3000") as client:
        answer = await client.options(path, headers={"origin": PAGE, **ASKS})
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["access-control-allow-headers"] == ASKS["access-control-request-headers"]
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    ("origins", "origin"),
    [
        ("", PAGE), (PAGE, "https://evil.example.com"), (PAGE, PAGE + ".evil.com"),
        (PAGE, "http://app.example.com"), (PAGE, "null"),
    ],
)  # fmt: skip
async def test_other_origins_get_no_cors_headers(origins: str, origin: str) -> None:
    async with browser(origins) as client:
        preflight = await client.options("/v1/models", headers={"origin": origin, **ASKS})
        answer = await client.get("/v1/models", headers={"origin": origin})
    assert preflight.status_code == 405
    assert not [name for name in (*preflight.headers, *answer.headers) if name.startswith("access-control")]


async def test_rejections_have_cors_headers() -> None:
    """A page that cannot read a 401 can only show `network error`."""
    async with browser(PAGE) as client:
        for method, path in (
            ("GET", "/v1/models"),
            ("POST", "/v1/chat/completions"),
            ("GET", "/v1//x"),
            ("GET", "/no"),
        ):
            answer = await client.request(method, path, headers={"origin": PAGE}, json={})
            assert answer.status_code in (401, 404)
            assert answer.headers["access-control-allow-origin"] == PAGE, path
            assert answer.headers["vary"] == "origin"


async def test_answer_without_origin_has_vary() -> None:
    """A cache without `vary` would serve a page an answer without CORS headers, which it could not read."""
    async with browser(PAGE) as client:
        assert (await client.get("/v1/models")).headers["vary"] == "origin"


@pytest.mark.parametrize(("origins", "on_the_lane"), [("", True), (PAGE, False)])
async def test_request_with_origin_leaves_the_fast_lane(play: Playing, origins: str, on_the_lane: bool) -> None:
    """The ASGI app adds the headers that let a page read the answer; without allowed origins the lane need not look."""
    p = play("r0")
    p.gateway.services = replace(p.gateway.services, origins=Origins.parse(origins))
    connection = Connection(p) >> post(STREAM_BODY, origin=PAGE)
    assert connection.on_the_lane == on_the_lane


async def test_alpn_selects_http_1_1(tmp_path: Path) -> None:
    """Clients that offer both and get no selection assume that the server supports neither."""
    certificate, key = self_signed(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    trust = ssl.create_default_context(cafile=certificate)
    trust.set_alpn_protocols(["h2", "http/1.1"])
    listener = socket.create_server(("127.0.0.1", 0))
    connections = Connections(8, 0, lambda _: None, time.monotonic)
    server = await listen(
        listener, lambda _: asyncio.Protocol(), connections, tls=context, handshake_s=30.0, clock=time.monotonic
    )
    _, writer = await asyncio.open_connection(*listener.getsockname(), ssl=trust, server_hostname="localhost")
    assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
    writer.close()
    server.close()
    await server.wait_closed()


def test_response_headers_are_exposed_to_pages() -> None:
    exposed = {name.strip() for name in _EXPOSED.decode().split(",")}
    own = {"content-type", "cache-control", "www-authenticate", "x-content-type-options"}  # readable anyway, or no use
    assert {header.name for header in headers.RESPONSE} - own <= exposed


@pytest.mark.parametrize(
    "text", ["app.example.com", "https://", "https://a b", "https://a/path", "ftp://a", "https://a\r\nx"]
)
def test_invalid_origin_is_refused_at_start(text: str) -> None:
    with pytest.raises(ValueError, match="not an origin"):
        Origins.parse(text)
