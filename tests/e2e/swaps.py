"""Replace an adapter's version through the registry's API, and find the version that answers."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from functions.api.ids import Digest, ModelId, engine_name
from tests.drills.streams import Stream, run_stream
from tests.fleets import PROJECT, Fleet, wait_until

MODEL = ModelId("acme/hot")
VERSIONS = PROJECT / "registry" / "adapters" / "acme" / "support-bot"
BUDGET_S = 60.0
BURST = 12  # sequential requests all go to the least loaded replica; simultaneous ones reach all replicas
BURST_EVERY_S = 0.25
MOST_PROBES = 4 * BURST  # at once; on a slow machine, more would only wait for each other


def uploaded(registry: httpx.Client, directory: Path) -> Digest:
    """Upload the folder to the registry's store and return its digest."""
    files = [("file", (file.name, file.read_bytes())) for file in sorted(directory.iterdir())]
    answer = registry.post("/v1/artifacts", data={"tenant": "acme", "base_model": "smollm2-135m"}, files=files)
    assert answer.status_code in (200, 201), answer.text
    return Digest(answer.json()["digest"])


def put(registry: httpx.Client, version: str, digest: Digest) -> None:
    body = {
        "digest": digest,
        "base_model": "smollm2-135m",
        "adapter_type": "lora",
        "promote_to": "stable",
        "rollout": "at-once",
    }
    answer = registry.put(f"/v1/models/{MODEL}/versions/{version}", json=body)
    assert answer.status_code == 201, answer.text


@contextmanager
def taken_away_at_the_end(fleet: Fleet, registry: httpx.Client) -> Iterator[None]:
    """Remove the model at the end: other tests use the fleet and count its models."""
    try:
        yield
    finally:
        assert registry.delete(f"/v1/models/{MODEL}").status_code in (204, 404)
        with fleet.client() as client:
            wait_until(f"{MODEL} is gone", lambda: client.get(f"/models/{MODEL}").status_code == 404, 120)


def loaded_on(fleet: Fleet, digest: Digest) -> set[str]:
    """Return the replicas whose engine reports the adapter; agents stop advertising it before they unload."""
    name = engine_name(MODEL, digest)
    return {str(replica["replica_id"]) for replica in fleet.replicas() if name in adapters_of(replica)}


def adapters_of(replica: dict[str, Any]) -> set[str]:
    models = httpx.get(f"http://{replica['host']}:{replica['port']}/v1/models", timeout=30.0).json()["data"]
    return {str(model["id"]) for model in models}


async def until_everywhere(
    client: httpx.AsyncClient, version: str, replicas: int, began_s: float
) -> tuple[dict[str, float], list[Stream]]:
    """Return the seconds until each replica's first token with that version, and all requests sent until then."""
    first: dict[str, float] = {}
    asked: list[Stream] = []
    under_way: set[asyncio.Task[None]] = set()

    async def ask() -> None:
        probe, seen = Stream(MODEL, words=1), [0.0]
        asked.append(probe)
        await run_stream(client, probe, on_first=lambda: seen.insert(0, time.monotonic() - began_s))
        if probe.served_by == f"{MODEL}@{version}":
            first.setdefault(probe.replica, seen[0])

    deadline_s = time.monotonic() + BUDGET_S
    async with asyncio.TaskGroup() as group:
        while len(first) < replicas and time.monotonic() < deadline_s:
            for _ in range(min(BURST, MOST_PROBES - len(under_way))):
                probe = group.create_task(ask())
                under_way.add(probe)
                probe.add_done_callback(under_way.discard)
            await asyncio.sleep(BURST_EVERY_S)
    answers = Counter((probe.replica, probe.served_by, probe.status) for probe in asked)
    in_time = [first_s for first_s in first.values() if first_s <= BUDGET_S]
    assert len(in_time) == replicas, f"{version} is not on all after {BUDGET_S:.0f} s: {first}, of {answers}"
    return first, asked
