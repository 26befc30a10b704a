"""The bench's agent: says every second that the fake engine is ready. `python -m loadtests.bench.beat BUS ENGINE`."""

import asyncio
import contextlib
import sys
import time

from functions.api.ids import engine_name
from functions.fleet.bus import BusUnavailable
from functions.fleet.heartbeat import HEARTBEAT_INTERVAL_S, Heartbeat
from functions.fleet.valkey_bus import ValkeyBus
from loadtests.bench.processes import DIGEST, MODEL, POOL


async def beat(bus_port: int, engine_port: int) -> None:
    bus = ValkeyBus(f"valkey://127.0.0.1:{bus_port}/0")
    sequence = 0
    while True:
        sequence += 1
        heartbeat = Heartbeat(
            replica_id="bench-0",
            pool=POOL,
            host="127.0.0.1",
            port=engine_port,
            phase="ready",
            sequence=sequence,
            incarnation=1,
            sent_unix_s=time.time(),
            adapters=(engine_name(MODEL, DIGEST),),
        )
        with contextlib.suppress(BusUnavailable):  # the bus starts at the same time; the next beat finds it
            await bus.publish(heartbeat)
        await asyncio.sleep(HEARTBEAT_INTERVAL_S)


if __name__ == "__main__":
    asyncio.run(beat(int(sys.argv[1]), int(sys.argv[2])))
