"""`python -m loadtests.bus.peers {listen PORT COUNT CHANNEL ... | speak PORT REPLICAS PER_S}`: subscribers or senders.

They run as separate processes, so that their CPU time is in no figure.
"""

import selectors
import socket
import sys
import time
from typing import Any

import valkey

from functions.fleet.heartbeat import SILENCE_LIMIT_S
from functions.fleet.heartbeat_gathering import (
    ALONE_CHANNEL,
    GATHER,
    GATHERED_CHANNEL,
    HELD_KEY,
    KEY_PREFIX,
    PACE_KEY,
    ReplicaLines,
)
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


def speak(port: int, replicas: int, per_s: float) -> None:
    """Send `per_s` heartbeats a second, of each replica in turn and in ten batches a second, until killed."""
    client: Any = valkey.Valkey(port=port)
    sha, told = client.script_load(GATHER), [ReplicaLines() for _ in range(replicas)]
    sent, next_s = 0, time.monotonic()
    while True:
        with client.pipeline(transaction=False) as pipeline:
            for number in range(sent, sent + round(per_s / 10)):
                said = heartbeat(number % replicas, FIRST_SEQUENCE + number, number / replicas)
                line = told[number % replicas].next_line(said)
                told[number % replicas].mark_sent(line, said, is_known=True, single_listeners=0)
                keys = (KEY_PREFIX + said.replica_id, HELD_KEY, PACE_KEY)
                flags = (int(line.is_whole), int(line.at_once), int(SILENCE_LIMIT_S))
                pipeline.evalsha(sha, len(keys), *keys, line.text, *flags, GATHERED_CHANNEL, ALONE_CHANNEL)
            pipeline.execute()
        sent, next_s = sent + round(per_s / 10), max(next_s + 0.1, time.monotonic() - 1.0)
        time.sleep(max(0.0, next_s - time.monotonic()))


if __name__ == "__main__":
    part, port, *rest = sys.argv[1:]
    if part == "listen":
        listen(int(port), int(rest[0]), rest[1:])
    else:
        speak(int(port), int(rest[0]), float(rest[1]))
