"""A new version of an adapter is soon on every replica, and 200 streams on the old version are not disturbed.

The answer shows the weights in use: a simulated engine marks it with the adapter's name and a hash of its files.
"""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from functions.api.ids import Digest, engine_name
from functions.engines.sim.reply import adapter_mark
from tests.drills.streams import AT_THE_DOOR, Stream, run_stream
from tests.e2e.projects import project_with, without_limits
from tests.e2e.swaps import MODEL, MOST_PROBES, VERSIONS, loaded_on, put, until_everywhere, uploaded
from tests.fleets import Fleet, running_fleet, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.soak, pytest.mark.timeout(600)]

REPLICAS = 3
STREAMS = 200
WORDS = 100  # words of a prompt and of its echo: over half a minute at this engine's pace
POOL = "inferenceservices/smollm2-135m.yaml"
# With steps of 60 ms, a first token within half a second would need prompts to be computed one at a time.
UNHURRIED = ("policies/admission.yaml", "ttftSlo: 500ms, maxWait: 10s", "ttftSlo: 5s, maxWait: 600s")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Start three replicas with slots for all streams, steps of 60 ms, and unloading of dropped adapters after 2 s."""
    folder = tmp_path_factory.mktemp("swap")
    roomy = (POOL, "- --max-num-seqs=32", "- --sim-step-ms=60\n        - --max-num-seqs=256")
    project = without_limits(project_with(folder / "project", roomy, UNHURRIED))
    variables = {"SHOAL_REPLICA_ADAPTER_GRACE_S": "2"}
    with running_fleet(folder / "state", "sim", REPLICAS, project, variables) as fleet:
        yield fleet


def mark_of(version: str, digest: Digest) -> str:
    return adapter_mark(engine_name(MODEL, digest), VERSIONS / version)


async def started(client: httpx.AsyncClient, group: asyncio.TaskGroup) -> list[Stream]:
    """Start all streams and return them when each has its first token."""
    streams = [Stream(MODEL, words=WORDS) for _ in range(STREAMS)]
    waiting, door = asyncio.Semaphore(0), asyncio.Semaphore(AT_THE_DOOR)
    for stream in streams:
        group.create_task(run_stream(client, stream, waiting.release, door))
    try:
        async with asyncio.timeout(240):
            for _ in streams:
                await waiting.acquire()
    except TimeoutError:
        ended = Counter((stream.status, stream.error_code, stream.failure) for stream in streams)
        pytest.fail(f"not all of {STREAMS} streams have begun; status, error, failure: {ended}")
    return streams


async def swap(fleet: Fleet, registry: httpx.Client) -> dict[str, Any]:
    digests = [uploaded(registry, VERSIONS / version) for version in ("v1", "v2")]
    put(registry, "v1", digests[0])
    await asyncio.to_thread(wait_until, "v1 is everywhere", lambda: len(loaded_on(fleet, digests[0])) == REPLICAS, 120)
    async with fleet.async_client(timeout_s=300.0, connections=STREAMS + MOST_PROBES) as client:
        await until_everywhere(client, "v1", REPLICAS, time.monotonic())
        async with asyncio.TaskGroup() as group:
            old = await started(client, group)
            began_s = time.monotonic()
            put(registry, "v2", digests[1])
            first, probes = await until_everywhere(client, "v2", REPLICAS, began_s)
            gone = registry.delete(f"/v1/models/{MODEL}/versions/v1")  # its streams continue
            assert gone.status_code == 204, gone.text
    unloaded_s = await asyncio.to_thread(wait_until, "v1 is unloaded", lambda: not loaded_on(fleet, digests[0]), 180)
    everywhere_s = began_s + max(first.values())
    running = sum(stream.done_s > everywhere_s for stream in old)
    return {
        "digests": digests, "old": old, "probes": probes, "running": running, "first": first, "unloaded_s": unloaded_s,
    }  # fmt: skip


def test_new_version_under_200_streams_reaches_all_replicas_undisturbed(fleet: Fleet) -> None:
    with fleet.registry() as registry:
        seen = asyncio.run(swap(fleet, registry))
    old, probes, (before, after) = seen["old"], seen["probes"], seen["digests"]
    broken = [stream for stream in (*old, *probes) if not stream.intact]
    assert not broken, f"{len(broken)} failed: {broken[:3]}"
    assert seen["running"] == STREAMS, f"the streams ended too soon to show anything: {seen['first']}"
    marks = {f"{MODEL}@v1": mark_of("v1", before), f"{MODEL}@v2": mark_of("v2", after)}
    foreign = [stream for stream in old if stream.text != f"{marks[f'{MODEL}@v1']} {stream.prompt}"]
    assert not foreign, (Counter(stream.served_by for stream in foreign), foreign[:1])
    assert all(probe.text == f"{marks[probe.served_by]} {probe.prompt}" for probe in probes)
    assert len(loaded_on(fleet, after)) == REPLICAS
    seconds = sorted(seen["first"].values())
    print(
        f"hot swap under {STREAMS} streams on {REPLICAS} replicas: first token {seconds[0]:.2f} s, on every replica "
        f"{seconds[-1]:.2f} s (median {statistics.median(seconds):.2f} s) after the PUT; {len(probes)} requests "
        f"meanwhile and {STREAMS} streams, none failed; the old version was unloaded {seen['unloaded_s']:.1f} s after "
        f"its last stream"
    )
