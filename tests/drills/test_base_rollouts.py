"""Versions of a base on a whole fleet of real processes, with streams over the change. Each test prints its figures
(`pytest -s`).

Every answer begins with the mark of the base that made it (`shoal_mark` of its config.json), so that what the gateway
says of an answer is held to what the engine itself says. v1 has no mark; v3 is five times as slow as the others.
"""

import asyncio
import collections
import contextlib
import json
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from functions.artifacts.directories import write_manifest
from tests.e2e.projects import PATIENT, project_with, without_limits, without_scaling
from tests.fleets import Fleet, running_fleet, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.drill, pytest.mark.soak, pytest.mark.timeout(900)]

BASE, ADAPTER = "smollm2-135m", "acme/support-bot"
MODELS, POLICIES = "registry/models.yaml", "policies/rollouts.yaml"
SHORT = """\
---
apiVersion: shoal.dev/v1alpha1
kind: RolloutPolicy
metadata: {name: short}
spec:
  stages:
    - {percent: 20, duration: 3s, autoHalt: ["error_rate > 2%", "p50_latency > 2x"]}
    - {percent: 50, duration: 3s, autoHalt: ["error_rate > 2%", "p50_latency > 2x"]}
    - {percent: 100}
  minRequests: 30
"""
REPLICAS = 2
CLIENTS = 8
TURNS = 4  # of a session


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("bases")
    one = f'    - {{name: v1, artifact: "pvc://shoal-models/{BASE}"}}'
    project = without_scaling(without_limits(project_with(folder / "project", PATIENT)))
    with running_fleet(folder / "state", "sim", replicas=REPLICAS, project=project) as fleet:
        models = fleet.state_dir / "models" / "sim"
        make_version(models, "v2")
        make_version(models, "v3", slow_factor=5.0)
        text = fleet.read(MODELS)
        line = next(line for line in text.splitlines() if line.startswith(one))
        more = [one] + [one.replace("v1", v).replace(f'{BASE}"', f'{BASE}-{v}"') for v in ("v2", "v3")]
        text = text.replace(line, "\n".join(more), 1).replace(
            "  channels: {stable: v1}", "  channels: {stable: v1}\n  rollout: short", 1
        )
        pushed = fleet.push({MODELS: text, POLICIES: fleet.read(POLICIES) + SHORT}, "versions of the base")
        assert pushed.returncode == 0, pushed.stderr
        wait_until("the versions are known", lambda: is_published(fleet) and len(digests(fleet)) == 3, 120)
        fleet.pace(3.0)
        yield fleet


def make_version(models: Path, name: str, **faults: float) -> None:
    folder = models / f"{BASE}-{name}"
    folder.mkdir()
    config = json.loads((models / BASE / "config.json").read_text())
    config |= {"shoal_mark": f"[{name}]", "shoal_faults": {"slow_factor": 3.0 * faults.get("slow_factor", 1.0)}}
    (folder / "config.json").write_text(json.dumps(config))
    write_manifest(folder)


def is_published(fleet: Fleet) -> bool:
    status = fleet.status()
    return bool(
        status["revision"]["last_applied"] == f"main@{fleet.tip()}"
        and status["snapshot"]["gateway_epoch"] == status["snapshot"]["epoch"]
    )


def digests(fleet: Fleet) -> dict[str, str]:
    """By version."""
    with fleet.registry() as registry:
        model = registry.get(f"/v1/models/{BASE}").json()
    return {version["name"]: version["digest"] for version in model.get("versions", [])}


def point(fleet: Fleet, version: str) -> None:
    head, base, tail = fleet.read(MODELS).partition(f"id: {BASE} ")
    line = next(line for line in tail.splitlines() if line.lstrip().startswith("channels:"))
    pushed = fleet.push({MODELS: head + base + tail.replace(line, f"  channels: {{stable: {version}}}", 1)}, version)
    assert pushed.returncode == 0, pushed.stderr


def newest(fleet: Fleet) -> dict[str, Any]:
    with fleet.registry() as registry:
        rows = registry.get("/v1/rollouts", params={"limit": 100, "model": BASE}).json()["data"]
    return max(rows, key=lambda row: float(row["created_unix_s"])) if rows else {"state": "none", "to_version": ""}


def loaded(fleet: Fleet) -> dict[str, str]:
    """The version that each ready replica tells."""
    names = {digest: name for name, digest in digests(fleet).items()}
    return {
        replica["replica_id"]: names.get(replica["weights_digest"], "?")
        for replica in fleet.replicas()
        if replica["phase"] == "ready" and replica["age_s"] < 3
    }


class Watched:
    """What came of the traffic: by version, as the engine's own mark tells it."""

    def __init__(self) -> None:
        self.served: collections.Counter[str] = collections.Counter()
        self.of_adapters: collections.Counter[str] = collections.Counter()
        self.failed: list[str] = []
        self.wrong: list[str] = []
        self.went_back: list[list[str]] = []

    def took(self, model: str, answer: httpx.Response, text: str, named: dict[str, str]) -> str:
        said = "".join(
            choice["delta"].get("content") or ""
            for line in text.splitlines()
            if line.startswith("data: {")
            for choice in json.loads(line[6:]).get("choices", [])
        )
        is_whole = answer.status_code == 200 and text.rstrip().endswith("data: [DONE]") and '"error"' not in text
        if not is_whole:
            self.failed.append(f"{answer.status_code} {answer.headers.get('x-shoal-replica')} {text[-300:]}")
            return "failed"
        version = said[1:3] if said.startswith(("[v2]", "[v3]")) else "v1"
        self.served[version] += 1
        if model == ADAPTER:
            self.of_adapters[version] += 1
        told = (answer.headers["x-shoal-model"], answer.headers["x-shoal-digest"])
        if model == BASE and told != (f"{BASE}@{version}", named[version]):
            self.wrong.append(f"{told} of an answer of {version} by {answer.headers['x-shoal-replica']}")
        return version

    async def run(self, client: httpx.AsyncClient, named: dict[str, str], model: str) -> None:
        """Sessions of a few turns, one after the other; streamed: what fails in mid-stream no retry can hide."""
        while True:
            session, versions = secrets.token_hex(8), list[str]()
            for _ in range(TURNS):
                body = {"model": model, "session_id": session, "max_tokens": 12, "stream": True}
                body["messages"] = [{"role": "user", "content": secrets.token_hex(12)}]
                sent_s = time.monotonic()
                try:
                    async with client.stream("POST", "/chat/completions", json=body) as answer:
                        text = (await answer.aread()).decode()
                except httpx.HTTPError as error:
                    self.failed.append(f"{error!r} {time.monotonic() - sent_s:.1f} s after it was sent")
                    continue
                versions.append(self.took(model, answer, text, named))
            if len(set(versions)) > 1:
                self.went_back.append(versions)


@contextlib.asynccontextmanager
async def traffic(fleet: Fleet) -> AsyncIterator[Watched]:
    watched, named = Watched(), await asyncio.to_thread(digests, fleet)
    async with fleet.async_client(timeout_s=120.0, connections=CLIENTS) as client:
        models = [BASE, BASE, BASE, ADAPTER] * (CLIENTS // 4)
        tasks = [asyncio.ensure_future(watched.run(client, named, model)) for model in models]
        try:
            yield watched
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended


async def until(what: str, condition: Callable[[], bool], timeout_s: float = 120.0) -> float:
    return await asyncio.to_thread(wait_until, what, condition, timeout_s, 0.2)


def tell(what: str, watched: Watched, began_s: float, row: dict[str, Any]) -> None:
    print(
        f"\n{what}: {row['state']} {time.monotonic() - began_s:.1f} s after the push; {dict(watched.served)} served, "
        f"{dict(watched.of_adapters)} of them an adapter's, {len(watched.failed)} failed, {len(watched.wrong)} wrong, "
        f"{len(watched.went_back)} sessions changed: {row.get('reason')}"
    )


async def test_a_base_goes_from_one_version_to_the_next_under_streams(fleet: Fleet) -> None:
    most: collections.Counter[int] = collections.Counter()
    async with traffic(fleet) as watched:
        await until("v1 serves", lambda: watched.served["v1"] >= 40)
        began_s = time.monotonic()
        await asyncio.to_thread(point, fleet, "v2")
        while (row := await asyncio.to_thread(newest, fleet))["state"] != "completed":
            seen = await asyncio.to_thread(loaded, fleet)
            most[len(seen)] += 1
            assert time.monotonic() - began_s < 200, (row, seen)
            await asyncio.sleep(0.5)
        await until("all replicas have it", lambda: list(loaded(fleet).values()) == ["v2"] * REPLICAS)
        tell("good", watched, began_s, row)
        after = watched.served["v1"]
        await asyncio.sleep(3)
        assert watched.served["v1"] == after, "nobody gets the old one any more"
    assert not watched.failed and not watched.wrong, (watched.failed[:3], watched.wrong[:3])
    assert max(most) <= REPLICAS + 1 and min(most) >= REPLICAS, f"replicas that were ready: {dict(most)}"
    assert watched.of_adapters["v2"], "adapters were carried over"
    assert all(versions == sorted(versions) for versions in watched.went_back), watched.went_back


async def test_a_slower_base_is_taken_back_by_itself_and_nobody_waits_for_it_any_more(fleet: Fleet) -> None:
    async with traffic(fleet) as watched:
        await until("the old one serves", lambda: sum(watched.served.values()) >= 40)
        (before,) = set((await asyncio.to_thread(loaded, fleet)).values())
        began_s = time.monotonic()
        await asyncio.to_thread(point, fleet, "v3")
        await until("it is taken back", lambda: newest(fleet)["state"] == "rolled_back", 200)
        row, taken_back_s = await asyncio.to_thread(newest, fleet), time.monotonic()
        seen = watched.served["v3"]
        await until("its replicas are gone", lambda: list(loaded(fleet).values()) == [before] * REPLICAS)
        tell("slow", watched, began_s, row)
        print(f"{watched.served['v3'] - seen} answers of v3 in the {time.monotonic() - taken_back_s:.1f} s since")
        seen = watched.served["v3"]
        await asyncio.sleep(3)
        assert watched.served["v3"] == seen, "nobody gets it any more"
    assert "p50_latency > 2x" in row["reason"] and row["stage"] == 0
    assert seen and not watched.failed and not watched.wrong, (watched.failed[:3], watched.wrong[:3])


async def test_it_goes_through_although_controller_registry_and_a_new_replica_are_killed(fleet: Fleet) -> None:
    """Of the replica that is killed, streams that have begun are lost, and told so; nobody else notices anything."""
    async with traffic(fleet) as watched:
        await until("the old one serves", lambda: sum(watched.served.values()) >= 40)
        began_s = time.monotonic()
        await asyncio.to_thread(point, fleet, "v1")
        await until("a replica of v1 is ready", lambda: "v1" in loaded(fleet).values())
        await asyncio.to_thread(kill_controller, fleet)
        await until("its first stage runs", lambda: newest(fleet)["state"] in ("running", "completed"), 200)
        os.kill(fleet.pid("registry"), signal.SIGKILL)
        await until("the registry is back", lambda: answers(fleet), 120)
        new = next(name for name, version in (await asyncio.to_thread(loaded, fleet)).items() if version == "v1")
        os.kill(fleet.pid("engine", new), signal.SIGKILL)
        await until("it is completed", lambda: newest(fleet)["state"] == "completed", 300)
        row = await asyncio.to_thread(newest, fleet)
        await until("all replicas have it", lambda: list(loaded(fleet).values()) == ["v1"] * REPLICAS, 200)
        tell("killed", watched, began_s, row)
    lost = [each for each in watched.failed if new in each]
    assert watched.failed == lost and len(lost) <= CLIENTS and not watched.wrong, (watched.failed, watched.wrong)


def answers(fleet: Fleet) -> bool:
    try:
        return bool(loaded(fleet))
    except (httpx.HTTPError, KeyError):
        return False


def kill_controller(fleet: Fleet) -> None:
    before = set(fleet.processes())
    os.kill(int(fleet.status()["controller"]["pid"]), signal.SIGKILL)
    again = fleet.shoal("up", "--engine", "sim", "--replicas", str(REPLICAS))
    assert again.returncode == 0, again.stdout + again.stderr
    assert before <= set(fleet.processes()), "replicas of both versions were taken over"
