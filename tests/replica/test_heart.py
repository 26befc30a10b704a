"""The heart: beats once a second whatever the rest of the agent does, and says goodbye."""

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
    """A bus in this process: it remembers, and can be broken."""

    def __init__(self) -> None:
        self.beats: list[tuple[float, Heartbeat]] = []
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
        self.beats.append((time.monotonic(), heartbeat))

    async def latest(self) -> list[bytes]:
        return []

    async def listen(self) -> AsyncIterator[bytes]:
        for nothing in ():
            yield nothing

    async def close(self) -> None:
        self.closed = True


def test_a_blocked_event_loop_does_not_delay_a_beat() -> None:
    bus = Recorder()
    heart = HeartbeatLoop(make_status(), lambda: bus, interval_s=0.05)

    async def block() -> None:
        heart.start()
        wait_for(lambda: len(bus.beats) >= 20, "a second of beats while this loop stands still")

    asyncio.run(block())
    heart.stop()
    assert bus.threads == {"heart"}


def test_it_counts_from_zero_and_ends_with_dead() -> None:
    bus = Recorder()
    heart = HeartbeatLoop(make_status(), lambda: bus, interval_s=0.02)
    heart.start()
    wait_for(lambda: len(bus.beats) >= 5, "some beats")
    heart.stop()
    beats = [beat for _, beat in bus.beats]
    assert [beat.sequence for beat in beats] == list(range(len(beats)))
    assert {beat.phase for beat in beats[:-1]} == {"ready"}
    assert (beats[-1].phase, beats[-1].adapters, beats[-1].reason) == ("dead", (), "the agent has stopped")
    assert heart.counts.sent == len(beats)
    assert bus.closed


def test_a_lost_bus_and_a_fault_of_ours_cost_beats_but_not_the_heart() -> None:
    bus = Recorder()
    heart = HeartbeatLoop(make_status(), lambda: bus, interval_s=0.02)
    heart.start()
    wait_for(lambda: bus.beats, "a first beat")
    for error in (BusUnavailable("gone"), ZeroDivisionError("a bug")):
        failed_before = heart.counts.failed
        bus.error = error
        wait_for(lambda before=failed_before: heart.counts.failed >= before + 2, f"beats lost to {error!r}")
    bus.error = None
    beats_before = len(bus.beats)
    wait_for(lambda: len(bus.beats) >= beats_before + 2, "beats again")
    heart.stop()


def test_what_a_slow_bus_has_not_taken_nobody_knows() -> None:
    """An adapter that is withdrawn meanwhile is not unloaded: no gateway has heard of it."""
    bus, clock = Recorder(), Clock()
    heart = HeartbeatLoop(make_status(), lambda: bus, interval_s=0.02, clock=clock)
    heart.start()
    wait_for(lambda: bus.beats, "a first beat")
    assert heart.reachable
    bus.held = True
    asked_before = bus.under_way
    wait_for(lambda: bus.under_way > asked_before, "a beat that hangs")
    clock.now_s += 2.1
    assert not heart.reachable
    bus.held = False
    wait_for(lambda: heart.reachable, "a beat of now is on the bus")
    heart.stop()


def test_stopping_twice_or_before_starting_is_harmless() -> None:
    bus = Recorder()
    heart = HeartbeatLoop(make_status(), lambda: bus, interval_s=0.02)
    heart.stop()
    heart.start()
    heart.stop()
    heart.stop()
    assert [beat.phase for _, beat in bus.beats][-1] == "dead"
