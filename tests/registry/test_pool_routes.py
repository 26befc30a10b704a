"""`/v1/fleet/pools`: reports of gateways and replicas, and the controller's desired sizes."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from functions.fleet import heartbeat as heartbeats
from functions.fleet import pool_heartbeat
from functions.fleet.pool_board import REPORT_PATH, DesiredPool, DesiredPools, PoolReport
from functions.fleet.pool_heartbeat import PoolHeartbeat, PoolStats
from functions.fleet.verdicts import VERDICTS_FOR_S, VERDICTS_PATH, ReplicaTrouble, Verdicts, decode_notice
from functions.registry.fleet_watch import DESIRED_FOR_S
from tests.fleet.builders import beat as heartbeat
from tests.registry.rig import Rig, serving


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with serving(tmp_path) as opened:
        yield opened


async def report(rig: Rig) -> PoolReport:
    answer = await rig.get(REPORT_PATH)
    assert answer.status_code == 200
    return msgspec.json.decode(answer.content, type=PoolReport)


async def test_pools_report_sums_and_replicas(rig: Rig) -> None:
    rig.fleet.receive_message(heartbeats.encode(heartbeat(phase="warm")))
    rig.fleet.pools.receive_message(
        pool_heartbeat.encode(PoolHeartbeat("gw", 1, 1, 1.0, (PoolStats("a", 10.0, arrivals=20),)))
    )
    rig.now_s = 2.0
    told = await report(rig)
    assert told.pools["a"].arrivals_per_s == 2.0
    assert [(each.phase, each.age_s) for each in told.replicas] == [("warm", 2.0)]
    assert not told.bus_connected


async def test_pool_without_recent_reports_is_not_listed(rig: Rig) -> None:
    rig.fleet.pools.receive_message(pool_heartbeat.encode(PoolHeartbeat("gw", 1, 1, 1.0, (PoolStats("a", 10.0),))))
    rig.now_s = 60.0
    assert (await report(rig)).pools == {}


async def test_desired_size_is_a_metric_until_it_expires(rig: Rig) -> None:
    wanted = msgspec.json.encode(DesiredPools((DesiredPool("a", 3, "rule"),)))
    assert (await rig.client.put(REPORT_PATH, content=wanted)).status_code == 204
    line = 'shoal_autoscaler_desired_replicas{pool="a",reason="rule"} 3.0'
    assert line in (await rig.get("/metrics")).text
    rig.now_s = DESIRED_FOR_S + 1.0
    assert line not in (await rig.get("/metrics")).text


@pytest.mark.parametrize("body", [b"", b"[]", b'{"pools": [{"pool": "a b", "replicas": 1, "cause": "rule"}]}'])
async def test_invalid_desired_sizes_are_refused(rig: Rig, body: bytes) -> None:
    answer = await rig.client.put(REPORT_PATH, content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_body")


async def test_verdicts_are_shown_and_counted_until_reports_stop(rig: Rig) -> None:
    said: list[bytes] = []

    class Bus:
        async def publish_nodes(self, message: bytes) -> None:
            said.append(message)

        def nodes(self) -> AsyncIterator[bytes]:
            raise NotImplementedError

    rig.fleet.node_bus = Bus()
    trouble = ReplicaTrouble("base", "r0", "slow", "held", "200 ms between two tokens", "the pool is full")
    verdicts = Verdicts({"n1": "down", "n2": "unknown"}, (trouble,), {"base": 2})
    answer = await rig.client.put(VERDICTS_PATH, content=msgspec.json.encode(verdicts))
    assert answer.status_code == 204
    assert [decode_notice(message).nodes for message in said] == [{"n1": "down", "n2": "unknown"}]
    assert (await rig.get("/v1/fleet")).json()["verdicts"] == msgspec.json.decode(msgspec.json.encode(verdicts))
    page = (await rig.get("/metrics")).text
    assert 'shoal_replica_troubled{pool="base",replica="r0",state="held",what="slow"} 1.0' in page
    assert 'shoal_slow_replica_restarts{pool="base"} 2.0' in page
    assert 'shoal_nodes_not_ready{state="down"} 1.0' in page
    rig.now_s = VERDICTS_FOR_S + 1.0
    page = (await rig.get("/metrics")).text
    assert 'replica="r0",state="held"' not in page and 'shoal_nodes_not_ready{state="down"} 0.0' in page


@pytest.mark.parametrize("body", [b"", b'{"nodes": {"n 1": "down"}}', b'{"nodes": {"n1": "lost"}}', b'{"node": {}}'])
async def test_invalid_verdicts_are_refused(rig: Rig, body: bytes) -> None:
    answer = await rig.client.put(VERDICTS_PATH, content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_body")


async def test_silent_zone_is_reported_to_the_controller(rig: Rig) -> None:
    rig.fleet.link.set(True)
    for now_s in range(5):
        rig.now_s = float(now_s)
        for name in ["a1", "a2", "b1", "b2", "c1", "c2"] if not now_s else ["a1", "a2", "b1", "b2"]:
            replica = heartbeat(replica_id=name, zone=name[0], sequence=now_s + 1)
            rig.fleet.receive_message(heartbeats.encode(replica))
    told = (await report(rig)).replicas
    assert {each.replica_id: each.suspected for each in told if each.suspected} == {"c1": "zone c", "c2": "zone c"}
