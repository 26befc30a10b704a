"""The agent beside an engine with KV blocks in host memory: gateways know these blocks and their reload cost."""

import asyncio
import json
from pathlib import Path

import pytest

from functions.api.ids import PoolName
from functions.fleet.prefix_updates import PrefixRequest, decode, encode
from functions.fleet.prefix_view import PrefixView
from functions.fleet.valkey_bus import ValkeyBus
from tests.ports import free_ports
from tests.replica.conftest import BusProbe
from tests.replica.processes import POOL, AgentProcess, Engine, http

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]

RATE_GB_S = 1.0


async def known_to_a_gateway(url: str, is_enough: int) -> PrefixView:
    """Return a gateway's view once it knows enough of the replica's blocks, on the accelerator or in host memory."""
    view, bus = PrefixView(), ValkeyBus(url)
    async with asyncio.timeout(60), bus:
        news = bus.prefixes()
        await bus.publish_prefix_request(encode(PrefixRequest(POOL, "events", everyone=True)))
        async for message in news:
            view.fold(decode(message), 0.0)
            if view.known_blocks().get((PoolName(POOL), "events"), 0) >= is_enough:
                return view
            await bus.publish_prefix_request(
                encode(PrefixRequest(POOL, "events", view.unknown_replicas(PoolName(POOL))))
            )
    raise AssertionError("the bus fell silent")


def test_blocks_in_host_memory_are_told_with_what_they_cost(bus: BusProbe, tmp_path: Path) -> None:
    """128 blocks are on the accelerator, 512 in host memory. Reported as gone or free, they would mislead routing."""
    events, replay = free_ports(2)
    config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://127.0.0.1:{events}"}
    config |= {"replay_endpoint": f"tcp://*:{replay}"}
    flags = ("--num-gpu-blocks-override", "128", "--kv-offloading-size", "1", "--kv-events-config", json.dumps(config))
    flags += ("--sim-kv-host-gigabytes-per-s", str(RATE_GB_S))
    settings = {
        "KV_EVENTS_ENDPOINT": f"tcp://127.0.0.1:{events}",
        "KV_EVENTS_REPLAY_ENDPOINT": f"tcp://127.0.0.1:{replay}",
    }
    with (
        Engine(tmp_path, arguments=flags).run() as engine,
        AgentProcess(tmp_path, engine, bus.url, settings=settings).run() as agent,
    ):
        told = bus.wait_for_phase("ready")
        assert told.kv_host_bytes == 2**30
        assert told.kv_reload_ms_per_token > 0.0, "before anything was reloaded"
        for letter in "abcda":
            body = {"model": POOL, "messages": [{"role": "user", "content": letter * 4000}], "max_tokens": 1}
            status, answer = http("POST", f"{engine.url}/v1/chat/completions", body)
            assert status == 200, answer
        learnt = 131_072 / (RATE_GB_S * 1e9) * 1000
        bus.wait_for_beat(lambda beat: abs(beat.kv_reload_ms_per_token - learnt) < 0.01, f"{learnt:.3f} ms a token")
        view = asyncio.run(known_to_a_gateway(bus.url, is_enough=129))
        pool = view._pools[PoolName(POOL)]
        assert pool.index.has_host_blocks
        page = http("GET", f"{agent.url}/metrics")[1].decode()
    shown = dict(line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("shoal_kv_"))
    assert float(shown["shoal_kv_host_blocks_known"]) > 0 and float(shown["shoal_kv_events_lost_total"]) == 0.0
    assert float(shown["shoal_kv_host_hit_tokens_total"]) > 0
    assert float(shown["shoal_kv_blocks_left_out_total"]) == 0.0
