"""Bad versions on a whole fleet of real processes: how soon each is rolled back, and how many requests used it. Each
test prints its figures (`pytest -s`).

`acme/support-bot` goes from v1 to v2 in short stages. The simulated engine makes v2 slow or failing; v3 is pinned to
content that does not exist.
"""

import asyncio
import collections
import contextlib
import functools
import os
import secrets
import signal
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
import valkey

from functions.fleet.bus_users import server_users
from tests.e2e.projects import PATIENT, project_with, without_limits
from tests.fleets import Fleet, running_fleet, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.drill, pytest.mark.soak, pytest.mark.timeout(900)]

BOT = "acme/support-bot"
MODELS, POLICIES = "registry/models.yaml", "policies/rollouts.yaml"
SHORT = """\
---
apiVersion: shoal.dev/v1alpha1
kind: RolloutPolicy
metadata: {name: short}
spec:
  stages:
    - {percent: 20, duration: 4s, autoHalt: ["error_rate > 2%", "p50_latency > 1.5x"]}
    - {percent: 50, duration: 4s, autoHalt: ["error_rate > 2%", "p50_latency > 1.5x"]}
    - {percent: 100}
  minRequests: 30
"""
NOBODYS = "sha256:" + "0" * 64
CLIENTS = 12


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("rollouts")
    project = without_limits(project_with(folder / "project", PATIENT))
    with running_fleet(folder / "state", "sim", project=project) as fleet:
        third = f'    - {{name: v3, artifact: "s3://shoal-models/{BOT}/v3", digest: "{NOBODYS}"}}\n'
        models = edited(fleet.read(MODELS), f'{BOT}/v2"}}\n', f'{BOT}/v2"}}\n{third}')
        models = edited(models, "  rollout: at-once # a RolloutPolicy", "  rollout: short # a RolloutPolicy")
        pushed = fleet.push({MODELS: models, POLICIES: fleet.read(POLICIES) + SHORT}, "short stages")
        assert pushed.returncode == 0, pushed.stderr
        wait_until("the policy is in force", lambda: is_published(fleet), 120)
        yield fleet


@pytest.fixture(autouse=True)
def nothing_under_way(fleet: Fleet) -> Iterator[None]:
    """Restore after each test: v1 serves and no engine has a fault."""
    yield
    well = {"model": None, "ratio": 1.0, "delay_s": None, "reset_after_tokens": None, "slow_factor": 1.0}
    for replica in fleet.replicas():
        fleet.set_faults(replica["replica_id"], **well)
    point(fleet, "v1")
    wait_until("v1 serves, and nothing is under way", lambda: settled(fleet), 240, every_s=0.5)


def settled(fleet: Fleet) -> bool:
    """Return whether v1 is restored. A rollout back to v1 is promoted, because without traffic no stage would pass. The
    declaration of v1 must be published too: only then has the rolled back rollout ended and v2 can be declared again.
    """
    active = [row for row in rollouts(fleet) if is_active(row)]
    with fleet.registry() as registry:
        for row in active:
            if row["to_version"] == "v1" and row["state"] == "running":
                registry.post(f"/v1/rollouts/{row['id']}/promote", json={})
    return not active and is_published(fleet) and channel(fleet) == "v1"


def edited(text: str, old: str, new: str) -> str:
    assert old in text, f"no {old!r} in it"
    return text.replace(old, new, 1)


def is_published(fleet: Fleet) -> bool:
    status = fleet.status()
    tip = f"main@{fleet.tip()}"
    return bool(status["revision"]["last_applied"] == tip and status["snapshot"]["gateway_epoch"])


def point(fleet: Fleet, version: str) -> None:
    """Point `stable` at that version; a revert is completed by promoting it."""
    text = fleet.read(MODELS)
    head, bot, tail = text.partition(f"id: {BOT}\n")
    line = next(line for line in tail.splitlines() if line.lstrip().startswith("channels:"))
    if f"stable: {version}" not in line:
        wanted = edited(tail, line, f"  channels: {{stable: {version}}}")
        pushed = fleet.push({MODELS: head + bot + wanted}, f"stable is {version}")
        assert pushed.returncode == 0, pushed.stderr


def rollouts(fleet: Fleet) -> list[dict[str, Any]]:
    with fleet.registry() as registry:
        answer = registry.get("/v1/rollouts", params={"limit": 100})
    answer.raise_for_status()
    return list(answer.json()["data"])


def is_active(row: dict[str, Any]) -> bool:
    return row["state"] in {"loading", "running", "paused"}


def newest(fleet: Fleet) -> dict[str, Any]:
    return max(rollouts(fleet), key=lambda row: float(row["created_unix_s"]))


def channel(fleet: Fleet) -> str:
    """Return the version that callers of the channel get now, or `split`."""
    with fleet.client() as client:
        answers = [client.post("/completions", json=request()) for _ in range(8)]
    served = {answer.headers.get("x-shoal-model", "").partition("@")[2] for answer in answers}
    return served.pop() if len(served) == 1 else "split"


def request() -> dict[str, Any]:
    return {"model": BOT, "prompt": secrets.token_hex(8), "max_tokens": 8, "session_id": secrets.token_hex(8)}


def worse(fleet: Fleet, **faults: Any) -> None:
    """Inject faults into v2's requests on every replica."""
    name = next(name for row in fleet.replicas() for name in row["adapters"] if name in names_of(fleet, "v2"))
    for replica in fleet.replicas():
        fleet.set_faults(replica["replica_id"], model=name, **faults)


def names_of(fleet: Fleet, version: str) -> set[str]:
    with fleet.client() as client:
        answer = client.post("/completions", json={**request(), "model": f"{BOT}@{version}"})
    return {f"{BOT}@{answer.headers['x-shoal-digest'][: len('sha256:') + 16]}"}


class Watched:
    """Traffic, and its results by version."""

    def __init__(self) -> None:
        self.served: collections.Counter[str] = collections.Counter()
        self.failed: collections.Counter[str] = collections.Counter()
        self.first_s: dict[str, float] = {}
        self.last_s: dict[str, float] = {}
        self.took_s: dict[str, list[float]] = collections.defaultdict(list)

    async def run(self, client: httpx.AsyncClient) -> None:
        """Send streams one after the other; a retry cannot hide a failure in mid-stream."""
        while True:
            began_s = time.monotonic()
            async with client.stream("POST", "/completions", json={**request(), "stream": True}) as answer:
                text = (await answer.aread()).decode()
            version = answer.headers.get("x-shoal-model", "?").partition("@")[2]
            is_whole = answer.status_code == 200 and text.rstrip().endswith("data: [DONE]") and '"error"' not in text
            self.served[version] += 1
            self.failed[version] += not is_whole
            self.first_s.setdefault(version, began_s)
            self.last_s[version] = time.monotonic()
            self.took_s[version].append(self.last_s[version] - began_s)

    def median_s(self, version: str) -> float:
        return statistics.median(self.took_s[version])


@contextlib.asynccontextmanager
async def traffic(fleet: Fleet) -> AsyncIterator[Watched]:
    watched = Watched()
    async with fleet.async_client(timeout_s=120.0, connections=CLIENTS) as client:
        tasks = [asyncio.ensure_future(watched.run(client)) for _ in range(CLIENTS)]
        try:
            yield watched
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended


async def until(what: str, condition: Callable[[], bool], timeout_s: float = 120.0) -> float:
    return await asyncio.to_thread(wait_until, what, condition, timeout_s, 0.2)


def print_outcome(what: str, watched: Watched, row: dict[str, Any], began_s: float) -> None:
    seen = watched.served["v2"]
    first_s = watched.first_s.get("v2")
    took = f"{watched.last_s['v2'] - first_s:.1f} s after its first request" if first_s is not None else "unseen"
    print(
        f"\n{what}: {row['state']} in stage {row['stage']}, {time.monotonic() - began_s:.1f} s after the push, {took};"
        f" {seen} of {sum(watched.served.values())} requests saw it, {watched.failed['v2']} failed: {row['reason']}"
    )


async def test_failing_version_is_rolled_back_in_its_first_stage(fleet: Fleet) -> None:
    """5 % fail where 2 % are allowed: proof takes a hundred requests or more."""
    await asyncio.to_thread(worse, fleet, reset_after_tokens=2, ratio=0.05)
    await past_the_bad_luck(fleet, 200)
    await taken_back(fleet, "5 % errors in mid-stream", "error_rate > 2%")


async def test_version_twice_as_slow_is_rolled_back_in_its_first_stage(fleet: Fleet) -> None:
    """The delay is engine time: beside steps of 40 ms, load on the machine matters little."""
    await asyncio.to_thread(fleet.pace, 5.0)
    async with traffic(fleet) as watched:
        await until("it is known how long v1 takes", lambda: watched.served["v1"] >= 100)
    await asyncio.to_thread(worse, fleet, delay_s=watched.median_s("v1"))
    await taken_back(fleet, "twice as slow", "p50_latency > 1.5x")


async def past_the_bad_luck(fleet: Fleet, times: int) -> None:
    """Skip the run of failures with which the shared seed of all engines begins."""
    async with fleet.async_client(connections=CLIENTS) as client:
        for _ in range(times // CLIENTS):
            asked = {**request(), "model": f"{BOT}@v2", "max_tokens": 1}
            await asyncio.gather(*(client.post("/completions", json=asked) for _ in range(CLIENTS)))


async def taken_back(fleet: Fleet, what: str, told: str) -> None:
    async with traffic(fleet) as watched:
        began_s = time.monotonic()
        await asyncio.to_thread(point, fleet, "v2")
        await until("it is taken back", lambda: newest(fleet)["state"] == "rolled_back", 200)
        row = await asyncio.to_thread(newest, fleet)
        await until("nobody gets it", lambda: channel(fleet) == "v1", 120)
    print_outcome(what, watched, row, began_s)
    assert (row["stage"], row["to_version"]) == (0, "v2")
    assert told in row["reason"]
    assert not watched.failed["v1"]
    assert 0 < watched.served["v2"] < 0.5 * sum(watched.served.values())


async def test_unloadable_version_is_rolled_back_without_traffic(fleet: Fleet) -> None:
    async with traffic(fleet) as watched:
        began_s = time.monotonic()
        await asyncio.to_thread(point, fleet, "v3")
        await until("it is taken back", lambda: newest(fleet)["state"] == "rolled_back", 180)
        row = await asyncio.to_thread(newest, fleet)
    print_outcome("dies at load", watched, row, began_s)
    assert row["to_version"] == "v3"
    assert set(watched.served) == {"v1"}
    assert not watched.failed["v1"]


async def test_version_without_statistics_is_held(fleet: Fleet) -> None:
    """The bus carries heartbeats but no rollout statistics."""
    with statistics_blocked(fleet):
        async with traffic(fleet) as watched:
            began_s = time.monotonic()
            await asyncio.to_thread(point, fleet, "v2")
            await until("its first stage runs", lambda: newest(fleet)["state"] == "running")
            await asyncio.sleep(20)  # five times the stage, so that a wrong advance would have happened
            row = await asyncio.to_thread(newest, fleet)
            listed = (await asyncio.to_thread(fleet.status))["rollouts"]["listed"]
        print_outcome("no statistics", watched, row, began_s)
    assert (row["state"], row["stage"]) == ("running", 0)
    (shown,) = [each for each in listed if each["id"] == row["id"]]
    assert "no gateway has reported yet" in shown["verdict"]


async def test_bad_version_is_rolled_back_while_suspended(fleet: Fleet) -> None:
    """While suspended, no declaration is published, but the rollout still controls its channel."""
    await asyncio.to_thread(point, fleet, "v2")
    await until("its first stage runs", lambda: newest(fleet)["state"] == "running")
    assert (await asyncio.to_thread(fleet.shoal, "suspend")).returncode == 0
    try:
        began_s = time.monotonic()
        await asyncio.to_thread(worse, fleet, reset_after_tokens=2, ratio=0.5)
        async with traffic(fleet) as watched:
            await until("it is taken back", lambda: newest(fleet)["state"] == "rolled_back")
            row = await asyncio.to_thread(newest, fleet)
            await until("nobody gets it", lambda: channel(fleet) == "v1", 120)
        print_outcome("bad while suspended", watched, row, began_s)
    finally:
        assert (await asyncio.to_thread(fleet.shoal, "resume")).returncode == 0
    assert row["to_version"] == "v2"


async def test_good_version_completes_although_the_controller_is_killed(fleet: Fleet) -> None:
    """The controller is killed in each stage and a new one continues; no request fails."""
    async with traffic(fleet) as watched:
        began_s = time.monotonic()
        await asyncio.to_thread(point, fleet, "v2")
        for percent in (0, 20, 50):
            await until(f"{percent} %", functools.partial(has_come_to, fleet, percent))
            await asyncio.to_thread(kill_controller, fleet)
        await until("it is completed", lambda: newest(fleet)["state"] == "completed")
        row = await asyncio.to_thread(newest, fleet)
        await until("everybody gets it", lambda: channel(fleet) == "v2", 120)
    print_outcome("good", watched, row, began_s)
    assert not sum(watched.failed.values())
    with fleet.registry() as registry:
        events = registry.get(f"/v1/rollouts/{row['id']}").json()["events"]
    assert [entry["event"]["is"] for entry in events] == ["loaded", "stage_passed", "stage_passed"]


def has_come_to(fleet: Fleet, percent: int) -> bool:
    row = newest(fleet)
    return bool(row["to_version"] == "v2" and (percent == 0 or row["state"] != "loading") and row["percent"] >= percent)


def kill_controller(fleet: Fleet) -> None:
    os.kill(int(fleet.status()["controller"]["pid"]), signal.SIGKILL)
    again = fleet.shoal("up", "--engine", "sim", "--replicas", "2")
    assert again.returncode == 0, again.stdout + again.stderr


@contextlib.contextmanager
def statistics_blocked(fleet: Fleet) -> Iterator[None]:
    password = (fleet.state_dir / "secrets" / "bus-password").read_text().strip()
    bus = valkey.Valkey(host="127.0.0.1", port=fleet.port_base + 6, password=password)
    all_channels = next(line.partition(" (") for line in server_users(password) if line.startswith("user gateway "))[2]
    bus.execute_command("ACL", "SETUSER", "gateway", "clearselectors", "(+publish &shoal:pins &shoal:homes)")
    try:
        yield
    finally:
        bus.execute_command("ACL", "SETUSER", "gateway", "clearselectors", f"({all_channels}")
        bus.close()
