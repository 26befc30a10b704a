"""Versions of a base on a fleet under streams: what each answer contains, and which version produced it.

`Judge` finds the version from the text that the engine produced. The gateway's headers (`x-shoal-model`,
`x-shoal-digest`) and the replicas' heartbeats (`Heard`) must agree with it.
"""

import asyncio
import collections
import contextlib
import json
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx

from tests.drills.streams import AT_THE_DOOR
from tests.fleets import Fleet, wait_until

BASE, ADAPTER = "smollm2-135m", "acme/support-bot"
MODELS, POLICIES = "registry/models.yaml", "policies/rollouts.yaml"
TURNS = 4  # turns of a session
TOKENS = 8  # tokens of a completion
HEARD_S = 3.0  # heartbeats are sent every second and read twice a second


@dataclass(frozen=True, slots=True)
class SentRequest:
    model: str
    prompt: str


def completion(asked: SentRequest) -> dict[str, Any]:
    """Build a completion: on CPU the tokens of a chat template are most of the cost of a short answer of a real
    engine.
    """
    return {"model": asked.model, "prompt": asked.prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}


def chat(asked: SentRequest) -> dict[str, Any]:
    """Build a chat: the simulated engine adds its mark only to chats."""
    message = {"role": "user", "content": asked.prompt}
    return {"model": asked.model, "messages": [message], "max_tokens": 12, "temperature": 0}


@dataclass(slots=True)
class Answer:
    asked: SentRequest
    sent_s: float  # monotonic
    status: int = 0
    text: str = ""
    is_whole: bool = False
    ended_s: float = 0.0
    served_as: str = ""
    digest: str = ""
    replica: str = ""
    placed: str = ""  # x-shoal-rollout
    detail: str = ""


class Judge(Protocol):
    def next_request(self, model: str) -> SentRequest: ...

    def body(self, asked: SentRequest) -> dict[str, Any]: ...

    def version_of(self, answer: Answer) -> str | None:
        """Return the version that the text of the answer reveals, or None if it reveals none."""


@dataclass(slots=True)
class Heard:
    """Version that each replica reported, and when; a replica keeps its name when its version changes."""

    told: dict[str, list[tuple[float, str]]] = field(default_factory=lambda: collections.defaultdict(list))

    def record_loaded(self, loaded: dict[str, str]) -> None:
        for replica, version in loaded.items():
            self.told[replica].append((time.monotonic(), version))

    def during(self, answer: Answer) -> set[str]:
        """Return the versions reported by the answer's replica during it, give or take a heartbeat; empty if none was
        reported.
        """
        first_s, last_s = answer.sent_s - HEARD_S, answer.ended_s + HEARD_S
        return {version for told_s, version in self.told[answer.replica] if first_s <= told_s <= last_s}


def declare(fleet: Fleet, versions: tuple[str, ...], policy: str) -> None:
    """Declare versions with folders `<base>-<version>` and a policy `short`, and wait until the gateways know them."""
    one = f'    - {{name: v1, artifact: "pvc://shoal-models/{BASE}"}}'
    text = fleet.read(MODELS)
    line = next(line for line in text.splitlines() if line.startswith(one))
    more = [one] + [one.replace("v1", v).replace(f'{BASE}"', f'{BASE}-{v}"') for v in versions]
    text = text.replace(line, "\n".join(more), 1).replace(
        "  channels: {stable: v1}", "  channels: {stable: v1}\n  rollout: short", 1
    )
    pushed = fleet.push({MODELS: text, POLICIES: fleet.read(POLICIES) + policy}, "versions of the base")
    assert pushed.returncode == 0, pushed.stderr
    wait_until(
        "the versions are known", lambda: is_published(fleet) and len(digests(fleet)) == len(versions) + 1, 120, 0.5
    )


def is_published(fleet: Fleet) -> bool:
    status = fleet.status()
    return bool(
        status["revision"]["last_applied"] == f"main@{fleet.tip()}"
        and status["snapshot"]["gateway_epoch"] == status["snapshot"]["epoch"]
    )


def digests(fleet: Fleet, model: str = BASE) -> dict[str, str]:
    """Return the digests of the model by version."""
    with fleet.registry() as registry:
        found = registry.get(f"/v1/models/{model}").json()
    return {version["name"]: version["digest"] for version in found.get("versions", [])}


def point(fleet: Fleet, version: str) -> None:
    head, base, tail = fleet.read(MODELS).partition(f"id: {BASE} ")
    line = next(line for line in tail.splitlines() if line.lstrip().startswith("channels:"))
    pushed = fleet.push({MODELS: head + base + tail.replace(line, f"  channels: {{stable: {version}}}", 1)}, version)
    assert pushed.returncode == 0, pushed.stderr


def newest(fleet: Fleet) -> dict[str, Any]:
    with fleet.registry() as registry:
        rows = registry.get("/v1/rollouts", params={"limit": 100, "model": BASE}).json()["data"]
    return max(rows, key=lambda row: float(row["created_unix_s"])) if rows else {"state": "none", "to_version": ""}


def has_come_to(fleet: Fleet, version: str, *states: str) -> bool:
    row = newest(fleet)
    return row["to_version"] == version and row["state"] in states


def versions(fleet: Fleet) -> dict[str, str]:
    """Return what `loaded` returns, for the versions declared now."""
    return loaded(fleet, {digest: version for version, digest in digests(fleet).items()})


def all_have(fleet: Fleet, version: str, replicas: int) -> bool:
    return list(versions(fleet).values()) == [version] * replicas


def loaded(fleet: Fleet, named: dict[str, str]) -> dict[str, str]:
    """Return the version that each ready replica reports; `named` maps digests to versions."""
    return {
        replica["replica_id"]: named.get(replica["weights_digest"], "?")
        for replica in fleet.replicas()
        if replica["phase"] == "ready" and replica["age_s"] < 3
    }


class Watched:
    """Answers and sessions of the traffic."""

    def __init__(self, judge: Judge, named: dict[str, str]) -> None:
        self.named = {digest: version for version, digest in named.items()}  # versions of the base, by digest
        self.began_s = time.monotonic()
        self.heard = Heard()
        self.answers: list[Answer] = []
        self.sessions: list[list[Answer]] = []
        self._judge = judge

    async def run(
        self, client: httpx.AsyncClient, model: str, door: asyncio.Semaphore, slots: asyncio.Semaphore
    ) -> None:
        """Run sessions of a few turns, one after the other. They are streamed, so that no retry can hide a failure."""
        while True:
            session, turns = secrets.token_hex(8), list[Answer]()
            self.sessions.append(turns)
            for _ in range(TURNS):
                async with slots:
                    answer = Answer(self._judge.next_request(model), time.monotonic())
                    try:
                        await self._stream(client, answer, session, door)
                    except httpx.HTTPError as error:
                        answer.detail = repr(error)
                    answer.ended_s = time.monotonic()
                self.answers.append(answer)
                turns.append(answer)

    async def _stream(self, client: httpx.AsyncClient, answer: Answer, session: str, door: asyncio.Semaphore) -> None:
        body = self._judge.body(answer.asked) | {"session_id": session, "stream": True}
        path = "/chat/completions" if "messages" in body else "/completions"
        async with contextlib.AsyncExitStack() as outside:
            await outside.enter_async_context(door)

            async def trace(event: str, _: dict[str, Any]) -> None:
                if event == "http11.send_request_body.complete":
                    await outside.aclose()

            stream = client.stream("POST", path, json=body, extensions={"trace": trace})
            async with stream as got:
                answer.status, headers = got.status_code, got.headers
                answer.served_as, answer.digest = (headers.get(f"x-shoal-{name}", "") for name in ("model", "digest"))
                answer.replica = headers.get("x-shoal-replica", "")
                answer.placed = headers.get("x-shoal-rollout", "")
                text = (await got.aread()).decode()
        answer.is_whole = answer.status == 200 and text.rstrip().endswith("data: [DONE]") and '"error"' not in text
        answer.detail = "" if answer.is_whole else text[-300:]
        answer.text = "".join(
            choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            for line in text.splitlines()
            if line.startswith("data: {")
            for choice in json.loads(line[6:]).get("choices", [])
        )

    # results

    def whole(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.is_whole]

    def failed(self) -> list[Answer]:
        return [answer for answer in self.answers if not answer.is_whole]

    def served(self, model: str | None = None) -> collections.Counter[str]:
        """Count whole answers by the version that their text reveals, or `?`."""
        chosen = [answer for answer in self.whole() if model in (None, answer.asked.model)]
        return collections.Counter(self._judge.version_of(answer) or "?" for answer in chosen)

    def served_by(self, version: str) -> list[Answer]:
        return [answer for answer in self.whole() if self._judge.version_of(answer) == version]

    def after_having_heard(self, version: str) -> list[Answer]:
        """Return later answers of sessions that have seen this version.

        An answer that broke off before its mark counts as seen if the gateway attributes it to the candidate.
        """
        return [
            answer
            for turns in self.sessions
            for at, answer in enumerate(turns)
            if any(self._judge.version_of(former) == version or _was_begun(former) for former in turns[:at])
        ]

    def wrong(self) -> list[str]:
        """Describe answers whose headers or heartbeats name another version than their text."""
        return [why for answer in self.whole() if (why := self._wrong(answer))]

    def _wrong(self, answer: Answer) -> str:
        said, told = self._judge.version_of(answer), self.heard.during(answer)
        who = f"of an answer of {said} by {answer.replica}: {answer.text!r}"
        if said is None:
            return f"nobody's words {who} to {answer.asked}; its replica told {told}"
        if answer.asked.model == BASE and self.named.get(answer.digest) != said:
            return f"digest of {self.named.get(answer.digest)} {who}"
        if answer.asked.model == BASE and answer.served_as != f"{BASE}@{said}":
            return f"x-shoal-model {answer.served_as} {who}"
        return f"heartbeats of {told} {who}" if told and said not in told else ""

    def changed(self) -> list[list[Answer]]:
        """Return sessions whose turns were answered by several versions."""
        whole = [[answer for answer in each if answer.is_whole] for each in self.sessions]
        return [each for each in whole if len({self._judge.version_of(answer) for answer in each}) > 1]

    def went_back(self, order: tuple[str, ...]) -> list[str]:
        """Describe sessions that got one of these versions and later an earlier one."""
        found = []
        for turns in self.changed():
            at = [order.index(self._judge.version_of(answer) or "?") for answer in turns]
            if at != sorted(at):
                found.append("; ".join(self._in_words(answer) for answer in turns))
        return found

    def _in_words(self, answer: Answer) -> str:
        took = f"{answer.sent_s - self.began_s:.1f} to {answer.ended_s - self.began_s:.1f} s"
        version = self._judge.version_of(answer)
        return f"{took} {answer.asked.model} {version} by {answer.replica} ({answer.placed or 'no rollout'})"


def _was_begun(answer: Answer) -> bool:
    return answer.status == 200 and not answer.is_whole and "group=candidate" in answer.placed


@contextlib.asynccontextmanager
async def traffic(
    fleet: Fleet, judge: Judge, clients: int, look: Callable[[], None] = lambda: None, at_once: int | None = None
) -> AsyncIterator[Watched]:
    """Run this many clients, a quarter of them on an adapter, with at most `at_once` requests under way (None: no
    limit). `look` is called twice a second in a thread.
    """
    watched = Watched(judge, await asyncio.to_thread(digests, fleet))
    door, slots = asyncio.Semaphore(AT_THE_DOOR), asyncio.Semaphore(at_once or clients)

    async def listen() -> None:
        while True:
            with contextlib.suppress(httpx.HTTPError, KeyError):  # the registry is being killed
                watched.heard.record_loaded(await asyncio.to_thread(loaded, fleet, watched.named))
            await asyncio.sleep(0.5)

    async def looking() -> None:
        while True:
            await asyncio.to_thread(look)
            await asyncio.sleep(0.5)

    async with fleet.async_client(timeout_s=300.0, connections=clients) as client:
        models = [BASE, BASE, BASE, ADAPTER] * (clients // 4)
        tasks = [asyncio.ensure_future(watched.run(client, model, door, slots)) for model in models]
        tasks += [asyncio.ensure_future(listen()), asyncio.ensure_future(looking())]
        try:
            yield watched
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended


async def until(what: str, condition: Callable[[], bool], timeout_s: float = 120.0) -> float:
    return await asyncio.to_thread(wait_until, what, condition, timeout_s, 0.3)


def print_outcome(what: str, watched: Watched, began_s: float, row: dict[str, Any]) -> None:
    took_s, before_s = time.monotonic() - began_s, began_s - watched.began_s
    print(
        f"\n{what}: {row['state']} in stage {row['stage']}, {took_s:.1f} s after the push ({before_s:.1f} s after the "
        f"first request); {dict(watched.served())} served, {dict(watched.served(ADAPTER))} of them an adapter's, "
        f"{len(watched.failed())} failed, {len(watched.wrong())} wrong, {len(watched.changed())} sessions changed: "
        f"{row.get('reason')}"
    )


def kill_controller(fleet: Fleet, *up: str) -> None:
    """Kill the controller with SIGKILL and run `shoal up` with these options."""
    before = set(fleet.processes())
    os.kill(int(fleet.status()["controller"]["pid"]), signal.SIGKILL)
    again = fleet.shoal("up", *up, timeout_s=900.0)
    assert again.returncode == 0, again.stdout + again.stderr
    assert before <= set(fleet.processes()), "replicas of both versions were taken over"


def answers(fleet: Fleet) -> bool:
    try:
        return bool(fleet.replicas())
    except (httpx.HTTPError, KeyError):
        return False
