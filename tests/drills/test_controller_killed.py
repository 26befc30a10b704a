"""A controller that is killed repeatedly while pushes replace a pool's replicas: no stream is lost.

Each push changes `--max-num-seqs` of the pool, so that every replica is drained and restarted. The controller is killed
at a different moment each time, and restarted. Streams run all the while, and each checks its text.
"""

import asyncio
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.drills.streams import Stream, run_stream
from tests.e2e.projects import PATIENT, project_with, without_limits, without_scaling
from tests.e2e.test_git_push import controller_pid
from tests.fleets import Fleet, running_fleet, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.drill, pytest.mark.soak, pytest.mark.timeout(1800)]

POOL = "inferenceservices/smollm2-135m.yaml"
ROUNDS = int(os.environ.get("SHOAL_CONTROLLER_KILLS", "6"))
CLIENTS = 24
KILLED_AFTER_S = (0.0, 0.5, 2.0, 5.0, 9.0, 14.0)  # after the push: during review, surge, drain and what follows


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("controller-killed")
    project = without_scaling(without_limits(project_with(folder / "project", PATIENT)))
    with running_fleet(folder / "state", "sim", project=project) as running:
        yield running


async def test_no_stream_is_lost(fleet: Fleet) -> None:
    stop, streams = asyncio.Event(), list[Stream]()

    async def caller(number: int) -> None:
        model = ("smollm2-135m", "acme/support-bot")[number % 2]
        while not stop.is_set():
            streams.append(Stream(model, words=30 + number))
            await run_stream(client, streams[-1])

    async with fleet.async_client(connections=CLIENTS, timeout_s=180.0) as client, asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            group.create_task(caller(number))
        try:
            for number in range(ROUNDS):
                await asyncio.to_thread(_one_round, fleet, number)
        finally:
            stop.set()
    lost = [stream for stream in streams if not stream.intact]
    by_reason = Counter(stream.error_code or stream.failure or f"status {stream.status}" for stream in lost)
    print(f"\n{len(streams)} streams over {ROUNDS} kills of the controller, lost {len(lost)}: {dict(by_reason)}")
    assert len(streams) > 10 * ROUNDS and not lost, by_reason


def _one_round(fleet: Fleet, number: int) -> None:
    text, changed = re.subn(r"--max-num-seqs=\d+", f"--max-num-seqs={40 + number}", fleet.read(POOL))
    assert changed == 1
    pushed = fleet.push({POOL: text}, f"round {number}")
    assert pushed.returncode == 0, pushed.stderr
    time.sleep(KILLED_AFTER_S[number % len(KILLED_AFTER_S)])  # the controller works in real time meanwhile
    os.kill(controller_pid(fleet), signal.SIGKILL)
    fleet.shoal("up", "--engine", "sim", timeout_s=400.0)  # it may time out; the controller continues
    wait_until("it is applied", fleet.is_applied, 300.0, every_s=0.2)
