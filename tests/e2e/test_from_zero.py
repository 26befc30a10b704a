"""A pool at zero, with simulated engines and real processes: five requests come at once, one engine starts and answers
them all; it goes when nobody asks any more. Nobody without a key starts anything."""

import asyncio
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.projects import PATIENT, SCALING, project_with, without_limits
from tests.fleets import Fleet, running_fleet, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]

POOL = "smollm2-135m"
IDLE_S = 10
START_S = 2.0  # what a simulated engine takes
LIMIT_S = 120.0
POLICY = f"""\
apiVersion: shoal.dev/v1alpha1
kind: AutoscalingPolicy
metadata: {{name: {POOL}}}
spec: {{pool: {POOL}, replicas: {{min: 0, max: 3}}, idleAfter: {IDLE_S}s, scaleUp: ["queue_seconds > 0.5: +1"]}}
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("zero")
    service = f"inferenceservices/{POOL}.yaml"
    slow = (
        service,
        "        - --enable-lora\n",
        f"        - --enable-lora\n        - --sim-startup-delay-s={START_S}\n",
    )
    project = without_limits(
        project_with(folder / "project", PATIENT, (service, "minReplicas: 2", "minReplicas: 0"), slow)
    )
    (project / SCALING).write_text(POLICY)
    with running_fleet(folder / "state", "sim", None, project) as fleet:
        yield fleet


def engines(fleet: Fleet) -> list[str]:
    return [name for name, entry in fleet.processes().items() if entry["role"] == "engine"]


def condition(fleet: Fleet, kind: str) -> tuple[str, str]:
    found = next(each for each in fleet.status()["objects"] if (each["kind"], each["name"]) == (kind, POOL))
    return found["state"], found["reason"]


def until_zero(fleet: Fleet) -> None:
    """And its processes are gone, by the controller's own account."""
    wait_until(
        "nobody asks, and it goes to zero",
        lambda: not engines(fleet) and condition(fleet, "InferenceService") == ("Ready", "Asleep"),
        LIMIT_S,
        every_s=0.5,
    )


async def asked(fleet: Fleet, count: int) -> tuple[list[httpx.Response], set[str]]:
    """All at once; the answers, and the engines that were seen meanwhile."""
    body = {"model": POOL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
    seen: set[str] = set()
    async with fleet.async_client(timeout_s=LIMIT_S) as client:
        answers = asyncio.gather(
            *(client.post("/chat/completions", json={**body, "stream": bool(number % 2)}) for number in range(count))
        )
        while not answers.done():
            seen.update(await asyncio.to_thread(engines, fleet))
            await asyncio.sleep(0.1)
        return await answers, seen


def test_from_zero_to_one_for_five_and_back_to_zero(fleet: Fleet) -> None:
    """`shoal up` has asked each model one question: so the first request of all was answered."""
    until_zero(fleet)
    assert condition(fleet, "InferenceService") == ("Ready", "Asleep") == condition(fleet, "Model")
    with fleet.client() as client:
        model = client.get(f"/models/{POOL}").json()
        assert model["capacity"] == {"ready": False, "replicas_ready": 0, "asleep": True}
        stranger = client.post("/chat/completions", json={"model": POOL}, headers={"authorization": "Bearer sk-no"})
    assert stranger.status_code == 401 and fleet.gateway_metric("shoal_wake_waiting") == 0
    began_s = time.monotonic()
    answers, seen = asyncio.run(asked(fleet, 5))
    print(f"five answers {time.monotonic() - began_s:.1f} s after they were asked for")
    assert [answer.status_code for answer in answers] == [200] * 5, [answer.text for answer in answers]
    assert seen == {f"engine-{POOL}-0"}, "however many wait, one is started"
    timings = [answer.headers["server-timing"] for answer in answers if "x-shoal-wake" in answer.headers]
    assert len(timings) == 5
    size = fleet.status()["scaling"][0]
    assert (size["desired"], size["serving"]) == (1, 1)
    until_zero(fleet)
    size = fleet.status()["scaling"][0]
    assert (size["desired"], size["cause"]) == (0, "idle")
