"""Connections without a key give way to others, on either lane and in a handshake too."""

import asyncio
import contextlib
import ssl
from pathlib import Path

import pytest

from tests.gateway.client_rig import STREAM_BODY, Connection, Server, get, post
from tests.gateway.hello import HELLO, Playing
from tests.gateway.lane_steps import answered
from tests.gateway.live import LiveGateway, Way, client, engine
from tests.gateway.rig import ACME_KEY, limits

BEARER = {"Authorization": f"Bearer {ACME_KEY}"}


def closed_for(connection: Connection, reason: str) -> float:
    registry = connection.play.gateway.services.metrics.registry
    return registry.get_sample_value("shoal_connections_closed_total", {"reason": reason}) or 0.0


async def test_idle_connections_without_a_key_give_way(play: Playing) -> None:
    """One /healthz each every 74 s held all connections of a gateway: other clients got 503."""
    p = play("r0", limits=limits(connections=3))
    strangers = []
    for _ in range(3):
        strangers.append(Connection(p) >> get("/healthz"))
        await p.settle()
    assert [connection.statuses for connection in strangers] == [[200]] * 3
    connection = Connection(p)
    await answered(connection)
    assert connection.statuses == [200]
    assert [stranger.cut for stranger in strangers] == [True, False, False], "the longest idle one"
    assert closed_for(connection, "crowded") == 1


async def test_silent_and_refused_connections_give_way(play: Playing) -> None:
    p = play("r0", limits=limits(connections=2))
    refused = Connection(p) >> post(key="sk-wrong")
    silent = Connection(p)
    await answered(Connection(p))
    assert refused.statuses == [401] and refused.cut and not silent.closed
    await answered(Connection(p))
    assert silent.cut


async def test_connection_with_half_a_head_gives_way(play: Playing) -> None:
    p = play("r0", limits=limits(connections=1))
    half = Connection(p) >> b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
    connection = Connection(p)
    assert half.cut
    await answered(connection)


async def test_connection_with_a_key_keeps_its_place_while_served(play: Playing) -> None:
    p = play("r0", limits=limits(connections=2))
    server = Server(p)
    streaming = Connection(p, server) >> post(STREAM_BODY)
    upstream = await p.connects()
    upstream.begins_stream()
    upstream.streams(HELLO)
    uploading = Connection(p, server) >> post(b"{", length=100_000)
    newcomer = Connection(p, server)
    assert newcomer.statuses == [503] and not streaming.closed and not uploading.closed
    assert closed_for(newcomer, "no_room") == 1


async def test_key_protects_a_connection_on_any_route(play: Playing) -> None:
    p = play("r0", limits=limits(connections=2))
    known = Connection(p) >> get("/v1/models", **BEARER)
    await p.settle()
    stranger = Connection(p) >> get("/v1/models", Authorization="Bearer sk-wrong")
    await p.settle()
    assert (known.statuses, stranger.statuses) == ([200], [401])
    await answered(Connection(p))
    assert stranger.cut and not known.closed


async def test_idle_connection_with_a_key_gives_way_if_no_other_can(play: Playing) -> None:
    p = play("r0", limits=limits(connections=1))
    idle = Connection(p)
    await answered(idle)
    idle.after(5.0)
    await answered(Connection(p))
    assert idle.cut


async def test_connections_per_address_are_bounded(play: Playing) -> None:
    p = play("r0", limits=limits(connections=100, connections_per_address=2))
    first, second = Connection(p), Connection(p)
    third = Connection(p)
    assert third.statuses == [503] and closed_for(third, "address") == 1
    first.leaves()
    assert not Connection(p).answers and not second.closed


@pytest.mark.servers
async def test_silent_handshakes_are_counted_and_give_way(
    certificate: tuple[Path, Path], trust: ssl.SSLContext
) -> None:
    """Each lasted a minute and counted for no bound: descriptors ran out before connections did."""
    with LiveGateway(limits(connections=4, head_s=50.0), certificate) as live:
        silent = [await asyncio.open_connection("127.0.0.1", live.tls_port) for _ in range(12)]
        async with asyncio.timeout(30):
            ended, _ = await asyncio.wait([asyncio.ensure_future(reader.read()) for reader, _ in silent[:8]])
        assert len(ended) == 8, "only four are left"
        assert live.call(lambda: len(live.gateway.services.connections)) == 4
        async with engine(live), client(live, Way("fast", tls=True), trust) as caller:
            await caller.send(post())
            assert (await caller.answer()).status == 200
        for _, writer in silent:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
