"""The overload ladder with real processes: a burst on a small pool whose policy has a fallback.

The pool's engine runs eight requests at once, at 40 ms a token; the other pool has capacity. Chats and batch requests
arrive much faster than the small pool answers. Batch is rejected, and chats are answered by the other pool, marked as
such. The rungs show in the gateway's metrics, `shoal status` and `shoal top`, and end after the burst.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.projects import project_with, without_limits
from tests.fleets import Fleet, running_fleet, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.soak, pytest.mark.timeout(600)]

SMALL, OTHER = "smollm2-135m", "other"
FALLBACK = f"  fallback:\n    - {{when: saturated, from: {SMALL}, to: {OTHER}}}\n  cascade: []\n"
SECONDS, CHATS_PER_S, BATCH_PER_S = 25.0, 12.0, 5.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("ladder")
    project = project_with(
        folder / "project",
        ("policies/admission.yaml", "ttftSlo: 500ms, maxWait: 10s", "ttftSlo: 4s, maxWait: 2s"),
        ("policies/admission.yaml", "batch: {share: 0.1}", "batch: {share: 0.1, maxWait: 3s}"),
        ("policies/autoscaling.yaml", "replicas: {min: 2, max: 4}", "replicas: {min: 1, max: 1}"),
        ("policies/tenants.yaml", '["acme/*", "smollm2-135m"]', f'["acme/*", {SMALL}, {OTHER}]'),
        ("policies/routing.yaml", "  fallback: [] # see policies/fleet/routing.yaml\n  cascade: []\n", FALLBACK),
    )
    without_limits(project)
    services, models = project / "inferenceservices", project / "registry" / "models.yaml"
    demo, base = (services / f"{SMALL}.yaml").read_text(), models.read_text().partition("---")[0]
    for pool, limits in ((SMALL, ("--max-num-seqs=8", "--sim-step-ms=40")), (OTHER, ("--sim-step-ms=5",))):
        flags = "".join(f"        - {flag}\n" for flag in limits)
        named = demo.replace(f"name: {SMALL}", f"name: {pool}").replace(f"pool: {SMALL}", f"pool: {pool}")
        kept = "".join(line for line in named.splitlines(True) if pool == OTHER or "--max-num-seqs" not in line)
        named = kept.replace("        - --enable-lora\n", flags + "        - --enable-lora\n")
        (services / f"{pool}.yaml").write_text(named.replace("minReplicas: 2", "minReplicas: 1"))
    more = base.replace(f"name: {SMALL}", f"name: {OTHER}").replace(f"id: {SMALL}", f"id: {OTHER}")
    models.write_text(f"{models.read_text()}---\n{more}")
    with running_fleet(folder / "state", "sim", None, project) as fleet:
        yield fleet


@dataclass(frozen=True, slots=True)
class Seen:
    status: int
    band: str
    degraded: str
    message: str


async def one(client: httpx.AsyncClient, band: str, number: int) -> Seen:
    content = f"{band} {number}: " + "one more word " * 12  # the simulated engine echoes it
    body = {"model": SMALL, "messages": [{"role": "user", "content": content}], "max_tokens": 40}
    answer = await client.post("/chat/completions", json=body, headers={"x-shoal-class": band})
    message = "" if answer.status_code == 200 else str(answer.json()["error"]["message"])
    return Seen(answer.status_code, band, answer.headers.get("x-shoal-degraded", ""), message)


async def burst(fleet: Fleet, rungs: set[str], told: set[str]) -> list[Seen]:
    """Send requests at an even rate while another task records the rungs in metrics and registry."""
    over = asyncio.Event()
    looking = asyncio.create_task(look(fleet, over, rungs, told))
    async with fleet.async_client(timeout_s=120.0, connections=400) as client:
        tasks, band_due, began_s = [], 0.0, time.monotonic()
        for number in range(int(SECONDS * CHATS_PER_S)):
            tasks.append(asyncio.create_task(one(client, "interactive", number)))
            band_due += BATCH_PER_S / CHATS_PER_S
            if band_due >= 1.0:
                band_due -= 1.0
                tasks.append(asyncio.create_task(one(client, "batch", number)))
            await asyncio.sleep(max(0.0, began_s + number / CHATS_PER_S - time.monotonic()))
        seen = list(await asyncio.gather(*tasks))
    over.set()
    await looking
    return seen


async def look(fleet: Fleet, over: asyncio.Event, rungs: set[str], told: set[str]) -> None:
    while not over.is_set():
        rungs |= await asyncio.to_thread(in_force, fleet)
        told |= await asyncio.to_thread(told_of, fleet)
        await asyncio.sleep(0.2)


def samples(fleet: Fleet, name: str) -> dict[tuple[str, ...], float]:
    """Return the metric's samples by label values, which are sorted by label name."""
    text = httpx.get(f"http://127.0.0.1:{fleet.port_base + 5}/metrics", timeout=30.0).text
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def in_force(fleet: Fleet) -> set[str]:
    return {rung for (pool, rung), value in samples(fleet, "shoal_overload_rung").items() if pool == SMALL and value}


def told_of(fleet: Fleet) -> set[str]:
    """Return the rungs that the registry reports to `shoal status` and `shoal top`."""
    with fleet.registry() as registry:
        answer = registry.get("/v1/fleet/pools")
    pools: dict[str, Any] = answer.raise_for_status().json()["pools"]
    return set(pools.get(SMALL, {}).get("rungs", ()))


async def test_a_burst_climbs_the_ladder_and_comes_down_again(fleet: Fleet) -> None:
    rungs: set[str] = set()
    told: set[str] = set()
    seen = await burst(fleet, rungs, told)
    chats, batch = ([each for each in seen if each.band == band] for band in ("interactive", "batch"))
    assert {"shed", "shift"} <= rungs
    assert "shed" in told
    degraded = [each for each in chats if each.degraded]
    assert degraded and all(each.degraded.startswith(f"from={SMALL}") for each in degraded)
    assert sum(each.status == 200 for each in chats) > 0.9 * len(chats), "chats are answered, by one pool or the other"
    refused = [each for each in batch if each.status == 503]
    assert any("more urgent classes go first" in each.message for each in refused)
    assert samples(fleet, "shoal_shed_total")[("low_band",)] > 0
    assert samples(fleet, "shoal_degraded_total")[(SMALL, OTHER)] > 0
    wait_until("the ladder is left", lambda: not in_force(fleet), 120)
