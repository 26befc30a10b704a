"""What reaches the gateway in the background: heartbeats from the bus, and the clock's sweep. Snapshots follow the same
way, from the registry (`functions.fleet.snapshots`).

Each feed is a loop that ends by raising when its source is lost; `Supervised` starts it again. The gateway goes on
with what it last knew.
"""

import asyncio
import logging

from functions.fleet import heartbeat as heartbeats
from functions.fleet.bus import Bus, BusUnavailable
from functions.fleet.heartbeat import HeartbeatInvalid
from functions.gateway.core import Gateway

_log = logging.getLogger(__name__)
_SWEEP_INTERVAL_S = 0.25


async def follow_bus(gateway: Gateway, bus: Bus) -> None:
    """Every replica's last beat, then beats as they come, until the bus is lost."""
    try:
        for message in await bus.latest():
            _take(gateway, message)
        async for message in bus.listen():
            _take(gateway, message)
    except BusUnavailable as error:
        _log.warning("the bus is out of reach (%s); the last known view stays in use", error)


async def sweep(gateway: Gateway) -> None:
    while True:
        await asyncio.sleep(_SWEEP_INTERVAL_S)
        gateway.sweep()


def _take(gateway: Gateway, message: bytes) -> None:
    try:
        gateway.heard(heartbeats.decode(message))
    except HeartbeatInvalid as error:
        _log.warning("dropped a message from the bus: %s", error)
