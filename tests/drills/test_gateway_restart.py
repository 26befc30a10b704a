"""The gateway restarted under load: open streams finish, and no connection is refused at any moment."""

import asyncio
from collections import Counter
from collections.abc import Callable

import httpx
import psutil
import pytest

from tests.drills.streams import Stream, run_all
from tests.fleets import Fleet, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.drill, pytest.mark.timeout(600)]

STREAMS = 200
MOST = 0.95 * STREAMS
# Slow-down of the engines: no stream ends before the last one is open.
WHILE_OPENING, AFTERWARDS = 10.0, 2.0


def test_streams_finish_and_no_connection_is_refused(sim_fleet: Fleet) -> None:
    sim_fleet.pace(WHILE_OPENING)
    old_pid = sim_fleet.pid("gateway")

    async def drill() -> tuple[list[Stream], list[str], int]:
        problems: list[str] = []
        asked = 0
        stop = asyncio.Event()

        async def knock() -> None:
            """Open new connections one after the other, as fast as one client can."""
            nonlocal asked
            while not stop.is_set():
                try:
                    async with httpx.AsyncClient(verify=sim_fleet.tls, timeout=60.0) as client:
                        answer = await client.get(sim_fleet.base_url.removesuffix("/v1") + "/healthz")
                    asked += 1
                    if answer.status_code != 200:
                        problems.append(str(answer.status_code))
                except httpx.HTTPError as error:
                    problems.append(repr(error))

        async with sim_fleet.async_client(timeout_s=300.0, connections=STREAMS) as client:
            streams = [Stream("smollm2-135m", words=120) for _ in range(STREAMS)]
            run = asyncio.ensure_future(run_all(client, streams))
            try:
                await until("nearly all are open", lambda: sim_fleet.gateway_metric("shoal_open_requests") >= MOST)
            except AssertionError as error:
                ended = Counter((each.status, each.error_code, each.failure, each.done) for each in streams)
                raise AssertionError(f"{error}: {ended}") from error
            await asyncio.to_thread(sim_fleet.pace, AFTERWARDS)
            knocking = [asyncio.ensure_future(knock()) for _ in range(4)]
            await until("somebody has knocked", lambda: asked > 4)
            restarted = await asyncio.to_thread(sim_fleet.shoal, "restart", "gateway", timeout_s=300.0)
            assert restarted.returncode == 0, restarted.stdout + restarted.stderr
            finished, before = await run, asked
            await until("some have knocked after all that", lambda: asked > before + 4)
            stop.set()
            await asyncio.gather(*knocking)
        return finished, problems, asked

    try:
        finished, problems, asked = asyncio.run(drill())
    finally:
        sim_fleet.pace(1.0)
    broken = [stream for stream in finished if not stream.intact]
    print(f"{STREAMS} streams over a restart: {len(broken)} broken; {asked} new connections, {len(problems)} refused")
    assert not broken, broken[:3]
    assert not problems, problems[:5]
    assert asked > 20
    wait_until("the old gateway is gone", lambda: not _alive(old_pid), 60)
    assert sim_fleet.pid("gateway") != old_pid


async def until(what: str, condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, what, condition, 120.0)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
