"""A pool scales from zero with real processes: five simultaneous requests start one engine, which answers them all.

The engine stops when no more requests come. Requests without a key start nothing. The test also runs with vLLM, which
is slower (docs/measurements/README.md has its figures: `pytest -s -m "" -k vllm`).
"""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.projects import PATIENT, SCALING, project_with, without_limits
from tests.fleets import Fleet, running_fleet, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]

POOL = "smollm2-135m"
IDLE_S = 10
START_S = 2.0  # start of a simulated engine
LIMITS_S = {"sim": 120.0, "vllm": 900.0}
_SLOW = [pytest.mark.engine, pytest.mark.own_engines, pytest.mark.soak, pytest.mark.timeout(1800)]
POLICY = f"""\
apiVersion: shoal.dev/v1alpha1
kind: AutoscalingPolicy
metadata: {{name: {POOL}}}
spec: {{pool: {POOL}, replicas: {{min: 0, max: 3}}, idleAfter: {IDLE_S}s, scaleUp: ["queue_seconds > 0.5: +1"]}}
"""


@pytest.fixture(scope="module", params=["sim", pytest.param("vllm", marks=_SLOW)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def fleet(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("zero")
    service = f"inferenceservices/{POOL}.yaml"
    edits = [PATIENT, (service, "minReplicas: 2", "minReplicas: 0")]
    if kind == "sim":
        lora = "        - --enable-lora\n"
        edits.append((service, lora, f"{lora}        - --sim-startup-delay-s={START_S}\n"))
    else:
        _put_base(folder / "state" / "models")
    project = without_limits(project_with(folder / "project", *edits))
    (project / SCALING).write_text(POLICY)
    with running_fleet(folder / "state", kind, None, project) as fleet:
        yield fleet


def _put_base(models: Path) -> None:
    base = os.environ.get("SHOAL_BASE_MODEL_DIR", "")
    if not base:
        pytest.skip("SHOAL_BASE_MODEL_DIR is not set: `make soak` prepares engine and base model, and sets it")
    models.mkdir(parents=True)
    (models / POOL).symlink_to(Path(base).absolute())


def engines(fleet: Fleet) -> list[str]:
    return [name for name, entry in fleet.processes().items() if entry["role"] == "engine"]


def condition(fleet: Fleet, kind: str) -> tuple[str, str]:
    found = next(each for each in fleet.status()["objects"] if (each["kind"], each["name"]) == (kind, POOL))
    return found["state"], found["reason"]


def until_zero(fleet: Fleet, limit_s: float) -> None:
    """Wait until the pool has no engine and the controller reports no process of it."""
    wait_until(
        "nobody asks, and it goes to zero",
        lambda: not engines(fleet) and condition(fleet, "InferenceService") == ("Ready", "Asleep"),
        limit_s,
        every_s=0.5,
    )


async def asked(fleet: Fleet, count: int, limit_s: float) -> tuple[list[httpx.Response], set[str]]:
    """Send `count` requests at once; return the answers and the engines that ran meanwhile."""
    body = {"model": POOL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
    seen: set[str] = set()
    async with fleet.async_client(timeout_s=limit_s) as client:
        answers = asyncio.gather(
            *(client.post("/chat/completions", json={**body, "stream": bool(number % 2)}) for number in range(count))
        )
        while not answers.done():
            seen.update(await asyncio.to_thread(engines, fleet))
            await asyncio.sleep(0.1)
        return await answers, seen


def cold_start(fleet: Fleet) -> str:
    stages = fleet.status()["scaling"][0]["cold_start"]
    return ", ".join(f"{stage} {took_s:.1f}" for stage, took_s in stages.items()) + f"; {sum(stages.values()):.1f} s"


def test_from_zero_to_one_for_five_and_back_to_zero(fleet: Fleet, kind: str) -> None:
    """`shoal up` itself sent the first request to each model, and it was answered."""
    limit_s = LIMITS_S[kind]
    print(f"\nfirst start: {cold_start(fleet)}; `shoal up` took {fleet.up_seconds:.1f} s")
    until_zero(fleet, limit_s)
    assert condition(fleet, "InferenceService") == ("Ready", "Asleep") == condition(fleet, "Model")
    with fleet.client() as client:
        model = client.get(f"/models/{POOL}").json()
        assert model["capacity"] == {"ready": False, "replicas_ready": 0, "asleep": True}
        stranger = client.post("/chat/completions", json={"model": POOL}, headers={"authorization": "Bearer sk-no"})
    assert stranger.status_code == 401 and fleet.gateway_metric("shoal_wake_waiting") == 0
    began_s = time.monotonic()
    answers, seen = asyncio.run(asked(fleet, 5, limit_s))
    print(f"five answers {time.monotonic() - began_s:.1f} s after they were asked for")
    assert [answer.status_code for answer in answers] == [200] * 5, [answer.text for answer in answers]
    assert seen == {f"engine-{POOL}-0"}, "however many wait, one is started"
    timings = [answer.headers["server-timing"] for answer in answers if "x-shoal-wake" in answer.headers]
    assert len(timings) == 5
    size = fleet.status()["scaling"][0]
    assert (size["desired"], size["serving"]) == (1, 1)
    print(f"second start: {cold_start(fleet)}; {timings[0]}")
    answered_s = time.monotonic()
    until_zero(fleet, limit_s)
    print(f"at zero again {time.monotonic() - answered_s:.1f} s after the last answer, with idleAfter: {IDLE_S}s")
    size = fleet.status()["scaling"][0]
    assert (size["desired"], size["cause"]) == (0, "idle")
