"""Snapshot notices over a real Valkey reach every listener; without a bus nothing breaks."""

import asyncio

import pytest
import valkey.asyncio as valkey

from functions.fleet import snapshot_notices
from functions.fleet.bus import BusUnavailable
from functions.fleet.snapshot_notices import SnapshotNotice, announce, follow_notices
from functions.fleet.valkey_bus import NOTICES_CHANNEL, ValkeyBus
from tests.fleet.conftest import PASSWORD


def test_snapshot_notice_round_trips() -> None:
    news = SnapshotNotice(epoch=7, pools=("base", "other"))
    assert snapshot_notices.decode(snapshot_notices.encode(news)) == news


@pytest.mark.parametrize("message", [b"", b"{", b"[]", b"\xff", b'{"epoch":-1}', b'{"epoch":1,"x":2}', b"9" * 100_000])
def test_invalid_snapshot_notice_is_dropped(message: bytes) -> None:
    assert snapshot_notices.decode(message) is None


@pytest.mark.servers
async def test_listener_receives_notices_and_skips_invalid_messages(valkey_port: int) -> None:
    heard: asyncio.Queue[SnapshotNotice] = asyncio.Queue()
    url = f"valkey://127.0.0.1:{valkey_port}/0"
    rubbish = valkey.Valkey.from_url(url, password=PASSWORD)
    async with ValkeyBus(url, password=PASSWORD) as bus, ValkeyBus(url, password=PASSWORD) as other:
        listening = asyncio.create_task(follow_notices(bus, heard.put_nowait))
        async with asyncio.timeout(60):
            while heard.empty():  # messages sent before the subscription is active are lost
                await rubbish.publish(NOTICES_CHANNEL, b"rubbish")
                await announce(other, SnapshotNotice(epoch=3))
                await asyncio.sleep(0.05)
        assert heard.get_nowait() == SnapshotNotice(epoch=3)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    await rubbish.aclose()


async def test_without_a_bus_nothing_is_announced_and_nothing_breaks() -> None:
    async with ValkeyBus("valkey://127.0.0.1:1/0") as bus:
        await announce(bus, SnapshotNotice(epoch=1))
        with pytest.raises(BusUnavailable):
            await follow_notices(bus, lambda _: None)
