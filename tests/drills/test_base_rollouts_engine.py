"""Rollouts of base versions with real vLLM, under two hundred streams and with adapters on all versions. Each test
prints its figures (`pytest -s`); `test_base_rollouts.py` does the same with simulated engines, in less time.

At temperature 0 every version has its own texts (`altered_bases`). They are fetched from each engine's own port, past
the gateway, as soon as it serves, and answers through the gateway must match them. v3 has five times as many layers as
the others; v4's engine dies of the clients' prompts and not of the agent's probes.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from functions.api.ids import Digest, ModelId, engine_name
from tests.drills.altered_bases import Altered
from tests.drills.base_versions import (
    ADAPTER,
    BASE,
    Answer,
    SentRequest,
    Watched,
    all_have,
    answers,
    completion,
    declare,
    digests,
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

pytestmark = [
    pytest.mark.engine,
    pytest.mark.own_engines,
    pytest.mark.drill,
    pytest.mark.soak,
    pytest.mark.timeout(1800),
]

SHORT = """\
---
apiVersion: shoal.dev/v1alpha1
kind: RolloutPolicy
metadata: {name: short}
spec:
  stages:
    - {percent: 20, duration: 5s, autoHalt: ["error_rate > 2%", "p50_latency > 1.5x"]}
    - {percent: 100}
  minRequests: 30
"""
REPLICAS = 2
CLIENTS = 200
AT_ONCE = 48  # beyond what two engines on two cores answer within the maximum wait, the gateway correctly refuses
VERSIONS = (Altered("v2", 1), Altered("v3", 2, more_layers=120), Altered("v4", 4, fails_at="A word"))
DIES = "v4"
PROMPTS = tuple(f"A word about {thing} is" for thing in ("the sea", "bread", "a clock", "rain", "Rome", "iron"))
DYING_S = 2.0  # from the first answer of a dying engine to its end
START_S = 600.0  # start of an engine beside two busy ones


class ByWords:
    """Answer of each version to each prompt, fetched from the engines directly."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._named = {digest: version for version, digest in digests(fleet).items()}
        self._adapter = engine_name(ModelId(ADAPTER), Digest(digests(fleet, ADAPTER)["v1"]))
        self._words: dict[tuple[str, SentRequest], str] = {}
        self._prompts = cycle(PROMPTS)

    def next_request(self, model: str) -> SentRequest:
        return SentRequest(model, next(self._prompts))

    def body(self, asked: SentRequest) -> dict[str, Any]:
        return completion(asked)

    def version_of(self, answer: Answer) -> str | None:
        found = {
            version for (version, asked), words in self._words.items() if (asked, words) == (answer.asked, answer.text)
        }
        assert len(found) <= 1, f"{found} say the same to {answer.asked}: {answer.text!r}"
        return next(iter(found), None)

    def learn(self) -> None:
        """Fetch the unknown answers of each version that a replica has."""
        try:
            replicas = [replica for replica in self._fleet.replicas() if replica["phase"] == "ready"]
        except (httpx.HTTPError, KeyError):  # the registry is being killed
            return
        with ThreadPoolExecutor(2 * len(PROMPTS)) as threads:
            for replica in replicas:
                list(threads.map(partial(self._learn, replica), self._unknown(replica)))

    def _unknown(self, replica: dict[str, Any]) -> list[SentRequest]:
        if self._version(replica) == DIES:  # it must die of the clients' prompts, not of ours
            return []
        models = [BASE, *([ADAPTER] if self._adapter in replica["adapters"] else [])]
        asked = [SentRequest(model, prompt) for model in models for prompt in PROMPTS]
        return [each for each in asked if (self._version(replica), each) not in self._words]

    def _version(self, replica: dict[str, Any]) -> str:
        return self._named.get(replica["weights_digest"], "?")

    def _learn(self, replica: dict[str, Any], asked: SentRequest) -> None:
        """Fetch and store the answer; store nothing if the engine fails or is gone."""
        body = self.body(asked) | {"model": self._adapter if asked.model == ADAPTER else BASE}
        url = f"http://{replica['host']}:{replica['port']}/v1/completions"
        with contextlib.suppress(httpx.HTTPError):
            answer = httpx.post(url, json=body, timeout=120.0)
            if answer.status_code == 200:
                self._words[self._version(replica), asked] = str(answer.json()["choices"][0]["text"])


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    base = os.environ.get("SHOAL_BASE_MODEL_DIR", "")
    if not base:
        pytest.skip("SHOAL_BASE_MODEL_DIR is not set: `make soak` prepares engine and base model, and sets it")
    folder = tmp_path_factory.mktemp("bases")
    models = folder / "state" / "models"
    models.mkdir(parents=True)
    (models / BASE).symlink_to(Path(base).absolute())
    for version in VERSIONS:
        version.write_copy(models / BASE)
    project = without_scaling(without_limits(project_with(folder / "project", PATIENT)))
    with running_fleet(folder / "state", "vllm", REPLICAS, project) as fleet:
        declare(fleet, tuple(version.name for version in VERSIONS), SHORT)
        yield fleet


@pytest.fixture(scope="module")
def judge(fleet: Fleet) -> ByWords:
    return ByWords(fleet)


@contextlib.asynccontextmanager
async def streams(fleet: Fleet, judge: ByWords) -> AsyncIterator[Watched]:
    async with traffic(fleet, judge, CLIENTS, judge.learn, AT_ONCE) as watched:
        await until("the old one serves", lambda: len(watched.whole()) >= CLIENTS, 300)
        yield watched


async def test_base_rollout_completes_under_streams(fleet: Fleet, judge: ByWords) -> None:
    async with streams(fleet, judge) as watched:
        began_s = time.monotonic()
        await asyncio.to_thread(point, fleet, "v2")
        await until("it is completed", lambda: has_come_to(fleet, "v2", "completed"), START_S)
        row = await asyncio.to_thread(newest, fleet)
        print_outcome("good", watched, began_s, row)
        await until("all replicas have it", lambda: all_have(fleet, "v2", REPLICAS), START_S)
    print_outcome("good, all replicas", watched, began_s, row)
    assert not watched.failed() and not watched.wrong(), (watched.failed()[:3], watched.wrong()[:3])
    assert {"v1", "v2"} == set(watched.served()) == set(watched.served(ADAPTER)), "adapters were carried over"
    assert not watched.went_back(("v1", "v2")), "\n".join(watched.went_back(("v1", "v2")))


async def taken_back(
    fleet: Fleet, judge: ByWords, version: str, what: str
) -> tuple[Watched, dict[str, Any], list[Answer]]:
    """Point the channel at the version under traffic, wait for the rollback, and check that the state before is
    restored. The version's own answers are the third value.
    """
    async with streams(fleet, judge) as watched:
        (before,) = set((await asyncio.to_thread(versions, fleet)).values())
        began_s = time.monotonic()
        await asyncio.to_thread(point, fleet, version)
        await until("it is taken back", lambda: has_come_to(fleet, version, "rolled_back"), START_S)
        row, taken_back_s = await asyncio.to_thread(newest, fleet), time.monotonic()
        await until("its replicas are gone", lambda: all_have(fleet, before, REPLICAS), START_S)
    print_outcome(what, watched, began_s, row)
    its = [answer for answer in watched.answers if version in watched.heard.during(answer)]
    last_s = max((answer.ended_s for answer in its), default=taken_back_s)
    print(f"{len(its)} requests saw {version}, the last ended {last_s - taken_back_s:.1f} s after it was taken back")
    assert row["stage"] == 0 and not watched.wrong(), watched.wrong()[:3]
    return watched, row, its


async def test_slower_base_is_rolled_back(fleet: Fleet, judge: ByWords) -> None:
    watched, row, its = await taken_back(fleet, judge, "v3", "slow")
    assert its, "somebody has seen it"
    assert "p50_latency > 1.5x" in row["reason"] and not watched.failed(), (row, watched.failed()[:3])


async def test_base_rollout_survives_kills_of_controller_registry_and_a_replica(fleet: Fleet, judge: ByWords) -> None:
    """Started streams of the killed replica are lost with an error. Sessions that have seen its version get a retry
    time until it is back; other requests are not affected.
    """
    async with streams(fleet, judge) as watched:
        began_s = time.monotonic()
        (before,) = set((await asyncio.to_thread(versions, fleet)).values())
        other = "v2" if before == "v1" else "v1"
        await asyncio.to_thread(point, fleet, other)
        await until("a third engine is started", lambda: engines(fleet) == REPLICAS + 1)
        await asyncio.to_thread(kill_controller, fleet, "--engine", "vllm", "--replicas", str(REPLICAS))
        await until("its first stage runs", lambda: has_come_to(fleet, other, "running", "completed"), START_S)
        os.kill(fleet.pid("registry"), signal.SIGKILL)
        await until("the registry is back", lambda: answers(fleet))
        new = next(name for name, version in (await asyncio.to_thread(versions, fleet)).items() if version == other)
        os.kill(fleet.pid("engine", new), signal.SIGKILL)
        killed_s = time.monotonic()
        await until("it has ended", lambda: has_come_to(fleet, other, "completed", "rolled_back"), START_S)
        row = await asyncio.to_thread(newest, fleet)
        assert row["state"] == "completed", row
        await until("all replicas have it", lambda: all_have(fleet, other, REPLICAS), START_S)
    print_outcome("killed", watched, began_s, row)
    # sessions that have seen the version are asked to retry
    held = {id(each) for each in watched.after_having_heard(other)}
    lost = [each for each in watched.failed() if id(each) not in held]
    others = [each for each in lost if each.replica != new or not each.sent_s < killed_s < each.ended_s]
    assert not others and not watched.wrong(), (others[:3], watched.wrong()[:3])


async def test_base_whose_engine_dies_is_rolled_back(fleet: Fleet, judge: ByWords) -> None:
    """The engine dies of its first request. That failure is reported and not retried elsewhere, as are those that
    arrive while it dies; the old version answers all others. Two deaths are enough, and a third may have begun.
    """
    watched, row, _ = await taken_back(fleet, judge, "v4", "dies")
    assert "error_rate > 2%" in row["reason"], row
    lost = sorted(watched.failed(), key=lambda answer: answer.ended_s)
    deaths = [later.ended_s - former.ended_s > DYING_S for former, later in pairwise(lost)].count(True) + 1
    assert 0 < len(lost) <= 4 * deaths and deaths <= 3, lost[:3]
    assert all("engine_error" in answer.detail for answer in lost), lost[:3]


def engines(fleet: Fleet) -> int:
    return sum(entry["role"] == "engine" for entry in fleet.processes().values())
