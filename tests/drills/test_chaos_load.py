"""Classification of cut connections in the chaos drill: by the side that closed them."""

import asyncio
import ssl
import time
from typing import cast

from tests.drills.chaos.load import Load, SentRequest


class _Silent(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)


class _Aborts(_Silent):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.pause_reading()
        # while a request lies unread, so that the client gets a reset
        asyncio.get_running_loop().call_later(0.1, self.transport.abort)


async def _send_checked(
    protocol: type[asyncio.Protocol], *, closes_after_s: float | None, is_faulted: bool = False
) -> SentRequest:
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    tls, ready = ssl.create_default_context(), {"gateway-1": True}
    load = Load({"gateway-1": url}, {"acme": "k"}, tls, ready, 1.0, 1, lambda *_: is_faulted)
    asked = SentRequest("acme", "m", "gateway-1", True, 3, time.monotonic())
    if closes_after_s is not None:
        asyncio.get_running_loop().call_later(closes_after_s, lambda: asyncio.ensure_future(load._client.aclose()))
    await load._one(asked, leaves=False)
    await load._client.aclose()
    server.close()
    return asked


async def test_reset_without_a_fault_is_wrong() -> None:
    asked = await _send_checked(_Aborts, closes_after_s=None)
    assert asked.end == "wrong" and "ConnectionResetError of a request at gateway-1" in asked.how


async def test_reset_under_a_fault_is_honest() -> None:
    assert (await _send_checked(_Aborts, closes_after_s=None, is_faulted=True)).end == "honest"


async def test_connection_closed_by_the_client_is_ours() -> None:
    """httpx's pool may close a connection that it gave to a request (tests/test_origin_pools.py)."""
    asked = await _send_checked(_Silent, closes_after_s=0.1)
    assert asked.end == "ours" and "ReadError from ClosedResourceError" in asked.how
