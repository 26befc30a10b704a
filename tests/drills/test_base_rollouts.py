"""Rollouts of base versions on a fleet of real processes, under two hundred streams. Each test prints its figures
(`pytest -s`); `test_base_rollouts_engine.py` does the same with vLLM.

Every answer begins with the mark of the base that produced it (`shoal_mark` in its config.json), which must agree with
what the gateway reports. v1 has no mark; v3 is five times slower than the others, and v4 fails in mid-stream.
"""

import asyncio
import collections
import json
import os
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from functions.artifacts.directories import write_manifest
from tests.drills.base_versions import (
    ADAPTER,
    BASE,
    Answer,
    SentRequest,
    Watched,
    all_have,
    answers,
    chat,
    declare,
    has_come_to,
    kill_controller,
    newest,
    point,
    print_outcome,
    traffic,
    until,
    versions,
)
from tests.e2e.projects import PATIENT, project_with, without_limits, without_scaling
from tests.fleets import Fleet, running_fleet

pytestmark = [pytest.mark.servers, pytest.mark.drill, pytest.mark.soak, pytest.mark.timeout(900)]

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
CLIENTS = 200
PACE = 3.0


class ByMark:
    def next_request(self, model: str) -> SentRequest:
        return SentRequest(model, secrets.token_hex(12))

    def body(self, asked: SentRequest) -> dict[str, Any]:
        return chat(asked)

    def version_of(self, answer: Answer) -> str:
        return answer.text[1:3] if answer.text.startswith(("[v2]", "[v3]", "[v4]")) else "v1"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("bases")
    project = without_scaling(without_limits(project_with(folder / "project", PATIENT)))
    with running_fleet(folder / "state", "sim", replicas=REPLICAS, project=project) as fleet:
        models = fleet.state_dir / "models" / "sim"
        make_version(models, "v2", slow_factor=PACE)
        make_version(models, "v3", slow_factor=5 * PACE)
        make_version(models, "v4", slow_factor=PACE, reset_after_tokens=2, ratio=0.2)
        declare(fleet, ("v2", "v3", "v4"), SHORT)
        fleet.pace(PACE)
        yield fleet


def make_version(models: Path, name: str, **faults: Any) -> None:
    folder = models / f"{BASE}-{name}"
    folder.mkdir()
    config = json.loads((models / BASE / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"shoal_mark": f"[{name}]", "shoal_faults": faults}))
    write_manifest(folder)


async def begun(watched: Watched) -> None:
    await until("the old one serves", lambda: len(watched.whole()) >= CLIENTS)


async def test_base_rollout_completes_under_streams(fleet: Fleet) -> None:
    most: collections.Counter[int] = collections.Counter()
    async with traffic(fleet, ByMark(), CLIENTS) as watched:
        await begun(watched)
        began_s = time.monotonic()
        await asyncio.to_thread(point, fleet, "v2")
        while (row := await asyncio.to_thread(newest, fleet))["state"] != "completed":
            seen = await asyncio.to_thread(versions, fleet)
            most[len(seen)] += 1
            assert time.monotonic() - began_s < 200, (row, seen)
            await asyncio.sleep(0.5)
        await until("all replicas have it", lambda: all_have(fleet, "v2", REPLICAS))
        print_outcome("good", watched, began_s, row)
        after_s = time.monotonic()
        await asyncio.sleep(3)
    assert not watched.failed() and not watched.wrong(), (watched.failed()[:3], watched.wrong()[:3])
    late = [answer for answer in watched.whole() if answer.sent_s > after_s and answer.served_as.endswith("@v1")]
    assert not [answer for answer in late if answer.asked.model == BASE], "nobody gets the old one any more"
    assert max(most) <= REPLICAS + 1 and min(most) >= REPLICAS, f"replicas that were ready: {dict(most)}"
    assert watched.served(ADAPTER)["v2"], "adapters were carried over"
    assert not watched.went_back(("v1", "v2")), "\n".join(watched.went_back(("v1", "v2")))


async def taken_back(fleet: Fleet, version: str, what: str) -> tuple[Watched, dict[str, Any]]:
    """Point the channel at the version under traffic, wait for the rollback, and check that the state before is
    restored.
    """
    async with traffic(fleet, ByMark(), CLIENTS) as watched:
        await begun(watched)
        (before,) = set((await asyncio.to_thread(versions, fleet)).values())
        began_s = time.monotonic()
        await asyncio.to_thread(point, fleet, version)
        await until("it is taken back", lambda: has_come_to(fleet, version, "rolled_back"), 200)
        row, taken_back_s = await asyncio.to_thread(newest, fleet), time.monotonic()
        seen = watched.served()[version]
        await until("its replicas are gone", lambda: all_have(fleet, before, REPLICAS), 200)
        print_outcome(what, watched, began_s, row)
        gone_s = time.monotonic()
        print(f"{watched.served()[version] - seen} answers of {version} in the {gone_s - taken_back_s:.1f} s since")
        await asyncio.sleep(3)
    late = [each for each in watched.served_by(version) if each.sent_s > gone_s]
    assert not late, f"nobody gets it any more; a replica that drains ends what it has: {late[:3]}"
    assert row["stage"] == 0 and not watched.wrong(), watched.wrong()[:3]
    return watched, row


async def test_slower_base_is_rolled_back_and_no_request_waits_for_it(fleet: Fleet) -> None:
    watched, row = await taken_back(fleet, "v3", "slow")
    assert watched.served()["v3"] and not watched.failed(), watched.failed()[:3]
    assert "p50_latency > 2x" in row["reason"], row


async def test_base_that_breaks_streams_is_rolled_back_and_only_its_streams_fail(fleet: Fleet) -> None:
    watched, row = await taken_back(fleet, "v4", "failing")
    assert "error_rate > 2%" in row["reason"]
    # these sessions wait for the version, or for the end of the rollout
    lost, held = watched.failed(), watched.after_having_heard("v4")
    others = [answer for answer in lost if "v4" not in watched.heard.during(answer) and answer not in held]
    assert lost and not others, others[:3]
    assert len(lost) < 0.05 * len(watched.answers), f"{len(lost)} of {len(watched.answers)}"


async def test_base_rollout_survives_kills_of_controller_registry_and_a_replica(fleet: Fleet) -> None:
    """Started streams of the killed replica are lost with an error. Sessions that have seen its version get a retry
    time until it is back; other requests are not affected.
    """
    async with traffic(fleet, ByMark(), CLIENTS) as watched:
        await begun(watched)
        began_s = time.monotonic()
        (before,) = set((await asyncio.to_thread(versions, fleet)).values())
        other = "v2" if before == "v1" else "v1"
        await asyncio.to_thread(point, fleet, other)
        await until(f"a replica of {other} is ready", lambda: other in versions(fleet).values())
        await asyncio.to_thread(kill_controller, fleet, "--engine", "sim", "--replicas", str(REPLICAS))
        await until("its first stage runs", lambda: has_come_to(fleet, other, "running", "completed"))
        os.kill(fleet.pid("registry"), signal.SIGKILL)
        await until("the registry is back", lambda: answers(fleet))
        new = next(name for name, version in (await asyncio.to_thread(versions, fleet)).items() if version == other)
        os.kill(fleet.pid("engine", new), signal.SIGKILL)
        killed_s = time.monotonic()
        await until("it has ended", lambda: has_come_to(fleet, other, "completed", "rolled_back"), 300)
        row = await asyncio.to_thread(newest, fleet)
        assert row["state"] == "completed", row
        await until("all replicas have it", lambda: all_have(fleet, other, REPLICAS), 200)
        print_outcome("killed", watched, began_s, row)
    # sessions that have seen the version are asked to retry
    held = {id(each) for each in watched.after_having_heard(other)}
    lost = [each for each in watched.failed() if id(each) not in held]
    others = [each for each in lost if each.replica != new or not each.sent_s < killed_s < each.ended_s]
    assert not others and not watched.wrong(), (others[:3], watched.wrong()[:3])
    assert len(lost) < CLIENTS
