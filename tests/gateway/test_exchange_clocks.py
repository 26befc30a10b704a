"""The exchange's timeouts, and clients that leave or do not read."""

from collections.abc import Callable
from typing import Any

import pytest

from functions.api.ids import TenantId
from functions.api.snapshot import AdmissionEntry, BandEntry
from functions.gateway.errors import RequestRejected
from functions.gateway.http.sink import Headers
from functions.gateway.intake.routes import CHAT
from functions.gateway.quota.accounts import RequestQuota
from tests.gateway import sse
from tests.gateway.client_rig import CHAT_BODY, post
from tests.gateway.engine_rig import Client, Play
from tests.gateway.hello import END, HELLO, Playing
from tests.gateway.rig import BOT_V1, headers, heartbeat, limits, quota
from tests.gateway.test_quotas import new_connection

# deadlines


@pytest.mark.parametrize("stream", [True, False])
async def test_deadline_before_the_first_byte_answers_504(play: Playing, stream: bool) -> None:
    p = play("r0", "r1")
    p.ask(stream=stream, header_x_shoal_deadline_ms="1000")
    engine = await p.connects()
    p.after(0.9)
    assert not p.client.ended
    p.after(0.1)
    assert (p.client.status, p.client.error["code"]) == (504, "deadline_exceeded")
    assert engine.dropped and p.quiet()


async def test_deadline_while_dialling_answers_504(play: Playing) -> None:
    p = play("r0", "r1")
    p.ask(header_x_shoal_deadline_ms="500")
    await p.settle()
    p.after(0.5)
    assert p.client.status == 504 and p.quiet()
    engine = await p.connects()
    assert engine.requests == [], "nobody waits for it any more"


@pytest.mark.parametrize("lane", ["fast", "plain"])
async def test_deadline_passed_during_the_body_reaches_no_engine(play: Playing, lane: str) -> None:
    p = play("r0", quotas=(quota(input_tokens_per_minute=60_000),))
    connection = await new_connection(p, lane)
    request = post(CHAT_BODY, x_shoal_deadline_ms="500")
    connection >> request[:-10]
    await p.settle()
    p.rig.clock.forward(0.5)
    connection >> request[-10:]
    await p.settle()
    assert not p.dials, "no engine works for nobody"
    assert (connection.answer.status, connection.answer.code) == (504, "deadline_exceeded")
    assert "X-Shoal-Deadline-Ms" in connection.answer.error["message"]
    assert p.quiet() and p.gateway.services.quotas.in_flight(TenantId("acme")) == 0
    connection >> post(CHAT_BODY, x_shoal_deadline_ms="500")
    await p.settle()
    assert len(p.dials) == 1, "the connection goes on"


async def test_deadline_passed_during_a_quota_lease_reaches_no_engine(
    play: Playing, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = play("r0")
    told: list[Callable[[RequestRejected | None], None]] = []
    monkeypatch.setattr(RequestQuota, "reserve", lambda *_: False)
    monkeypatch.setattr(p.gateway.services.quotas, "request_missing", lambda _entry, _now, done: told.append(done))
    p.ask(header_x_shoal_deadline_ms="500")
    p.rig.clock.forward(0.5)
    told[0](None)
    await p.settle()
    assert not p.dials
    assert (p.client.status, p.client.error["code"]) == (504, "deadline_exceeded")
    assert p.quiet()


async def test_no_retry_after_the_deadline(play: Playing) -> None:
    p = play("r0", "r1")
    p.ask(header_x_shoal_deadline_ms="500")
    await p.settle()
    p.rig.clock.forward(0.6)
    await p.refuses_connection()
    assert (p.client.status, p.client.error["code"]) == (504, "deadline_exceeded")


async def test_a_callers_deadline_cannot_outlast_the_platforms(play: Playing) -> None:
    p = play("r0", limits=limits(answer_s=5.0))
    p.ask(header_x_shoal_deadline_ms="3600000")
    await p.connects()
    p.after(5.0)
    assert p.client.status == 504


async def test_a_whole_answer_may_take_longer_than_a_first_byte(play: Playing) -> None:
    p = play("r0")
    p.ask(stream=False)
    engine = await p.connects()
    p.after(61.0)
    engine.answers(200, sse.whole(BOT_V1))
    assert p.client.status == 200


async def test_a_stream_that_moves_is_not_idle(play: Playing) -> None:
    p = play("r0", limits=limits(idle_s=1.0))
    p.ask()
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO)
    for _ in range(10):
        p.after(0.9)
        engine.streams(sse.token(BOT_V1, "."))
    assert not p.client.ended


# the client


async def test_client_disconnect_while_waiting_drops_the_engine(play: Playing) -> None:
    p = play("r0", "r1")
    exchange = p.ask()
    engine = await p.connects()
    exchange.client_left()
    assert engine.dropped and p.quiet() and p.requests(499) == 1
    assert p.client.status is None and not p.dials


async def test_client_disconnect_mid_stream_drops_the_engine(play: Playing) -> None:
    p = play("r0")
    exchange = p.ask()
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO)
    exchange.client_left()
    exchange.client_left()
    assert engine.dropped and p.quiet() and p.requests(499) == 1
    assert not p.gateway.services.fleet.ejected(heartbeat().pool, p.rig.clock())  # type: ignore[arg-type]


async def test_slow_client_pauses_the_engine(play: Playing) -> None:
    p = play("r0")
    exchange = p.ask()
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO)
    exchange.pause()
    assert engine.paused
    p.after(29.0)
    exchange.resume()
    assert not engine.paused
    p.after(29.0)
    assert not p.client.ended, "neither stalled nor idle: the clocks began anew"
    engine.streams(END)
    engine.ends_stream()
    assert p.client.ended


async def test_a_client_that_stops_reading_is_cut_off(play: Playing) -> None:
    p = play("r0")
    exchange = p.ask()
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO)
    exchange.pause()
    p.after(30.1)
    assert p.client.was_cut and engine.dropped and p.quiet()
    assert p.requests(499) == 1


async def test_connection_returned_while_paused_reads_again(play: Playing) -> None:
    p = play("r0")
    exchange = p.ask()
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO)
    exchange.pause()
    engine.streams(END)  # already on its way when reading stopped
    engine.ends_stream()
    assert not engine.paused


class Unwritable(Client):
    """A sink that raises, as no sink should."""

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        raise RuntimeError("a mistake of ours")


async def test_internal_failure_of_one_request_does_not_affect_others(play: Playing) -> None:
    p = play("r0")
    broken, whole = Unwritable(), Client()
    for sink in (broken, whole):
        body = sse.compact({"model": "acme/bot", "messages": [{"role": "user", "content": "hi"}]})
        assert p.gateway.handle(CHAT, headers(x_shoal_deadline_ms="1000"), body, sink, p.rig.clock()) is not None
    p.rig.clock.forward(2.0)
    p.gateway.sweep()
    assert whole.status == 504 and whole.ended and broken.was_cut
    assert len(p.gateway.services.open_requests) == 0 and p.gateway.services.quotas.in_flight(TenantId("acme")) == 0


async def test_request_that_cannot_start_ends_with_500(play: Playing, monkeypatch: pytest.MonkeyPatch) -> None:
    p = play("r0")

    def broken(*_: object) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(p.gateway.services.router, "decide", broken)
    p.ask()
    assert (p.client.status, p.client.error["code"]) == (500, "internal_error") and p.quiet()


async def test_request_queued_behind_an_internal_failure_is_dispatched(monkeypatch: pytest.MonkeyPatch) -> None:
    p = Play(admission=(AdmissionEntry("p", ("*",), (BandEntry("interactive", 0.9, ttft_slo_ms=60_000),)),))
    p.gateway.receive_heartbeat(heartbeat("r0", kv_blocks_total=1, prefill_ms_per_token=0.001))  # room for one
    p.ask()
    first = await p.connects()
    decide, mistakes = p.gateway.services.router.decide, ["the first of those that wait"]

    def once_broken(*arguments: Any) -> Any:
        if mistakes:
            raise RuntimeError(mistakes.pop())
        return decide(*arguments)

    p.ask()
    unlucky = p.client
    p.ask()
    monkeypatch.setattr(p.gateway.services.router, "decide", once_broken)
    first.begins_stream()
    first.streams(HELLO, END)
    first.ends_stream()
    await p.settle()
    assert unlucky.status == 500 and p.client.status is None
    assert len(first.requests) == 2, "the one behind it has been sent"
    await p.close()


async def test_first_byte_timeout_starts_when_the_engine_has_the_request(play: Playing) -> None:
    """The gateway stalled between the dial and its end, so the replica has not received the request until then."""
    p = play("r0")
    p.ask(stream=True)
    await p.settle()
    p.rig.clock.forward(p.rig.limits.first_byte_s + 1.0)
    engine = await p.connects()
    p.after(0.3)
    assert not engine.dropped
    engine.begins_stream()
    engine.streams(HELLO, END)
    engine.ends_stream()
    assert p.client.status == 200 and p.client.ended
