"""The exchange: one request has one outcome, whatever engines, clocks and clients do."""

from collections.abc import Awaitable, Callable

import pytest

from functions.api.ids import PoolName
from functions.api.snapshot import FallbackEntry
from functions.gateway.request.answers import Usage
from tests.gateway import sse
from tests.gateway.engine_rig import Engine, Play
from tests.gateway.hello import END, HELLO, PUBLIC_END, PUBLIC_HELLO, Playing, finishes
from tests.gateway.rig import BOT_V1, catalogue, heartbeat, routing


async def test_a_stream_from_its_request_to_its_end(play: Playing) -> None:
    p = play("r0")
    exchange = p.ask(stream=True)
    engine = await p.connects()
    assert engine.requests[0]["model"] == BOT_V1
    assert p.gateway.services.router.load.in_flight == {"r0": 1}
    engine.begins_stream()
    engine.streams(sse.role(BOT_V1))
    assert p.client.status is None, "a role is no answer yet"
    engine.streams(sse.token(BOT_V1, "hello"))
    assert p.client.body == PUBLIC_HELLO
    engine.streams(END)
    assert not p.client.ended, "the engine has not ended its answer"
    engine.ends_stream()
    assert p.client.ended and p.client.body == PUBLIC_HELLO + PUBLIC_END
    assert exchange.usage == Usage(3, 2)
    assert p.client.headers[b"x-shoal-replica"] == b"r0"
    assert p.quiet() and p.requests(200) == 1


async def test_a_whole_answer(play: Playing) -> None:
    p = play("r0")
    p.ask(stream=False)
    (await p.connects()).answers(200, sse.whole(BOT_V1))
    assert (p.client.status, p.client.body, p.client.ended) == (200, sse.whole("acme/bot"), True)
    assert p.quiet() and p.requests(200) == 1


async def test_idle_connection_is_reused(play: Playing) -> None:
    p = play("r0")
    p.ask(stream=False)
    engine = await p.connects()
    engine.answers(200, sse.whole(BOT_V1))
    p.ask(stream=True)
    assert not p.dials, "the idle connection was taken"
    finishes(engine)
    assert p.client.body == PUBLIC_HELLO + PUBLIC_END
    assert len(engine.requests) == 2


async def test_connection_close_from_an_engine_ends_the_connection(play: Playing) -> None:
    p = play("r0")
    p.ask(stream=False)
    engine = await p.connects()
    engine.answers(200, sse.whole(BOT_V1), extra="connection: close\r\n")
    assert p.client.status == 200 and engine.dropped


# failures before the first byte


async def connect_refused(p: Play) -> None:
    await p.refuses_connection()


async def connect_timeout(p: Play) -> None:
    await p.refuses_connection(TimeoutError())


async def host_that_is_no_name(p: Play) -> None:
    await p.refuses_connection(UnicodeError("label empty or too long"))


async def died_between_dial_and_use(p: Play) -> None:
    await p.settle()
    p.born_dying = True
    await p.connects()
    p.born_dying = False


def after_connecting(act: Callable[[Engine, Play], None]) -> Callable[[Play], Awaitable[None]]:
    async def scenario(p: Play) -> None:
        act(await p.connects(), p)

    return scenario


def streaming(act: Callable[[Engine, Play], None]) -> Callable[[Play], Awaitable[None]]:
    async def scenario(p: Play) -> None:
        engine = await p.connects()
        engine.begins_stream()
        act(engine, p)

    return scenario


FAILURES: dict[str, tuple[Callable[[Play], Awaitable[None]], int, str, bool]] = {
    # name: (failure, status and code if it happens on every replica, whether it ejects)
    "connection refused": (connect_refused, 502, "upstream_failed", True),
    "connection timed out": (connect_timeout, 502, "upstream_failed", True),
    "a host name that is none": (host_that_is_no_name, 502, "upstream_failed", True),
    "died before it was used": (died_between_dial_and_use, 502, "upstream_failed", True),
    "reset before the head": (after_connecting(lambda e, p: e.dies()), 502, "upstream_failed", True),
    "reset after the head": (streaming(lambda e, p: e.dies()), 502, "upstream_failed", True),
    "reset inside the first event": (
        streaming(lambda e, p: (e.streams(HELLO[:20]), e.dies())[0]),
        502,
        "upstream_failed",
        True,
    ),
    "not HTTP": (after_connecting(lambda e, p: e.sends(b"SSH-2.0-x\r\n")), 502, "upstream_failed", True),
    "switches protocols": (
        after_connecting(lambda e, p: e.sends(b"HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n")),
        502,
        "upstream_failed",
        True,
    ),
    "HTML": (
        after_connecting(lambda e, p: e.answers(200, b"<html>", "text/html")),
        502,
        "upstream_failed",
        True,
    ),
    "an empty stream": (streaming(lambda e, p: e.ends_stream()), 502, "upstream_failed", True),
    "only [DONE]": (streaming(lambda e, p: (e.streams(sse.DONE), e.ends_stream())[0]), 502, "upstream_failed", True),
    "only a role": (
        streaming(lambda e, p: (e.streams(sse.role(BOT_V1)), e.ends_stream())[0]),
        502,
        "upstream_failed",
        True,
    ),
    "an event without end": (
        streaming(lambda e, p: e.streams(b"x" * (1024 * 1024 + 1))),
        502,
        "upstream_failed",
        True,
    ),
    "an endless error": (
        after_connecting(lambda e, p: e.answers(500, b"x" * 70_000)),
        502,
        "upstream_failed",
        True,
    ),
    "no first byte": (after_connecting(lambda e, p: p.after(60.1)), 504, "deadline_exceeded", True),
    "a head and then nothing": (streaming(lambda e, p: p.after(60.1)), 504, "deadline_exceeded", True),
    "aborted at once": (
        streaming(lambda e, p: e.streams(sse.finish(BOT_V1, "abort"))),
        502,
        "upstream_failed",
        False,
    ),
    "a role, then aborted": (
        streaming(lambda e, p: e.streams(sse.role(BOT_V1), sse.finish(BOT_V1, "abort"))),
        502,
        "upstream_failed",
        False,
    ),
    "adapter missing": (after_connecting(lambda e, p: e.refuses(404)), 503, "model_not_ready", False),
    "full": (after_connecting(lambda e, p: e.refuses(503)), 503, "overloaded", False),
    "too many": (after_connecting(lambda e, p: e.refuses(429)), 503, "overloaded", False),
    "an error event of 503": (streaming(lambda e, p: e.streams(sse.error(503))), 503, "overloaded", False),
    "the fleet says dead": (
        after_connecting(lambda e, p: p.exchange.replica_lost(e.replica_id)),  # type: ignore[union-attr]
        502,
        "upstream_failed",
        False,
    ),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_failure_before_the_first_byte_is_retried_transparently(play: Playing, name: str) -> None:
    fails, _, _, evidence = FAILURES[name]
    p = play("r0", "r1")
    p.ask(stream=True)
    first = next(iter(p.gateway.services.router.load.in_flight))
    await fails(p)
    assert p.client.status is None
    assert (
        p.gateway.services.router.load.in_flight != {first: 1}
        and sum(p.gateway.services.router.load.in_flight.values()) == 1
    )
    ejected = p.gateway.services.fleet.ejected(heartbeat().pool, p.rig.clock())  # type: ignore[arg-type]
    assert ejected == ({first} if evidence else set())
    finishes(await p.connects())
    assert p.client.body == PUBLIC_HELLO + PUBLIC_END
    assert p.quiet() and p.requests(200) == 1


DEATHS = {
    *("died before it was used", "reset before the head", "reset after the head", "reset inside the first event"),
    "the fleet says dead",
}


@pytest.mark.parametrize("name", FAILURES)
async def test_failure_on_every_replica_is_answered_once_with_its_code(play: Playing, name: str) -> None:
    fails, status, code, _ = FAILURES[name]
    p = play("r0", "r1", "r2", "r3")
    p.ask(stream=True)
    for _ in range(2 if name in DEATHS else 3):
        assert not p.client.ended
        await fails(p)
    assert (p.client.status, p.client.error["code"]) == (status, code)
    assert (b"retry-after" in p.client.headers) == (status == 503)
    assert p.quiet() and p.requests(status) == 1
    assert not p.dials, "three attempts, no fourth; and none after two replicas died with it"


@pytest.mark.parametrize("body", [b"{", b"[]", b"", b"<html>", sse.whole(BOT_V1, "", "abort", 0)])
async def test_invalid_whole_answer_is_retried(play: Playing, body: bytes) -> None:
    p = play("r0", "r1")
    p.ask(stream=False)
    (await p.connects()).answers(200, body)
    (await p.connects()).answers(200, sse.whole(BOT_V1))
    assert p.client.body == sse.whole("acme/bot")


async def test_answer_without_length_or_end_is_not_accepted(play: Playing) -> None:
    p = play("r0", "r1")
    p.ask(stream=False)
    engine = await p.connects()
    engine.sends(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + sse.whole(BOT_V1))
    engine.dies()
    assert p.client.status is None, "a body that ends with the connection may be cut"


async def test_two_engine_errors_stop_a_prompt_that_kills(play: Playing) -> None:
    p = play("r0", "r1", "r2")
    p.ask()
    (await p.connects()).refuses(500)
    (await p.connects()).refuses(500)
    assert (p.client.status, p.client.error["code"]) == (502, "upstream_failed")
    await p.settle()
    assert len(p.engines) == 2 and not p.dials


@pytest.mark.parametrize("stream", [True, False])
async def test_the_callers_mistake_is_not_retried(play: Playing, stream: bool) -> None:
    p = play("r0", "r1")
    p.ask(stream=stream)
    engine = await p.connects()
    engine.refuses(400, f"max_tokens is too large for {BOT_V1}")
    assert p.client.status == 400
    assert p.client.error["message"] == "max_tokens is too large for acme/bot"
    assert not p.dials and p.quiet()
    assert not engine.dropped, "the engine is well; its connection is kept"


async def test_no_retry_without_budget(play: Playing) -> None:
    p = play("r0", "r1", routing=(routing(retry_budget_ratio=0.0),))
    p.ask()
    await p.refuses_connection()
    assert p.client.status == 502 and p.quiet()


@pytest.mark.parametrize(("max_attempts", "tried"), [(1, 1), (2, 2), (5, 4)])
async def test_attempts_are_limited_by_the_pools_policy(play: Playing, max_attempts: int, tried: int) -> None:
    p = play("r0", "r1", "r2", "r3", routing=(routing(retry_max_attempts=max_attempts),))
    exchange = p.ask()
    for _ in range(tried):
        await p.refuses_connection()
    assert p.client.status == 502 and not p.dials and p.quiet()
    assert len(exchange.tries.failures) == tried


async def test_unserved_fallback_is_not_reported_as_degraded(play: Playing) -> None:
    fallback = FallbackEntry("unavailable", PoolName("smollm2-135m"), PoolName("other"))
    p = play("r0", routing=(routing(fallback=(fallback,)),))
    p.gateway.receive_heartbeat(heartbeat("elsewhere", pool="other"))
    p.gateway.receive_heartbeat(heartbeat("r0", sequence=2, phase="dead"))
    p.ask()
    assert (p.client.status, p.client.error["code"]) == (503, "no_capacity")
    assert b"x-shoal-degraded" not in p.client.headers


async def test_request_keeps_the_policy_of_its_arrival(play: Playing) -> None:
    p = play("r0", "r1")
    p.ask()
    p.gateway.swap(catalogue(epoch=2, routing=(routing(retry_max_attempts=1),)))
    await p.refuses_connection()
    (await p.connects()).begins_stream()
    assert p.client.status is None, "tried again, as the snapshot of its arrival allows"
    p.ask()
    await p.refuses_connection()
    assert p.client.status == 502, "the next request obeys the new one"


async def test_a_stale_connection_is_not_an_attempt(play: Playing) -> None:
    p = play("r0")
    p.ask(stream=False)
    engine = await p.connects()
    engine.answers(200, sse.whole(BOT_V1))
    exchange = p.ask(stream=False)
    engine.dies()  # the engine closed its idle connection just as the gateway used it
    (await p.connects()).answers(200, sse.whole(BOT_V1))
    assert p.client.status == 200
    assert exchange.tries.failures == ()
    assert not p.gateway.services.fleet.ejected(heartbeat().pool, p.rig.clock())  # type: ignore[arg-type]


async def test_stale_connection_is_followed_by_a_dial(play: Playing) -> None:
    """A restarted replica has closed them all: the request would be sent once on each."""
    p = play("r0")
    engines = []
    for _ in range(2):
        p.ask(stream=False)
        engines.append(await p.connects())
    for engine in engines:
        engine.answers(200, sse.whole(BOT_V1))
    exchange = p.ask(stream=False)
    taken = next(engine for engine in engines if len(engine.requests) == 2)
    taken.dies()
    (await p.connects()).answers(200, sse.whole(BOT_V1))
    assert [len(engine.requests) for engine in engines if engine is not taken] == [1]
    assert exchange.tries.failures == ()


async def test_reused_connection_lost_in_its_answer_counts_as_attempt(play: Playing) -> None:
    p = play("r0")
    p.ask()
    engine = await p.connects()
    finishes(engine)
    exchange = p.ask()
    engine.begins_stream()
    engine.dies()
    assert [failure.value for failure in exchange.tries.failures] == ["reset"]
    assert p.client.status == 502 and not p.dials


async def test_late_dial_is_kept_for_other_requests(play: Playing) -> None:
    p = play("r0")
    p.ask().client_left()
    engine = await p.connects()
    assert p.quiet() and engine.requests == [] and not engine.dropped
    p.ask(stream=False)
    engine.answers(200, sse.whole(BOT_V1))
    assert p.client.status == 200


async def test_a_dial_of_an_earlier_attempt_does_not_send_the_request_a_second_time(play: Playing) -> None:
    p = play("r0", "r1")
    exchange = p.ask()
    await p.settle()
    exchange.replica_lost(p.dials[0][0])
    early = await p.connects()
    assert early.requests == []
    finishes(await p.connects())
    assert p.client.body == PUBLIC_HELLO + PUBLIC_END and early.requests == []


async def test_no_ready_replica_answers_503(play: Playing) -> None:
    p = play("r0")
    p.gateway.receive_heartbeat(heartbeat("r0", sequence=2, phase="draining"))
    p.ask()
    assert (p.client.status, p.client.error["code"]) == (503, "no_capacity")
    assert p.quiet()


def just_started(play: Playing) -> Play:
    """Make a gateway that has so far heard only of one replica that is loading its weights."""
    p = play("r9")
    p.gateway.receive_heartbeat(heartbeat("r9", sequence=2, phase="starting"))
    p.gateway.services.state.fleet_unheard_until_s = p.rig.clock() + 2.5
    return p


async def test_request_before_the_first_heartbeat_waits_for_it(play: Playing) -> None:
    p = just_started(play)
    p.ask()
    p.rig.clock.forward(0.9)
    p.gateway.sweep()
    assert p.client.status is None
    for name in ("r0", "r1"):
        p.gateway.receive_heartbeat(heartbeat(name))
    assert not p.dials, "who speaks first is not given all that waited"
    p.gateway.sweep()
    finishes(await p.connects())
    assert p.client.body == PUBLIC_HELLO + PUBLIC_END and p.quiet()


async def test_empty_fleet_answers_503_after_the_start_up_wait(play: Playing) -> None:
    p = just_started(play)
    p.ask()
    p.rig.clock.forward(2.25)
    p.gateway.sweep()
    assert p.client.status is None
    p.rig.clock.forward(0.25)
    p.gateway.sweep()
    assert (p.client.status, p.client.error["code"]) == (503, "no_capacity") and p.quiet()
    p.ask()
    assert p.client.status == 503, "and from then on at once"


async def test_a_deadline_passes_before_the_first_heartbeat(play: Playing) -> None:
    p = just_started(play)
    p.ask(header_x_shoal_deadline_ms="1000")
    p.rig.clock.forward(1.1)
    p.gateway.sweep()
    assert (p.client.status, p.client.error["code"]) == (504, "deadline_exceeded") and p.quiet()


async def test_request_ended_before_the_first_heartbeat_leaves_nothing_behind(play: Playing) -> None:
    p = just_started(play)
    p.ask().client_left()
    p.ask()
    p.gateway.services.state.draining = True
    p.gateway.cut_short()
    assert p.client.status == 503 and p.quiet()
    p.gateway.receive_heartbeat(heartbeat("r0"))
    p.gateway.sweep()
    await p.settle()
    assert not p.dials and p.quiet()


# failures after the first byte


def idle(engine: Engine, p: Play) -> None:
    p.after(30.1)


AFTER: dict[str, tuple[Callable[[Engine, Play], None], int, str, bool]] = {
    "reset": (lambda e, p: e.dies(), 502, "upstream_lost", True),
    "half an event, then reset": (
        lambda e, p: (e.streams(sse.token(BOT_V1, "x")[:-1]), e.dies())[0],
        502,
        "upstream_lost",
        True,
    ),
    "a broken chunk": (lambda e, p: e.sends(b"zz\r\n"), 502, "upstream_lost", True),
    "an end without [DONE]": (lambda e, p: e.ends_stream(), 502, "upstream_lost", True),
    "an event without end": (lambda e, p: e.streams(b"x" * (1024 * 1024 + 1)), 502, "upstream_lost", True),
    "silence": (idle, 502, "upstream_lost", True),
    "an error event": (lambda e, p: e.streams(sse.error()), 502, "upstream_failed", False),
    "an error event that blames the caller": (lambda e, p: e.streams(sse.error(400)), 502, "upstream_failed", False),
    "the deadline": (lambda e, p: p.after(20.1), 504, "deadline_exceeded", False),
    "the gateway's own end": (lambda e, p: p.gateway.cut_short(), 503, "restarting", False),
}


@pytest.mark.parametrize("name", AFTER)
async def test_a_failure_after_the_first_byte_ends_the_stream_with_an_error(play: Playing, name: str) -> None:
    fails, status, code, evidence = AFTER[name]
    p = play("r0", "r1")
    p.ask(**({"header_x_shoal_deadline_ms": "20000"} if name == "the deadline" else {}))
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO)
    fails(engine, p)
    assert p.client.ended and p.client.status == 200
    assert p.client.body.startswith(PUBLIC_HELLO) and b"[DONE]" not in p.client.body
    assert p.client.error["code"] == code
    assert p.client.body.count(b'"error"') == 1
    assert engine.transport.closing or name == "an end without [DONE]", "the engine must stop"
    assert p.quiet() and p.requests(status) == 1 and not p.dials
    assert bool(p.gateway.services.fleet.ejected(heartbeat().pool, p.rig.clock())) is evidence  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name in AFTER if name not in ("the gateway's own end",)])
async def test_failure_after_done_does_not_affect_the_answer(play: Playing, name: str) -> None:
    fails, *_ = AFTER[name]
    p = play("r0", "r1")
    exchange = p.ask(**({"header_x_shoal_deadline_ms": "20000"} if name == "the deadline" else {}))
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO, END)
    fails(engine, p)
    if name == "an event without end" or name.startswith("an error event"):
        engine.ends_stream()
    assert p.client.ended and p.client.body == PUBLIC_HELLO + PUBLIC_END
    assert exchange.usage == Usage(3, 2)
    assert p.quiet() and p.requests(200) == 1
    assert not p.gateway.services.fleet.ejected(heartbeat().pool, p.rig.clock())  # type: ignore[arg-type]


async def test_replica_reported_dead_may_finish_its_streams(play: Playing) -> None:
    p = play("r0")
    exchange = p.ask()
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO)
    exchange.replica_lost(engine.replica_id)
    engine.streams(END)
    engine.ends_stream()
    assert p.client.body == PUBLIC_HELLO + PUBLIC_END
