"""Copies of hot adapters load in the background: each once, few at a time, with a pause after a failure."""

import asyncio

from functions.api.ids import EngineName, ReplicaId
from functions.fleet.tasks import Supervised
from functions.fleet.view import FleetView
from functions.gateway.routing.adapter_copies import MAX_AT_ONCE, PAUSE_S, AdapterCopies
from tests.gateway.loader_rig import PlayedLoader
from tests.gateway.rig import Clock, heartbeat

HOT, R0 = EngineName("acme/hot@sha256:0123456789abcdef"), ReplicaId("r0")


class Floor:
    def __init__(self) -> None:
        self.clock, self.loader, self.tasks, self.fleet = Clock(), PlayedLoader(), Supervised(), FleetView()
        self.fleet.fold(heartbeat("r0", peer_port=8500, adapter_room=4), self.clock())
        self.copies = AdapterCopies(self.loader, self.fleet, self.tasks, self.clock)

    async def until_idle(self) -> None:
        async with asyncio.timeout(60):
            while self.copies.under_way:
                await asyncio.sleep(0)


async def test_copy_is_in_the_fleet_view_once_loaded() -> None:
    floor = Floor()
    floor.copies.request_copy(HOT, R0)
    floor.copies.request_copy(HOT, R0)
    (await floor.loader.next()).answers("loaded")
    await floor.until_idle()
    replica = floor.fleet.replica(R0)
    assert replica is not None and HOT in replica.adapters
    assert floor.loader.asked == [R0], "wanted twice, asked once"


async def test_failed_copy_is_retried_only_after_a_pause() -> None:
    floor = Floor()
    for _ in range(2):
        floor.copies.request_copy(HOT, R0)
        (await floor.loader.next()).answers("no_room")
        await floor.until_idle()
        floor.copies.request_copy(HOT, R0)
        assert floor.copies.under_way == 0
        floor.clock.forward(PAUSE_S)
    replica = floor.fleet.replica(R0)
    assert len(floor.loader.asked) == 2 and replica is not None and HOT not in replica.adapters


async def test_concurrent_copies_are_bounded() -> None:
    floor = Floor()
    for number in range(MAX_AT_ONCE + 5):
        floor.copies.request_copy(EngineName(f"acme/hot-{number}@sha256:0123456789abcdef"), R0)
    assert floor.copies.under_way == MAX_AT_ONCE
    for _ in range(MAX_AT_ONCE):
        (await floor.loader.next()).answers("loaded")
    await floor.until_idle()
    assert len(floor.loader.asked) == MAX_AT_ONCE


async def test_unknown_replica_gets_no_copy() -> None:
    floor = Floor()
    floor.copies.request_copy(HOT, ReplicaId("gone"))
    await floor.until_idle()
    assert floor.loader.asked == []


def test_without_agents_nothing_is_copied() -> None:
    floor = Floor()
    copies = AdapterCopies(None, floor.fleet, floor.tasks, floor.clock)
    copies.request_copy(HOT, R0)
    assert copies.under_way == 0
