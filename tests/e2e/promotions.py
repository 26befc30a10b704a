"""Pools whose size a test decides by a push (a scale rule that always or never holds), and the delay of a promotion."""

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.projects import PATIENT, project_with, without_limits
from tests.fleets import Fleet, wait_until

POOL = "smollm2-135m"
POLICY = "policies/autoscaling.yaml"
LIMIT_S = 600.0  # on a busy machine, a real engine needs minutes to start
PASSING_EVERY_S = 0.2
MOST_PASSING = 24
ALWAYS, NEVER = "queue_seconds < 100000: +1", "queue_seconds > 100000: +1"

# Initially one replica serves and one is warm.
EDITS = (
    PATIENT,
    (f"inferenceservices/{POOL}.yaml", "minReplicas: 2", "minReplicas: 1"),
    (POLICY, "replicas: {min: 2, max: 4}", "replicas: {min: 1, max: 1}"),
    (POLICY, "warm: 0", "warm: 1"),
)


def project(folder: Path) -> Path:
    return without_limits(project_with(folder, *EDITS))


def decide(fleet: Fleet, most: int, rule: str) -> None:
    """Push a policy with this maximum and this scale-up rule."""
    text = re.sub(r"replicas: \{.*\}", f"replicas: {{min: 1, max: {most}}}", fleet.read(POLICY))
    text = re.sub(r"scaleUp:\n(?:    - .*\n)+", f'scaleUp:\n    - "{rule}"\n', text)
    pushed = fleet.push({POLICY: text})
    assert pushed.returncode == 0, pushed.stderr


def phases(status: dict[str, Any]) -> dict[str, str]:
    return {each["replica_id"]: each["phase"] for each in status["replicas"] if each["age_s"] < 10}


def until(fleet: Fleet, serving: int, warm: int) -> dict[str, str]:
    """Wait until exactly so many replicas serve and so many are warm and empty, and no other exists."""
    seen: list[dict[str, Any]] = []

    def there() -> bool:
        seen.append(fleet.status())
        found = sorted(phases(seen[-1]).values())
        idle = all(not each["running"] for each in seen[-1]["replicas"] if each["phase"] == "warm")
        return found == ["ready"] * serving + ["warm"] * warm and seen[-1]["settled"] and idle

    wait_until(f"{serving} to serve and {warm} to be warm", there, LIMIT_S)
    return phases(seen[-1])


@dataclass
class Answer:
    replica: str
    status: int
    routed_unix_s: float


@dataclass
class Load:
    """Clients that send requests without pause, so that every replica is needed, and clients at a constant rate."""

    answers: list[Answer] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    async def ask(self, client: httpx.AsyncClient, text: str, tokens: int = 16) -> None:
        body = {"model": POOL, "messages": [{"role": "user", "content": text}], "max_tokens": tokens}
        sent_unix_s = time.time()
        answer = await client.post("/chat/completions", json=body)
        timing = dict(re.findall(r"(\w+);dur=([\d.]+)", answer.headers.get("server-timing", "")))
        before_ms = sum(float(timing.get(step, 0)) for step in ("auth", "queue", "route"))
        replica = answer.headers.get("x-shoal-replica", "")
        self.answers.append(Answer(replica, answer.status_code, sent_unix_s + before_ms / 1000))

    def first_on(self, replica: str, after_unix_s: float) -> float | None:
        found = [each.routed_unix_s for each in self.answers if each.replica == replica]
        return min((at_s for at_s in found if at_s > after_unix_s), default=None)


@contextmanager
def loaded(fleet: Fleet, clients: int) -> Iterator[Load]:
    load, stop = Load(), threading.Event()

    async def one(client: httpx.AsyncClient, number: int) -> None:
        count = 0
        while not stop.is_set():
            count += 1
            try:
                await load.ask(client, f"{number} asks for the {count}th time")
            except httpx.HTTPError as error:
                load.failures.append(repr(error))

    async def passer_by(client: httpx.AsyncClient, number: int) -> None:
        """Send requests at a constant rate, so that there is always one to route."""
        try:
            await load.ask(client, f"passer-by {number}", tokens=1)
        except httpx.HTTPError as error:
            load.failures.append(repr(error))

    async def all_of_them() -> None:
        async with fleet.async_client(timeout_s=300.0, connections=clients + MOST_PASSING) as client:
            passing: set[asyncio.Task[None]] = set()
            busy = asyncio.gather(*(one(client, number) for number in range(clients)))
            while not stop.is_set():
                if len(passing) < MOST_PASSING:
                    task = asyncio.get_running_loop().create_task(passer_by(client, len(load.answers)))
                    passing.add(task)
                    task.add_done_callback(passing.discard)
                await asyncio.sleep(PASSING_EVERY_S)
            await asyncio.gather(busy, *passing)

    thread = threading.Thread(target=asyncio.run, args=(all_of_them(),))
    thread.start()
    try:
        yield load
    finally:
        stop.set()
        thread.join()


@dataclass
class Promotion:
    replica: str
    eligible_s: float  # from the decision until the gateway's metrics count it as ready
    routed_s: float  # from the decision until the first request is sent there


def promote(fleet: Fleet, load: Load) -> Promotion:
    """Promote one warm replica, measure the delays, and restore the state from before."""
    before = until(fleet, 1, 1)
    warm = next(replica for replica, phase in before.items() if phase == "warm")
    pids = {role: fleet.pid(role, warm) for role in ("engine", "agent")}
    asked_unix_s = time.time()
    with _eligible(fleet, warm) as seen:
        decide(fleet, 2, ALWAYS)
        wait_until(f"a request on {warm}", lambda: load.first_on(warm, asked_unix_s) is not None, LIMIT_S)
        wait_until("the gateway's metrics say so", lambda: bool(seen), LIMIT_S)
    scaling = fleet.status()["scaling"][0]
    assert (scaling["desired"], scaling["serving"]) == (2, 2), scaling
    wait_until("another is asked for, once there is memory", lambda: _warm_wanted(fleet) == 1, LIMIT_S)
    assert {role: fleet.pid(role, warm) for role in pids} == pids, "the same processes as before"
    routed_unix_s = load.first_on(warm, asked_unix_s)
    assert routed_unix_s is not None and seen
    decide(fleet, 1, NEVER)
    decided = scaling["since_unix_s"]
    return Promotion(warm, seen[0] - decided, routed_unix_s - decided)


def _warm_wanted(fleet: Fleet) -> int:
    return int(fleet.status()["scaling"][0]["warm"])


@contextmanager
def _eligible(fleet: Fleet, replica: str) -> Iterator[list[float]]:
    """Scrape the gateway's metrics continuously; yield the time at which they first counted the replica as ready."""
    seen: list[float] = []
    stop = threading.Event()
    line = f'shoal_replica_state{{replica="{replica}",state="ready"}} 1.0'

    def look() -> None:
        with httpx.Client(timeout=120.0) as client:
            while not stop.is_set() and not seen:
                if line in client.get(f"http://127.0.0.1:{fleet.port_base + 5}/metrics").text:
                    seen.append(time.time())
                stop.wait(0.01)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()
