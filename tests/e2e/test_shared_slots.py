"""Two pools with sleeping warm replicas share one spare slot, on a machine with slots for three engines that are awake.

Both pools need one more replica at the same moment: one is woken; the other waits, reports it, and is woken when the
slot is free again. Meanwhile the test polls the engines: no more than three are awake, and no request fails. Simulated
engines, real processes.
"""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.e2e.projects import PATIENT, project_with, without_limits
from tests.e2e.promotions import ALWAYS, LIMIT_S, NEVER, POLICY, POOL
from tests.fleets import Fleet, running_fleet, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.soak, pytest.mark.timeout(900)]

OTHER = "other"
POOLS = (POOL, OTHER)
SLOTS = 3
SAMPLE_S = 0.5  # a slower poll of all engines mixes different moments
DEV_MODE = '      env:\n        - {name: VLLM_SERVER_DEV_MODE, value: "1"}\n'


def scaling(pool: str, most: int, rule: str) -> str:
    return f"""\
apiVersion: shoal.dev/v1alpha1
kind: AutoscalingPolicy
metadata: {{name: {pool}}}
spec:
  pool: {pool}
  replicas: {{min: 1, max: {most}}}
  warm: 1
  scaleUp:
    - "{rule}"
"""


def policies(**rules: tuple[int, str]) -> str:
    return "---\n".join(scaling(pool, *rules.get(pool.partition("-")[0], (1, NEVER))) for pool in POOLS)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("slots")
    allowed = ("policies/tenants.yaml", '["acme/*", "smollm2-135m"]', f'["acme/*", {POOL}, {OTHER}]')
    project = without_limits(project_with(folder / "project", PATIENT, allowed))
    services, models = project / "inferenceservices", project / "registry" / "models.yaml"
    demo, base = (services / f"{POOL}.yaml").read_text(), models.read_text().partition("---")[0]
    flags = "        - --enable-sleep-mode\n        - --sim-wake-ms=300\n        - --enable-lora\n"
    for pool in POOLS:
        text = demo.replace(f"name: {POOL}", f"name: {pool}").replace(f"pool: {POOL}", f"pool: {pool}")
        text = text.replace("        - --enable-lora\n", flags).replace("      env:\n", DEV_MODE)
        (services / f"{pool}.yaml").write_text(text.replace("minReplicas: 2", "minReplicas: 1"))
    more = re.sub(f"(name|id): {POOL}", rf"\1: {OTHER}", base)
    models.write_text(f"{models.read_text()}---\n{more}")
    (project / POLICY).write_text(policies())
    room = {"SHOAL_MAX_ENGINES": str(SLOTS)}
    with running_fleet(folder / "state", "sim", None, project, variables=room) as fleet:
        yield fleet


def standing(fleet: Fleet) -> dict[str, list[str]]:
    """Return the phases of each pool's replicas."""
    found: dict[str, list[str]] = {pool: [] for pool in POOLS}
    for each in fleet.status()["replicas"]:
        if each["age_s"] < 10:
            found[each["pool"]].append("asleep" if each["asleep"] else each["phase"])
    return {pool: sorted(each) for pool, each in found.items()}


def until(fleet: Fleet, **wanted: list[str]) -> None:
    seen: list[Any] = []

    def there() -> bool:
        seen[:] = [standing(fleet), [(each["pool"], each["held"]) for each in fleet.status()["scaling"]]]
        return bool(seen[0] == {POOL: wanted[POOL.partition("-")[0]], OTHER: wanted[OTHER]})

    try:
        wait_until(f"{wanted}", there, LIMIT_S / 3, every_s=0.2)
    except AssertionError as error:
        raise AssertionError(f"{error}; last: {seen}") from None


def held(fleet: Fleet, pool: str) -> str:
    return str(next(each["held"] for each in fleet.status()["scaling"] if each["pool"] == pool))


@dataclass
class Watch:
    """Samples of all engines' states, and results of requests to both pools."""

    awake: list[int] = field(default_factory=list)
    statuses: list[int | str] = field(default_factory=list)


@contextmanager
def watched(fleet: Fleet) -> Iterator[Watch]:
    watch, stop = Watch(), threading.Event()

    def look() -> None:
        with httpx.Client(timeout=5.0) as client:
            while not stop.wait(0.1):
                began_s = time.monotonic()
                ports = [entry["port"] for entry in engines(fleet)]
                awake = sum(is_awake(client, port) for port in ports)
                if time.monotonic() - began_s < SAMPLE_S:
                    watch.awake.append(awake)

    def ask() -> None:
        with fleet.client(timeout_s=120.0) as client:
            for number in iter(int, None):
                if stop.wait(0.02):
                    return
                body = {"model": POOLS[len(watch.statuses) % 2], "max_tokens": 8, "messages": [MESSAGE]}
                try:
                    watch.statuses.append(client.post("/chat/completions", json=body).status_code)
                except httpx.HTTPError as error:
                    watch.statuses.append(f"{number}: {error!r}")

    threads = [threading.Thread(target=look), threading.Thread(target=ask)]
    for thread in threads:
        thread.start()
    try:
        yield watch
    finally:
        stop.set()
        for thread in threads:
            thread.join()


MESSAGE = {"role": "user", "content": "one two three four five six seven"}


def engines(fleet: Fleet) -> list[dict[str, Any]]:
    base = fleet.port_base + 20
    running = [entry for entry in fleet.processes().values() if entry["role"] == "engine"]
    return [{**entry, "port": base + entry["slot"]} for entry in running]


def is_awake(client: httpx.Client, port: int) -> bool:
    """Return True unless the engine sleeps; an engine that does not answer occupies its slot."""
    try:
        return not client.get(f"http://127.0.0.1:{port}/is_sleeping").json()["is_sleeping"]
    except httpx.HTTPError:
        return True


def test_two_pools_share_the_spare_slot(fleet: Fleet) -> None:
    one = ["asleep", "ready"]
    with watched(fleet) as watch:
        until(fleet, smollm2=one, other=one)
        assert len(engines(fleet)) == 4, "more engines than slots: two of them sleep"

        more = policies(smollm2=(2, ALWAYS), other=(2, ALWAYS))
        assert fleet.push({POLICY: more}).returncode == 0
        wait_until("one is promoted", lambda: ["ready", "ready"] in standing(fleet).values(), LIMIT_S)
        winner = next(pool for pool, each in standing(fleet).items() if each == ["ready", "ready"])
        loser = next(pool for pool in POOLS if pool != winner)
        wait_until(
            "the other says why not", lambda: held(fleet, loser).startswith("a warm replica stays asleep"), LIMIT_S
        )
        assert standing(fleet)[loser] == one
        assert "a warm replica is loaded" in held(fleet, winner), "nor can the winner have another one"
        assert "a warm replica stays asleep" in re.sub(r"\s+", " ", fleet.shoal("status").stdout)

        less = {winner.partition("-")[0]: (1, NEVER), loser.partition("-")[0]: (2, ALWAYS)}
        assert fleet.push({POLICY: policies(**less)}).returncode == 0
        until(fleet, **{winner.partition("-")[0]: one, loser.partition("-")[0]: ["ready", "ready"]})
        assert len(engines(fleet)) == 4

        assert fleet.push({POLICY: policies()}).returncode == 0
        until(fleet, smollm2=one, other=one)
    assert max(watch.awake) == SLOTS, "the spare slot was used, and by one engine at a time"
    assert set(watch.statuses) == {200}, "nothing is lost to an engine that falls asleep or wakes"
