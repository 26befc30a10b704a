"""The recorder of Events: aggregated, bounded and non-blocking; a real API server accepts its Events."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from functions.controller.kubernetes.api import KubeApi
from functions.controller.kubernetes.errors import KubeError, Retryable, Stale, Terminal
from functions.controller.kubernetes.objects import CONFIG_MAP, Body, Kind
from functions.controller.kubernetes.run import event_recorder
from functions.controller.kubernetes.run.event_notes import EventNote, Regarding
from functions.controller.kubernetes.run.event_recorder import MAX_PENDING, REPEAT_S, EventRecorder, event_name
from tests.controller.kubernetes.fixtures import Space, create
from tests.controller.kubernetes.fleet import Leader

WAIT_S = 30.0


def note(number: int = 0, *, type_: Any = "Normal", reason: str = "Scaled", text: str = "") -> EventNote:
    about = Regarding(Kind("shoal.dev/v1alpha1", "Tenant"), "shoal", "acme", "uid-1")
    return EventNote(about, type_, reason, "Scale", text or f"{number} replicas")


class Server:
    """A KubeApi's calls for Events."""

    def __init__(self) -> None:
        self.events: dict[str, Body] = {}
        self.requests = 0
        self.errors: list[KubeError] = []

    def create(self, body: Body) -> Body:
        self.requests += 1
        if self.errors:
            raise self.errors.pop(0)
        name = body["metadata"]["name"]
        if name in self.events:
            raise Stale("it exists")
        self.events[name] = body
        return body

    def get(self, _kind: Kind, _namespace: str, name: str) -> Body | None:
        return self.events.get(name)

    def merge_patch(self, _kind: Kind, _namespace: str, name: str, patch: Body) -> Body:
        self.requests += 1
        self.events[name] |= patch
        return self.events[name]


class Recording:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self.outcomes: Counter[str] = Counter()
        self.recorder = EventRecorder(
            "controller-0",
            lambda outcome: self.outcomes.update([outcome]),
            per_second=10_000,
            clock=lambda: self.now_s,
            wall_clock=lambda: datetime(2027, 1, 1, tzinfo=UTC),
        )

    async def drained(self, api: Any) -> None:
        """Run the recorder until no Event is due."""
        task = asyncio.ensure_future(self.recorder.run(api))
        try:
            await until(lambda: self.recorder._next()[0] is None and not task.done())
            await asyncio.sleep(0.05)
        finally:
            task.cancel()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.005)


async def test_equal_notes_are_one_event_with_a_count() -> None:
    server, recording = Server(), Recording()
    recording.recorder.record([note(1), note(1), note(2)])
    await recording.drained(server)
    assert len(server.events) == 2
    assert server.events[event_name(note(1))]["series"]["count"] == 2
    assert "series" not in server.events[event_name(note(2))]
    for _ in range(20):  # a condition that flaps
        recording.recorder.record([note(1)])
    await recording.drained(server)
    assert server.requests == 2, "not within a minute"
    recording.now_s += REPEAT_S
    await recording.drained(server)
    assert server.events[event_name(note(1))]["series"]["count"] == 22


async def test_next_leader_continues_the_event_count() -> None:
    server = Server()
    for _ in range(3):
        recording = Recording()
        recording.recorder.record([note(1)])
        await recording.drained(server)
    assert len(server.events) == 1
    assert server.events[event_name(note(1))]["series"]["count"] == 3


async def test_queued_events_are_bounded_and_warnings_come_first() -> None:
    server, recording = Server(), Recording()
    recording.recorder.record(note(number) for number in range(MAX_PENDING + 10))
    assert recording.recorder.pending == MAX_PENDING
    recording.recorder.record([note(type_="Warning", reason="Refused")])
    assert recording.recorder.pending == MAX_PENDING
    assert recording.outcomes == {"dropped": 11}
    await recording.drained(server)
    assert next(iter(server.events.values()))["reason"] == "Refused"
    assert len(server.events) == MAX_PENDING


async def test_failed_event_is_retried_a_few_times_and_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_recorder, "_RETRY_S", 0.0)
    server, recording = Server(), Recording()
    server.errors = [Retryable("away")] * 2
    recording.recorder.record([note(1)])
    await recording.drained(server)
    assert recording.outcomes == {"sent": 1}
    server.errors = [Retryable("away")] * 3
    recording.recorder.record([note(2)])
    await recording.drained(server)
    assert recording.outcomes == {"sent": 1, "failed": 1}


async def test_missing_right_for_events_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    server, recording = Server(), Recording()
    server.errors = [Terminal("grant the verb create on events")] * 2
    recording.recorder.record([note(1), note(2), note(3)])
    await recording.drained(server)
    assert recording.outcomes == {"failed": 2, "sent": 1}
    assert [record.getMessage() for record in caplog.records] == [
        "an Event cannot be written: grant the verb create on events"
    ]


# the real API server


@asynccontextmanager
async def running(recorder: EventRecorder, api: KubeApi) -> AsyncIterator[None]:
    task = asyncio.ensure_future(recorder.run(api))
    yield
    task.cancel()


@pytest.mark.servers
async def test_real_api_server_accepts_events_and_kubectl_finds_them(plain_space: Space) -> None:
    space = plain_space
    head = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shoal-controller"}}
    body = create(space.client, f"/api/v1/namespaces/{space.system}/configmaps", head)
    about = Regarding.from_live(CONFIG_MAP, body)
    long = "ü" * 3000  # more bytes than characters
    words = EventNote(about, "Warning", "RevisionRefused", "Apply", long)
    recording = Recording()
    api = KubeApi(space.client, Leader())
    async with running(recording.recorder, api):
        recording.recorder.record([words, EventNote(about, "Normal", "RevisionApplied", "Apply", "main@2 is in force")])
        await until(lambda: recording.outcomes["sent"] == 2)
        recording.now_s += REPEAT_S
        recording.recorder.record([words])
        await until(lambda: recording.outcomes["sent"] == 3)
    assert recording.outcomes["failed"] == 0
    path = f"/api/v1/namespaces/{space.system}/events?fieldSelector=involvedObject.uid={about.uid}"
    found = space.client.request("get", path, serializer=lambda _client, data: data)["items"]  # as `kubectl describe`
    by_reason = {each["reason"]: each for each in found}
    assert by_reason.keys() == {"RevisionRefused", "RevisionApplied"}
    assert by_reason["RevisionRefused"]["type"] == "Warning"
    assert by_reason["RevisionRefused"]["series"]["count"] == 2
    assert by_reason["RevisionRefused"]["involvedObject"]["name"] == "shoal-controller"
    assert by_reason["RevisionRefused"]["message"].startswith("üüü")
    assert by_reason["RevisionApplied"]["reportingComponent"] == "shoal.dev/controller"
