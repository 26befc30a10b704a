"""Replicas that die, hang and come back, on a whole fleet of real processes."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.drills.streams import Stream, run_all, run_stream
from tests.fleets import Fleet, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.drill, pytest.mark.timeout(180)]

BASE = "smollm2-135m"


def phases(fleet: Fleet) -> dict[str, str]:
    return {replica["replica_id"]: replica["phase"] for replica in fleet.replicas()}


def all_ready(fleet: Fleet) -> bool:
    found = phases(fleet)
    return len(found) == 2 and set(found.values()) == {"ready"}


@pytest.fixture
def fleet(sim_fleet: Fleet) -> Iterator[Fleet]:
    wait_until("both replicas are ready", lambda: all_ready(sim_fleet), 60)
    yield sim_fleet
    wait_until("both replicas are ready again", lambda: all_ready(sim_fleet), 90)
    slow_down(sim_fleet, 1.0)


def slow_down(fleet: Fleet, factor: float) -> None:
    for replica in phases(fleet):
        fleet.set_faults(replica, slow_factor=factor)


def kill_engine(fleet: Fleet, replica: str) -> None:
    os.killpg(os.getpgid(fleet.pid("engine", replica)), signal.SIGKILL)


def one_with_requests(fleet: Fleet) -> str:
    """A replica whose engine holds two requests or more, which its agent's probe alone never makes."""
    found: list[str] = []

    def look() -> bool:
        found[:] = [replica for replica in phases(fleet) if fleet.running(replica) >= 2]
        return bool(found)

    wait_until("a replica runs two requests", look, 60)
    return found[0]


def test_killed_before_the_first_token_nobody_notices(fleet: Fleet) -> None:
    slow_down(fleet, 60.0)  # prefill of the prompt now takes seconds
    begun: list[Stream] = []  # all the same, before the kill: those may notice

    async def drill() -> list[Stream]:
        async with fleet.async_client(timeout_s=120.0) as client:
            streams = [Stream(BASE, words=60) for _ in range(8)]
            run = asyncio.ensure_future(run_all(client, streams))
            victim = await asyncio.to_thread(one_with_requests, fleet)
            begun.extend(stream for stream in streams if stream.text)
            kill_engine(fleet, victim)
            await asyncio.sleep(0.5)
            for replica, phase in phases(fleet).items():
                if replica != victim and phase == "ready":
                    fleet.set_faults(replica, slow_factor=1.0)
            return await run

    retries_before = fleet.gateway_metric("shoal_retries_total")
    finished = asyncio.run(drill())
    broken = [stream for stream in finished if not stream.intact and stream not in begun]
    assert len(begun) < len(finished) and not broken, broken[:2]
    assert fleet.gateway_metric("shoal_retries_total") > retries_before


def test_killed_in_mid_stream_ends_cleanly_and_the_replica_comes_back(fleet: Fleet) -> None:
    slow_down(fleet, 10.0)

    async def drill() -> tuple[Stream, str]:
        first = asyncio.Event()
        async with fleet.async_client(timeout_s=60.0) as client:
            stream = Stream(BASE, words=300)
            run = asyncio.ensure_future(run_stream(client, stream, first.set))
            await asyncio.wait_for(first.wait(), 30)
            victim = stream.replica
            kill_engine(fleet, victim)
            return await run, victim

    stream, victim = asyncio.run(drill())
    assert stream.status == 200
    assert stream.failure is None, "the body must end cleanly"
    assert stream.error_code == "upstream_lost"
    assert not stream.done
    assert stream.prompt.startswith(stream.text.strip()[:20])
    killed_s = time.monotonic()
    wait_until("the replica is out", lambda: phases(fleet).get(victim) != "ready", 30)
    wait_until("the replica is back", lambda: phases(fleet).get(victim) == "ready", 90)
    print(f"killed replica ready again after {time.monotonic() - killed_s:.1f} s")


def test_a_stopped_engine_is_out_of_rotation_within_seconds_and_returns(fleet: Fleet) -> None:
    victim = sorted(phases(fleet))[0]
    group = os.getpgid(fleet.pid("engine", victim))
    os.killpg(group, signal.SIGSTOP)
    stopped_s = time.monotonic()
    try:
        wait_until("the stopped replica is out", lambda: phases(fleet).get(victim) != "ready", 20)
        out_s = time.monotonic() - stopped_s

        async def drill() -> list[Stream]:
            async with fleet.async_client(timeout_s=30.0) as client:
                return await run_all(client, [Stream(BASE, words=20) for _ in range(20)])

        asked_s = time.monotonic()
        finished = asyncio.run(drill())
        took_s = time.monotonic() - asked_s
    finally:
        os.killpg(group, signal.SIGCONT)
    print(f"SIGSTOP: out of rotation after {out_s:.1f} s; 20 streams on the other replica took {took_s:.1f} s")
    assert out_s < 14, "by its agent's word, not by 15 s of silence"
    assert all(stream.intact for stream in finished), [s for s in finished if not s.intact][:2]
    assert {stream.replica for stream in finished} == {replica for replica in phases(fleet) if replica != victim}
    assert took_s < 30


def test_requests_waiting_on_an_engine_that_stops_go_elsewhere(fleet: Fleet) -> None:
    """They were routed before anyone could know; nothing was sent yet, so they are moved when the agent reports it."""
    slow_down(fleet, 60.0)
    stopped: list[int] = []

    async def drill() -> list[Stream]:
        async with fleet.async_client(timeout_s=90.0) as client:
            run = asyncio.ensure_future(run_all(client, [Stream(BASE, words=60) for _ in range(8)]))
            victim = await asyncio.to_thread(one_with_requests, fleet)
            stopped.append(os.getpgid(fleet.pid("engine", victim)))
            os.killpg(stopped[0], signal.SIGSTOP)
            for replica in phases(fleet):
                if replica != victim:
                    fleet.set_faults(replica, slow_factor=1.0)
            return await run

    try:
        finished = asyncio.run(drill())
    finally:
        for group in stopped:
            os.killpg(group, signal.SIGCONT)
    assert all(stream.intact for stream in finished), [s for s in finished if not s.intact][:2]
