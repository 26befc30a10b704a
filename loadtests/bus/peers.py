"""`python -m loadtests.bus.peers {listen PORT COUNT CHANNEL ... | speak PORT REPLICAS PER_S}`: the other ends, apart.

Apart, so that what they use of the processor is in nobody's figure.
"""

import asyncio
import selectors
import socket
import sys
import time

from functions.fleet.valkey_bus import ValkeyBus
from loadtests.bus.messages import heartbeat

FIRST_SEQUENCE = 1_000_000
_READ_BYTES = 1 << 20


def listen(port: int, count: int, channels: list[str]) -> None:
    """Subscribe and read until killed."""
    selector = selectors.DefaultSelector()
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall("SUBSCRIBE {}\r\n".format(" ".join(channels)).encode())
        selector.register(connection, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.recv(_READ_BYTES)


async def speak(port: int, replicas: int, per_s: float) -> None:
    """Heartbeats of each replica in turn until killed: as fast as it goes until each has said one."""
    async with ValkeyBus(f"valkey://127.0.0.1:{port}/0") as bus:
        started_s, sent = time.monotonic(), 0
        while True:
            await bus.publish(heartbeat(sent % replicas, FIRST_SEQUENCE + sent, sent / replicas))
            sent += 1
            if sent == replicas:
                started_s = time.monotonic()
            if sent > replicas:
                await asyncio.sleep(max(0.0, started_s + (sent - replicas) / per_s - time.monotonic()))


if __name__ == "__main__":
    part, port, *rest = sys.argv[1:]
    if part == "listen":
        listen(int(port), int(rest[0]), rest[1:])
    else:
        asyncio.run(speak(int(port), int(rest[0]), float(rest[1])))
