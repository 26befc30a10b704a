"""Replicas that die, hang and return, on a whole fleet of real processes."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.drills.streams import Stream, run_all, run_stream
from tests.fleets import Fleet, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.drill, pytest.mark.timeout(600)]

BASE = "smollm2-135m"
# Slow-down of an engine: 2.5 s for a prompt of 60 words. A full step must stay under the 12 s without a token after
# which an agent reports its engine as hung, also on the surviving replica.
PREFILL_TAKES_SECONDS = 100.0


def phases(fleet: Fleet) -> dict[str, str]:
    return {replica["replica_id"]: replica["phase"] for replica in fleet.replicas()}


def all_ready(fleet: Fleet) -> bool:
    found = phases(fleet)
    return len(found) == 2 and set(found.values()) == {"ready"}


@pytest.fixture
def fleet(sim_fleet: Fleet) -> Iterator[Fleet]:
    wait_until("both replicas are ready", lambda: all_ready(sim_fleet), 120)
    yield sim_fleet
    wait_until("both replicas are ready again", lambda: all_ready(sim_fleet), 180)
    sim_fleet.pace(1.0)


def kill_engine(fleet: Fleet, replica: str) -> None:
    os.killpg(os.getpgid(fleet.pid("engine", replica)), signal.SIGKILL)


def go_on(group: int) -> None:
    """Resume the process group after SIGSTOP, if the controller has not replaced it meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGCONT)


def one_with_requests(fleet: Fleet) -> str:
    """Return a replica whose engine holds two or more requests, which its agent's probe alone never causes."""
    found: list[str] = []

    def find_busy() -> bool:
        found[:] = [replica for replica in phases(fleet) if fleet.running(replica) >= 2]
        return bool(found)

    wait_until("a replica runs two requests", find_busy, 120)
    return found[0]


def had_begun(stream: Stream, victim: str) -> bool:
    """Return whether the victim sent its first token before the signal, read or not: it sends nothing afterwards."""
    return bool(stream.text) and stream.replica == victim


def test_kill_before_the_first_token_is_retried_unnoticed(fleet: Fleet) -> None:
    fleet.pace(PREFILL_TAKES_SECONDS)

    async def drill() -> tuple[list[Stream], str]:
        async with fleet.async_client(timeout_s=300.0) as client:
            run = asyncio.ensure_future(run_all(client, [Stream(BASE, words=60) for _ in range(8)]))
            victim = await asyncio.to_thread(one_with_requests, fleet)
            kill_engine(fleet, victim)
            for replica in phases(fleet):
                if replica != victim:
                    fleet.set_faults(replica, slow_factor=1.0)
            return await run, victim

    retries_before = fleet.gateway_metric("shoal_retries_total")
    finished, victim = asyncio.run(drill())
    broken = [stream for stream in finished if not stream.intact and not had_begun(stream, victim)]
    assert not broken, broken[:2]
    assert fleet.gateway_metric("shoal_retries_total") > retries_before


def test_kill_in_mid_stream_ends_cleanly_and_the_replica_returns(fleet: Fleet) -> None:
    fleet.pace(10.0)

    async def drill() -> tuple[Stream, str]:
        first = asyncio.Event()
        async with fleet.async_client(timeout_s=300.0) as client:
            stream = Stream(BASE, words=300)
            run = asyncio.ensure_future(run_stream(client, stream, first.set))
            await asyncio.wait_for(first.wait(), 120)
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
    wait_until("the replica is out", lambda: phases(fleet).get(victim) != "ready", 60)
    wait_until("the replica is back", lambda: phases(fleet).get(victim) == "ready", 180)
    print(f"killed replica ready again after {time.monotonic() - killed_s:.1f} s")


@pytest.mark.soak
def test_a_stopped_engine_is_out_of_rotation_within_seconds_and_returns(fleet: Fleet) -> None:
    victim = sorted(phases(fleet))[0]
    group = os.getpgid(fleet.pid("engine", victim))
    os.killpg(group, signal.SIGSTOP)
    stopped_s = time.monotonic()
    try:
        wait_until("the stopped replica is out", lambda: phases(fleet).get(victim) != "ready", 20)
        out_s = time.monotonic() - stopped_s

        async def drill() -> list[Stream]:
            async with fleet.async_client(timeout_s=120.0) as client:
                return await run_all(client, [Stream(BASE, words=20) for _ in range(20)])

        asked_s = time.monotonic()
        finished = asyncio.run(drill())
        took_s = time.monotonic() - asked_s
    finally:
        go_on(group)
    print(f"SIGSTOP: out of rotation after {out_s:.1f} s; 20 streams on the other replica took {took_s:.1f} s")
    assert out_s < 14, "by its agent's word, not by 15 s of silence"
    assert all(stream.intact for stream in finished), [s for s in finished if not s.intact][:2]
    assert {stream.replica for stream in finished} == {replica for replica in phases(fleet) if replica != victim}


@pytest.mark.soak
def test_requests_waiting_on_an_engine_that_stops_go_elsewhere(fleet: Fleet) -> None:
    """The requests were routed before the stop could be known. Nothing was sent to the client, so they move when the
    agent reports it.
    """
    fleet.pace(PREFILL_TAKES_SECONDS)
    stopped: list[int] = []

    async def drill() -> tuple[list[Stream], str]:
        async with fleet.async_client(timeout_s=300.0) as client:
            run = asyncio.ensure_future(run_all(client, [Stream(BASE, words=60) for _ in range(8)]))
            victim = await asyncio.to_thread(one_with_requests, fleet)
            stopped.append(os.getpgid(fleet.pid("engine", victim)))
            os.killpg(stopped[0], signal.SIGSTOP)
            for replica in phases(fleet):
                if replica != victim:
                    fleet.set_faults(replica, slow_factor=1.0)
            return await run, victim

    try:
        finished, victim = asyncio.run(drill())
    finally:
        for group in stopped:
            go_on(group)
    broken = [stream for stream in finished if not stream.intact and not had_begun(stream, victim)]
    assert not broken, broken[:2]
    assert any(stream.intact for stream in finished)
