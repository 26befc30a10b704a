"""The bench's agents: send a heartbeat of each fake engine every second.

Usage: `python -m loadtests.bench.heartbeats BUS_PORT ENGINE_PORT…`
"""

import asyncio
import contextlib
import sys
import time

from functions.api.ids import engine_name
from functions.fleet.bus import BusUnavailable
from functions.fleet.heartbeat import HEARTBEAT_INTERVAL_S, Heartbeat
from functions.fleet.valkey_bus import ValkeyBus
from loadtests.bench.gateway import DIGEST, MODEL, POOL


async def send_heartbeats(bus_port: int, engine_ports: list[int]) -> None:
    bus = ValkeyBus(f"valkey://127.0.0.1:{bus_port}/0")
    sequence = 0
    while True:
        sequence += 1
        with contextlib.suppress(BusUnavailable):  # the bus may still be starting; the next round succeeds
            for number, port in enumerate(engine_ports):
                await bus.publish(heartbeat(number, port, sequence))
        await asyncio.sleep(HEARTBEAT_INTERVAL_S)


def heartbeat(number: int, engine_port: int, sequence: int) -> Heartbeat:
    return Heartbeat(
        replica_id=f"bench-{number}",
        pool=POOL,
        host="127.0.0.1",
        port=engine_port,
        phase="ready",
        sequence=sequence,
        incarnation=1,
        sent_unix_s=time.time(),
        kv_blocks_total=60_000,  # 960,000 tokens: no request waits for KV blocks
        adapters=(engine_name(MODEL, DIGEST),),
    )


if __name__ == "__main__":
    asyncio.run(send_heartbeats(int(sys.argv[1]), [int(port) for port in sys.argv[2:]]))
