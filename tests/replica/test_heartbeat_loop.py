"""The heartbeat loop sends one heartbeat a second whatever the rest of the agent does, and a last one at the end."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator

from functions.fleet.bus import BusUnavailable
from functions.fleet.heartbeat import Heartbeat
from functions.replica.heartbeat_loop import HeartbeatLoop
from tests.replica.processes import wait_for
from tests.replica.statuses import Clock, make_status


class Recorder:
    """Bus in this process that records heartbeats and can be broken."""

    def __init__(self) -> None:
        self.heartbeats: list[tuple[float, Heartbeat]] = []
        self.threads: set[str] = set()
        self.held = False
        self.under_way = 0
        self.error: Exception | None = None
        self.closed = False

    async def publish(self, heartbeat: Heartbeat) -> None:
        self.threads.add(threading.current_thread().name)
        self.under_way += 1
        while self.held:
            await asyncio.sleep(0.01)
        if self.error is not None:
            raise self.error
        self.heartbeats.append((time.monotonic(), heartbeat))

    async def listen(self) -> AsyncIterator[list[bytes]]:
        for nothing in ():
            yield nothing

    async def close(self) -> None:
        self.closed = True


class Standing(Recorder):
    """Bus that blocks the calling thread in the first publication."""

    def __init__(self) -> None:
        super().__init__()
        self.stands, self.go_on = threading.Event(), threading.Event()

    async def publish(self, heartbeat: Heartbeat) -> None:
        self.stands.set()
        self.go_on.wait(10.0)
        await super().publish(heartbeat)


def test_a_blocked_event_loop_does_not_delay_a_beat() -> None:
    bus = Recorder()
    heartbeat_loop = HeartbeatLoop(make_status(), lambda: bus, interval_s=0.05)

    async def block() -> None:
        heartbeat_loop.start()
        wait_for(lambda: len(bus.heartbeats) >= 20, "a second of heartbeats while this loop stands still")

    asyncio.run(block())
    heartbeat_loop.stop()
    assert bus.threads == {"heartbeat_loop"}


def test_sequence_starts_at_zero_and_last_heartbeat_is_dead() -> None:
    bus = Recorder()
    heartbeat_loop = HeartbeatLoop(make_status(), lambda: bus, interval_s=0.02)
    heartbeat_loop.start()
    wait_for(lambda: len(bus.heartbeats) >= 5, "some heartbeats")
    heartbeat_loop.stop()
    heartbeats = [heartbeat for _, heartbeat in bus.heartbeats]
    assert [heartbeat.sequence for heartbeat in heartbeats] == list(range(len(heartbeats)))
    assert {heartbeat.phase for heartbeat in heartbeats[:-1]} == {"ready"}
    assert (heartbeats[-1].phase, heartbeats[-1].adapters, heartbeats[-1].reason) == (
        "dead",
        (),
        "the agent has stopped",
    )
    assert heartbeat_loop.counts.sent == len(heartbeats)
    assert bus.closed


def test_heartbeat_loop_survives_bus_loss_and_own_errors() -> None:
    bus = Recorder()
    heartbeat_loop = HeartbeatLoop(make_status(), lambda: bus, interval_s=0.02)
    heartbeat_loop.start()
    wait_for(lambda: bus.heartbeats, "a first heartbeat")
    for error in (BusUnavailable("gone"), ZeroDivisionError("a bug")):
        failed_before = heartbeat_loop.counts.failed
        bus.error = error
        wait_for(
            lambda before=failed_before: heartbeat_loop.counts.failed >= before + 2, f"heartbeats lost to {error!r}"
        )
    bus.error = None
    beats_before = len(bus.heartbeats)
    wait_for(lambda: len(bus.heartbeats) >= beats_before + 2, "heartbeats again")
    heartbeat_loop.stop()


def test_resumed_process_checks_its_loop_before_reporting_hung() -> None:
    """Both threads resume at once after a SIGSTOP; a first heartbeat of `hung` would divert all requests."""
    bus, clock = Standing(), Clock()
    status = make_status(clock=clock)
    heartbeat_loop = HeartbeatLoop(status, lambda: bus, interval_s=0.4)
    heartbeat_loop.start()
    wait_for(bus.stands.is_set, "a heartbeat under way")
    time.sleep(1.0)
    clock.now_s += 10.0
    sent_before = len(bus.heartbeats)
    bus.go_on.set()
    time.sleep(0.05)
    status.judged_s = clock.now_s
    wait_for(lambda: len(bus.heartbeats) >= sent_before + 3, "heartbeats again")
    heartbeat_loop.stop()
    assert {heartbeat.phase for _, heartbeat in bus.heartbeats[:-1]} == {"ready"}


def test_hanging_publication_makes_the_bus_unreachable() -> None:
    """While publications hang, the bus counts as unreachable, so withdrawn adapters stay loaded for gateways."""
    bus, clock = Recorder(), Clock()
    heartbeat_loop = HeartbeatLoop(make_status(), lambda: bus, interval_s=0.02, clock=clock)
    heartbeat_loop.start()
    wait_for(lambda: bus.heartbeats, "a first heartbeat")
    assert heartbeat_loop.reachable
    bus.held = True
    asked_before = bus.under_way
    wait_for(lambda: bus.under_way > asked_before, "a heartbeat that hangs")
    clock.now_s += 2.1
    assert not heartbeat_loop.reachable
    bus.held = False
    wait_for(lambda: heartbeat_loop.reachable, "a heartbeat of now is on the bus")
    heartbeat_loop.stop()


def test_stopping_twice_or_before_starting_is_harmless() -> None:
    bus = Recorder()
    heartbeat_loop = HeartbeatLoop(make_status(), lambda: bus, interval_s=0.02)
    heartbeat_loop.stop()
    heartbeat_loop.start()
    heartbeat_loop.stop()
    heartbeat_loop.stop()
    assert [heartbeat.phase for _, heartbeat in bus.heartbeats][-1] == "dead"
