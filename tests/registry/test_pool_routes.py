"""`/v1/fleet/pools`: what gateways and replicas have told, and what the controller wants."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from functions.fleet import heartbeat as heartbeats
from functions.fleet import pool_heartbeat
from functions.fleet.pool_board import REPORT_PATH, DesiredPool, DesiredPools, PoolReport
from functions.fleet.pool_heartbeat import PoolHeartbeat, PoolStats
from functions.registry.fleet_watch import DESIRED_FOR_S
from tests.fleet.builders import beat as heartbeat
from tests.registry.world import World, serving


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving(tmp_path) as opened:
        yield opened


async def report(world: World) -> PoolReport:
    answer = await world.get(REPORT_PATH)
    assert answer.status_code == 200
    return msgspec.json.decode(answer.content, type=PoolReport)


async def test_sums_and_replicas_are_told(world: World) -> None:
    world.fleet.take(heartbeats.encode(heartbeat(phase="warm")))
    world.fleet.pools.take(pool_heartbeat.encode(PoolHeartbeat("gw", 1, 1, 1.0, (PoolStats("a", 10.0, arrivals=20),))))
    world.now_s = 2.0
    told = await report(world)
    assert told.pools["a"].arrivals_per_s == 2.0
    assert [(each.phase, each.age_s) for each in told.replicas] == [("warm", 2.0)]
    assert not told.bus_connected


async def test_a_pool_of_which_nobody_spoke_lately_is_not_there(world: World) -> None:
    world.fleet.pools.take(pool_heartbeat.encode(PoolHeartbeat("gw", 1, 1, 1.0, (PoolStats("a", 10.0),))))
    world.now_s = 60.0
    assert (await report(world)).pools == {}


async def test_what_the_controller_wants_is_a_metric_until_it_is_old(world: World) -> None:
    wanted = msgspec.json.encode(DesiredPools((DesiredPool("a", 3, "rule"),)))
    assert (await world.client.put(REPORT_PATH, content=wanted)).status_code == 204
    line = 'shoal_autoscaler_desired_replicas{pool="a",reason="rule"} 3.0'
    assert line in (await world.get("/metrics")).text
    world.now_s = DESIRED_FOR_S + 1.0
    assert line not in (await world.get("/metrics")).text


@pytest.mark.parametrize("body", [b"", b"[]", b'{"pools": [{"pool": "a b", "replicas": 1, "cause": "rule"}]}'])
async def test_what_is_none_is_refused(world: World, body: bytes) -> None:
    answer = await world.client.put(REPORT_PATH, content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_body")
