"""Rollouts through two gateways on real sockets with a real bus: the version of each session, and what is published."""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
import valkey

from functions.api.ids import TenantId
from functions.decisions.catalogue import Catalogue
from functions.decisions.rollout.evidence import STREAM_SHARES
from functions.decisions.routing.sessions import session_hash
from functions.fleet import session_pins
from functions.fleet.rollout_stats import EvidenceBook
from functions.fleet.session_pins import PinBatch, pins_of
from functions.fleet.valkey_bus import STATS_CHANNEL, ValkeyBus
from functions.gateway.limits import Limits
from tests.gateway import sse
from tests.gateway.client_rig import HttpAnswer, post
from tests.gateway.live import (
    PATIENCE_S,
    LiveClient,
    LiveGateway,
    PlayedEngine,
    Served,
    Way,
    client,
    engine,
    quiet,
    well,
)
from tests.gateway.rig import BOT_V1, BOT_V2, NOW_UNIX_S, ROLLOUT, catalogue, in_rollout, snapshot
from tests.ports import free_port
from tests.replica.conftest import valkey_server

pytestmark = pytest.mark.servers
VERSIONS = {BOT_V1: "acme/bot@v1", BOT_V2: "acme/bot@v2"}
AT_ONCE = 8


@dataclass
class Pair:
    """Two gateways, and an engine known to both."""

    gateways: list[LiveGateway]
    bus_url: str
    epoch: int = 10

    def publish(self, made: Catalogue) -> None:
        for live in self.gateways:
            live.call(lambda live=live: live.gateway.swap(made))  # type: ignore[misc]

    def stage(self, percent: int, stage: int) -> None:
        self.epoch += 1
        self.publish(catalogue(self.epoch, **in_rollout(percent, stage=stage)))

    def ended(self, version: str) -> None:
        """End the rollout: no split remains, and the channel points at that version."""
        self.epoch += 1
        models = tuple(
            msgspec.structs.replace(model, channels={"stable": version}) if model.id == "acme/bot" else model
            for model in snapshot().models
        )
        self.publish(catalogue(self.epoch, models=models))

    def pins(self, number: int) -> int:
        live = self.gateways[number]
        return int(live.call(lambda: len(live.gateway.services.rollouts.splits.pins)))


@pytest.fixture
def pair(certificate: tuple[Path, Path], valkey_url: str) -> Iterator[Pair]:
    with valkey.Valkey.from_url(valkey_url) as bus:
        bus.flushall()  # all tests' rollouts have the same name
    with contextlib.ExitStack() as stack:
        gateways = [
            stack.enter_context(LiveGateway(Limits(), certificate, gateway_id=f"gw-{number}", bus_url=valkey_url))
            for number in range(2)
        ]
        yield Pair(gateways, valkey_url)


@contextlib.asynccontextmanager
async def shared_engine(pair: Pair, script: Any = well) -> AsyncIterator[PlayedEngine]:
    """Start one engine that is a replica of both gateways."""
    async with engine(pair.gateways[0], script) as played:
        for live in pair.gateways[1:]:
            live.beat(played.name, played.port, service_ms=0.0)
        yield played
        for live in pair.gateways[1:]:
            live.beat(played.name, played.port, phase="dead")


def group_of(answer: HttpAnswer) -> str:
    header = dict(part.split("=") for part in answer.headers["x-shoal-rollout"].split("; ")[1:])
    assert answer.headers["x-shoal-rollout"].startswith(ROLLOUT)
    return header["group"]


def body(prompt: str = "hi", stream: bool = False, **fields: Any) -> bytes:
    content = [{"role": "user", "content": prompt}]
    return orjson.dumps({"model": "acme/bot", "stream": stream, "messages": content, **fields})


async def ask_all(live: LiveGateway, sessions: list[str], lane: str = "fast") -> dict[str, HttpAnswer]:
    """Send one request per session, several at a time, and return the answers."""
    answers: dict[str, HttpAnswer] = {}
    waiting = list(sessions)

    async def asker() -> None:
        async with client(live, Way(lane, tls=False), trust=None) as one:  # type: ignore[arg-type]
            while waiting:
                session = waiting.pop()
                await one.send(post(body(), x_session_id=session))
                answers[session] = await one.answer()

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(asker())
    return answers


async def groups(live: LiveGateway, sessions: list[str], lane: str = "fast") -> dict[str, str]:
    answers = await ask_all(live, sessions, lane)
    assert {answer.status for answer in answers.values()} == {200}
    for answer in answers.values():  # the headers name the version that answered
        wanted = "acme/bot@v2" if group_of(answer) == "candidate" else "acme/bot@v1"
        assert answer.headers["x-shoal-model"] == wanted
    return {session: group_of(answer) for session, answer in answers.items()}


async def until(condition: Any, what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        await asyncio.sleep(0.02)


async def all_told(pair: Pair, sessions: int) -> None:
    """Wait until both gateways have received the pins of so many sessions and of a last message, after which none is
    late."""
    await until(lambda: pair.pins(0) == pair.pins(1) == sessions, "not all pins were heard")
    last = pins_of(ROLLOUT, 300.0, [session_hash(TenantId("acme"), "the last word")])
    async with ValkeyBus(pair.bus_url) as bus:
        await bus.publish_pins(session_pins.encode(PinBatch("test", NOW_UNIX_S, (last,))), 300.0)
    await until(lambda: pair.pins(0) == pair.pins(1) == sessions + 1, "the last word was not heard")


def named(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


@pytest.mark.parametrize("lane", ["fast", "plain"])
async def test_sessions_keep_their_version_across_stages_and_gateways(pair: Pair, lane: str) -> None:
    a, b = pair.gateways
    pair.stage(10, stage=0)
    async with shared_engine(pair):
        old = named(f"old-{lane}", 400)
        first = await groups(a, old, lane)
        assert 15 <= list(first.values()).count("candidate") <= 70, "10 % of 400, within four standard deviations"
        await until(lambda: pair.pins(1) == len(old), "the other gateway has not heard of all pins")
        pair.stage(60, stage=1)
        assert await groups(b, old, lane) == first, "at the other gateway, at a larger share"
        fresh = await groups(b, named(f"new-{lane}", 400), lane)
        assert 200 <= list(fresh.values()).count("candidate") <= 280, "60 % of 400"
        await all_told(pair, len(old) + len(fresh))
        pair.ended("v2")
        assert pair.pins(0) == pair.pins(1) == 0
        versions = {answer.headers["x-shoal-model"] for answer in (await ask_all(a, old, lane)).values()}
        assert versions == {"acme/bot@v2"}, "forward, by completion"


async def test_gateway_started_later_knows_the_sessions(
    pair: Pair, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    pair.stage(10, stage=0)
    async with shared_engine(pair) as played:
        sessions = named("late", 200)
        first = await groups(pair.gateways[0], sessions)
        await until(lambda: pair.pins(1) == len(sessions), "the pins are not on the bus")
        made = catalogue(50, **in_rollout(60, stage=1))
        with LiveGateway(Limits(), certificate, gateway_id="gw-late", bus_url=pair.bus_url, first=made) as late:
            late.beat(played.name, played.port, service_ms=0.0)
            await until(
                lambda: late.call(lambda: len(late.gateway.services.rollouts.splits.pins)) == len(sessions),
                "it has not read all kept pins",
            )
            assert await groups(late, sessions) == first


async def test_rollback_moves_every_session_to_the_old_version(pair: Pair) -> None:
    pair.stage(50, stage=0)
    async with shared_engine(pair):
        sessions = named("back", 60)
        first = await groups(pair.gateways[0], sessions)
        assert set(first.values()) == {"candidate", "control"}
        pair.ended("v1")
        for live in pair.gateways:
            answers = (await ask_all(live, sessions)).values()
            assert {answer.headers["x-shoal-model"] for answer in answers} == {"acme/bot@v1"}
            assert all("x-shoal-rollout" not in answer.headers for answer in answers)


async def test_streams_finish_on_the_version_they_began_on(pair: Pair) -> None:
    async def slow(served: Served) -> None:
        await served.begin_stream()
        await served.event(sse.token(served.model, "begun "))
        await served.go_on.wait()
        await served.event(
            sse.token(served.model, f"by {VERSIONS[served.model]}") + sse.finish(served.model) + sse.DONE
        )
        await served.end_stream()

    live = pair.gateways[0]
    pair.stage(50, stage=0)
    async with shared_engine(pair, slow) as played, contextlib.AsyncExitStack() as stack:
        streams: list[LiveClient] = []
        for number in range(12):
            one = await stack.enter_async_context(client(live, Way("fast", tls=False), trust=None))  # type: ignore[arg-type]
            await one.send(post(body(stream=True), x_session_id=f"stream-{number}"))
            await one.until(b"begun")
            streams.append(one)
        assert {served.model for served in played.served} == {BOT_V1, BOT_V2}
        pair.ended("v1")
        for served in played.served:
            served.go_on.set()
        for one in streams:
            answer = await one.answer()
            assert f"by {answer.headers['x-shoal-model']}".encode() in answer.body and sse.DONE in answer.body
    assert await quiet(live)


# evidence


@dataclass
class Seen:
    """Requests, errors and whole answers that clients saw, by group."""

    requests: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    with_times: Counter[str] = field(default_factory=Counter)  # whole answers


async def moody(served: Served) -> None:
    """Act as the prompt says."""
    mood = served.body["messages"][-1]["content"]
    if mood == "refuse":
        await served.answer(orjson.dumps({"error": {"message": "no", "param": None}}), status=400)
    elif mood == "fail":
        await served.answer(b"{}", status=500)
    elif mood == "break":
        await served.begin_stream()
        await served.event(sse.token(served.model, "a"))
        await served.event(b'data: {"error":{"message":"broken","code":500}}\n\n')
    elif mood == "leave":
        await served.begin_stream()
        await served.event(sse.token(served.model, "a"))
        await served.until_dropped()
    else:
        await well(served)


async def one_request(live: LiveGateway, mood: str, session: str, seen: Seen) -> None:
    stream = mood in ("stream", "break", "leave")
    async with client(live, Way("fast", tls=False), trust=None) as one:  # type: ignore[arg-type]
        await one.send(post(body(mood, stream=stream), x_session_id=session))
        if mood == "leave":
            await one.until(b"data: ")
            return
        answer = await one.answer()
    group = group_of(answer)
    if mood == "refuse":
        assert answer.status == 400
        return
    seen.requests[group] += 1
    if answer.status >= 500 or b'"error"' in answer.body:
        seen.errors[group] += 1
    else:
        seen.with_times[group] += 1


async def test_evidence_matches_what_clients_saw(pair: Pair) -> None:
    rng = random.Random(11)
    moods = [
        rng.choice(("answer", "answer", "stream", "stream", "fail", "break", "refuse", "leave")) for _ in range(240)
    ]
    seen, book = Seen(), EvidenceBook()
    pair.stage(40, stage=3)
    async with shared_engine(pair, moody), ValkeyBus(pair.bus_url) as bus:
        following = asyncio.ensure_future(follow(bus, book))
        await until_subscribed(bus)
        for number, mood in enumerate(moods):
            live = pair.gateways[number % 2]
            live.call(live.refill_retries)
            live.call(
                lambda live=live: [
                    live.gateway.services.fleet.outliers.forget(it.pool, it.replica_id)
                    for it, _ in live.gateway.services.fleet.heartbeats()
                ]
            )  # type: ignore[misc]
            await one_request(live, mood, f"evidence-{number}", seen)
        for live in pair.gateways:
            assert await quiet(live)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while evidence_as_seen(book) != seen:
                    await asyncio.sleep(0.1)
        following.cancel()
    assert evidence_as_seen(book) == seen
    assert min(seen.requests.values()) > 20 and min(seen.errors.values()) > 5


async def follow(bus: ValkeyBus, book: EvidenceBook) -> None:
    async for message in bus.stats():
        assert book.receive_message(message, 1.0)


async def until_subscribed(bus: ValkeyBus) -> None:
    while not (await bus._client.pubsub_numsub(STATS_CHANNEL))[0][1]:
        await asyncio.sleep(0.01)


def evidence_as_seen(book: EvidenceBook) -> Seen:
    evidence = book.evidence(ROLLOUT, 3)
    seen = Seen()
    for name, group in (("candidate", evidence.candidate), ("control", evidence.control)):
        seen.requests[name], seen.errors[name] = group.requests, group.errors
        seen.with_times[name] = group.total_ms.count
        streams, rest = divmod(group.inter_token_ms.count, STREAM_SHARES)  # streams whose pieces arrived separately
        assert rest == 0 and streams <= group.ttft_ms.count
        assert group.total_ms.count <= group.ttft_ms.count <= group.requests
    return seen


async def test_gateway_without_bus_publishes_pins_and_evidence_later(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    port = free_port()
    url, book = f"valkey://127.0.0.1:{port}/0", EvidenceBook()
    made = catalogue(5, **in_rollout(50, stage=0))
    with LiveGateway(Limits(), certificate, gateway_id="gw-alone", bus_url=url, first=made) as live:
        async with engine(live):
            sessions = named("alone", 100)
            first = await groups(live, sessions)
            assert await groups(live, sessions) == first
            lost = live.gateway.services.metrics.registry.get_sample_value
            await until(lambda: lost("shoal_bus_lost_total", {"what": "pins"}), "the metric does not say so")
            assert live.call(lambda: live.gateway.services.rollouts.splits.pins.unpublished) > 0
            with valkey_server(tmp_path, port):
                async with ValkeyBus(url) as bus:
                    following = asyncio.ensure_future(follow(bus, book))
                    await until(lambda: book.evidence(ROLLOUT, 0).control.requests > 0, "nothing is told")
                    await until(
                        lambda: live.call(lambda: live.gateway.services.rollouts.splits.pins.unpublished) == 0,
                        "pins are not told",
                    )
                    following.cancel()
    evidence = book.evidence(ROLLOUT, 0)
    assert evidence.candidate.requests + evidence.control.requests == 200
