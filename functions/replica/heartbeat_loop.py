"""The heartbeat loop: one heartbeat a second on its own thread and event loop.

Heartbeats matter most when something else is slow, so nothing else shares their loop: neither decoding a snapshot nor
a thousand metrics lines can delay a heartbeat. The loop only reads the status. If the bus is gone, each heartbeat is
still tried and the loss is logged once; readers then expire this replica by its silence.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate, takewhile

import msgspec

from functions.api.ids import EngineName
from functions.fleet.bus import Bus, BusUnavailable
from functions.fleet.heartbeat import (
    ENGINE_NAME_MAX_CHARS,
    FAILURE_MAX_CHARS,
    FAILURES_MAX,
    HEARTBEAT_INTERVAL_S,
    WITHOUT_ROOM_MAX,
    Heartbeat,
)
from functions.fleet.own_stalls import StallGuard
from functions.replica.status import AgentStatus
from functions.telemetry.bus_link import BusLink

# One heartbeat composed from the agent's status, bounded to what the bus accepts.


_REASON_MAX_CHARS = 512
_ADAPTERS_MAX = 4096
_ADAPTERS_MAX_BYTES = 144 * 1024  # the message has 256 KiB; a gateway requests an omitted adapter and finds it loaded
_WITHOUT_ROOM_MAX_BYTES = 24 * 1024
_COUNT_MAX = 10**9
_VERSION_MAX_CHARS = 64
_HOST_BYTES_MAX = 2**53


def compose(status: AgentStatus, *, sequence: int, sent_unix_s: float) -> Heartbeat:
    """Return the heartbeat that reports `status` now, with values cut to what the bus accepts."""
    phase, reason = status.phase()
    identity, load, rates = status.identity, status.load, status.rates
    return Heartbeat(
        replica_id=identity.replica_id,
        pool=identity.pool,
        host=identity.engine_host,
        port=identity.engine_port,
        phase=phase,
        sequence=sequence,
        incarnation=identity.incarnation_unix_ms,
        sent_unix_s=sent_unix_s,
        running=_count(load.running),
        waiting=_count(load.waiting),
        kv_usage_ratio=min(1.0, max(0.0, load.kv_usage_ratio)),
        kv_blocks_total=_count(load.kv_blocks_total),
        kv_block_tokens=_count(load.kv_block_tokens),
        service_ms=rates.service_ms,
        prefill_ms_per_token=rates.prefill_ms_per_token,
        decode_tokens_per_s=load.decode_tokens_per_s,
        adapters=_fitting(status.adapters.advertised, _ADAPTERS_MAX, _ADAPTERS_MAX_BYTES) if phase != "dead" else (),
        snapshot_epoch=_count(status.snapshot_epoch),
        engine_version=status.engine_version[:_VERSION_MAX_CHARS],
        reason=reason[:_REASON_MAX_CHARS],
        peer_port=status.peer_port,
        zone=identity.zone,
        adapter_room=_count(status.adapters.room) if phase == "ready" else 0,
        disk_bloom=status.disk.bloom,
        adapter_failures=_failures(status.adapters.failures),
        adapters_without_room=_without_room(status.adapters.without_room),
        asleep=status.asleep and status.standby and phase != "dead",  # a replica that is to serve is being woken
        prefix_events=status.prefix_events(),
        weights_digest=(status.weights or "") if phase != "dead" else "",
        cold_start={str(stage): seconds for stage, seconds in status.cold_start.items()},
        node=identity.node,
        pace=status.pace.pace,
        accelerator_fault=status.accelerator_fault[:_REASON_MAX_CHARS],
        kv_host_bytes=min(_HOST_BYTES_MAX, load.host_kv_bytes),
        kv_reload_ms_per_token=_two_digits(status.reload.ms_per_token(status.declared_reload)),
    )


def _two_digits(ms: float) -> float:
    """Round to two significant digits: a smaller change would turn a short heartbeat into a full one."""
    return float(f"{ms:.1e}")


def _fitting(names: tuple[EngineName, ...], most: int, most_bytes: int) -> tuple[EngineName, ...]:
    """Return the leading names, at most `most`, that fit in `most_bytes` of a bus message, encoded in quotes, escaped
    and with a comma."""
    ends_bytes = accumulate(len(msgspec.json.encode(name)) + 1 for name in names[:most])
    return names[: sum(1 for _ in takewhile(lambda end_bytes: end_bytes <= most_bytes, ends_bytes))]


def _without_room(names: tuple[EngineName, ...]) -> tuple[EngineName, ...]:
    """Return the first names by rank that fit in a heartbeat, without too long ones. Ranks alternate between tenants,
    so each tenant's first ones are reported."""
    sayable = tuple(name for name in names[:WITHOUT_ROOM_MAX] if len(name) <= ENGINE_NAME_MAX_CHARS)
    return _fitting(sayable, WITHOUT_ROOM_MAX, _WITHOUT_ROOM_MAX_BYTES)


def _failures(failures: Mapping[EngineName, str]) -> dict[str, str]:
    """Return the first FAILURES_MAX failures in the order of names, their texts cut: if a hundred fail, they share one
    cause."""
    named = sorted(name for name in failures if len(name) <= ENGINE_NAME_MAX_CHARS)[:FAILURES_MAX]
    return {name: failures[name][:FAILURE_MAX_CHARS] for name in named}


def _count(value: int) -> int:
    return min(_COUNT_MAX, max(0, value))


_log = logging.getLogger(__name__)
_PUBLISH_TIMEOUT_S = 3.0
_JOIN_TIMEOUT_S = 5.0
_TOLD_FOR_S = 2 * HEARTBEAT_INTERVAL_S  # how long a sent heartbeat counts: one heartbeat a second, and a late one


@dataclass(slots=True)
class HeartbeatCounts:
    sent: int = 0
    failed: int = 0


class HeartbeatLoop:
    """Sender of heartbeats. `open_bus` is called on the thread's event loop, since a connection belongs to one loop."""

    def __init__(
        self,
        status: AgentStatus,
        open_bus: Callable[[], Bus],
        *,
        interval_s: float = HEARTBEAT_INTERVAL_S,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._status = status
        self._open_bus = open_bus
        self._interval_s = interval_s
        self._wall_clock = wall_clock
        self._clock = clock
        self._running = threading.Event()
        self._stopping = asyncio.Event()  # used on the heartbeat loop only
        self._hurry = asyncio.Event()  # likewise
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="heartbeat_loop", daemon=True)
        self._sequence = 0
        self._reachable = True
        self._told_s = clock()  # when the last heartbeat that reached the bus was composed
        self.counts = HeartbeatCounts()
        self.link = BusLink(clock)

    @property
    def reachable(self) -> bool:
        """True if the bus has a recent heartbeat. A heartbeat long under way counts as lost.

        An adapter is unloaded after 3 s withdrawn with the bus reachable throughout. A heartbeat composed at least a
        second after the withdrawal is then on the bus, however slow the bus is.
        """
        return self._reachable and self._clock() - self._told_s <= _TOLD_FOR_S

    def start(self) -> None:
        self._thread.start()
        self._running.wait()

    def send_now(self) -> None:
        """Send a heartbeat for a change immediately, and the next one a second later."""
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._hurry.set)

    def stop(self) -> None:
        """Send a last heartbeat, with phase `dead`, so that gateways need not wait for silence, and end the thread.
        Block for some seconds at most."""
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop_beating)
            self._thread.join(_JOIN_TIMEOUT_S)

    def _run(self) -> None:
        asyncio.run(self._send_until_stopped())

    async def _send_until_stopped(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._running.set()
        bus = self._open_bus()
        next_s = loop.time()
        rounds = StallGuard(self._interval_s, next_s)
        while not self._stopping.is_set():
            if not rounds.is_on_time(loop.time()):  # after a stall the agent's own loop judges the engine first
                await asyncio.sleep(self._interval_s / 2)
            await self._send(bus, self._next_heartbeat())
            next_s = max(next_s + self._interval_s, loop.time())  # a lost second is not made up for by a burst
            await _wait(self._hurry, next_s - loop.time())
            if self._hurry.is_set() and not self._stopping.is_set():
                self._hurry.clear()
                next_s = loop.time()
        goodbye = msgspec.structs.replace(
            self._next_heartbeat(), phase="dead", adapters=(), reason="the agent has stopped"
        )
        await self._send(bus, goodbye)
        await bus.close()

    def _stop_beating(self) -> None:
        self._stopping.set()
        self._hurry.set()

    def _next_heartbeat(self) -> Heartbeat:
        heartbeat = compose(self._status, sequence=self._sequence, sent_unix_s=self._wall_clock())
        self._sequence += 1
        return heartbeat

    async def _send(self, bus: Bus, heartbeat: Heartbeat) -> None:
        made_s = self._clock()
        try:
            async with asyncio.timeout(_PUBLISH_TIMEOUT_S):
                await bus.publish(heartbeat)
        except (BusUnavailable, TimeoutError) as error:
            self.counts.failed += 1
            if self._reachable:
                _log.warning("heartbeats do not reach the bus: %s", error)
            self._reachable = False
            self.link.set(False)
        except Exception:  # a bug in one heartbeat must not end all heartbeats
            self.counts.failed += 1
            _log.exception("heartbeat %d failed", heartbeat.sequence)
        else:
            self.counts.sent += 1
            if not self._reachable:
                _log.info("heartbeats reach the bus again")
            self._reachable, self._told_s = True, made_s
            self.link.set(True)


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
