"""Requests that leave the requested pool: it cannot serve them, it is near its limit, or its model was unsure."""

from typing import Any

import orjson
import pytest

from functions.api.snapshot import (
    AdmissionEntry,
    BandEntry,
    ClassifierEntry,
    FallbackEntry,
    RuleEntry,
)
from functions.gateway.limits import Limits
from functions.gateway.routing.cascade import without_figures
from tests.gateway import sse
from tests.gateway.detours import (
    LARGE,
    NAMED_LARGE,
    SURE,
    THIRD,
    UNSURE,
    cascades,
    falls_back,
    figure,
    goes,
    hedged,
    pools,
    scored,
    with_large,
)
from tests.gateway.engine_rig import Engine, Play
from tests.gateway.hello import END, HELLO, Playing
from tests.gateway.rig import BOT_V1, POOL, heartbeat, routing

# fallback


async def test_fallback_pool_answers_when_the_first_is_gone(play: Playing) -> None:
    p = with_large(play("r0", **falls_back()))
    goes(p)
    p.ask(stream=False)
    engine = await p.connects()
    assert (engine.replica_id, engine.requests[0]["model"]) == ("big0", NAMED_LARGE)
    engine.answers(200, sse.whole(NAMED_LARGE))
    assert p.client.status == 200
    assert orjson.loads(p.client.body)["model"] == "acme/bot", "as the client called it"
    assert p.client.headers[b"x-shoal-model"] == b"llama-8b@v1"
    assert p.client.headers[b"x-shoal-degraded"] == b"from=acme/bot@v1;reason=unavailable"
    assert figure(p, "shoal_degraded_total", **{"from": POOL, "to": LARGE}) == 1
    assert p.gateway.services.traces.recent[-1].row().degraded_from == "acme/bot@v1"
    assert p.quiet()


async def test_all_full_engines_make_a_pool_saturated(play: Playing) -> None:
    p = with_large(play("r0", **falls_back()))
    p.ask()
    (await p.connects()).refuses(503)
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO.replace(BOT_V1.encode(), NAMED_LARGE.encode()))
    assert p.client.headers[b"x-shoal-degraded"] == b"from=acme/bot@v1;reason=saturated"
    assert b'"model":"acme/bot"' in p.client.body


async def test_exhausted_fallback_chain_returns_the_first_pools_error(play: Playing) -> None:
    steps = (FallbackEntry("unavailable", POOL, LARGE), FallbackEntry("unavailable", LARGE, THIRD))
    p = play("r0", **falls_back(*steps, FallbackEntry("unavailable", THIRD, POOL)))
    goes(p)
    p.ask()
    assert (p.client.status, p.client.error["code"]) == (503, "no_capacity")
    assert str(POOL) in p.client.error["message"], "the pool that was asked, not the last one tried"
    assert b"x-shoal-degraded" not in p.client.headers and p.quiet()
    with_large(p, "huge0", pool=THIRD)
    p.ask(stream=False)
    assert (await p.connects()).replica_id == "huge0"


@pytest.mark.parametrize(
    ("sections", "fields"),
    [
        ({"acme_may": ()}, {}),
        ({"window_tokens": 8}, {"messages": [{"role": "user", "content": "far too long a prompt " * 20}]}),
        ({"window_tokens": 100}, {"max_tokens": 101}),
    ],
    ids=["not the tenant's", "a prompt that does not fit", "more output than fits"],
)
async def test_unsuitable_fallback_pool_is_not_used(play: Playing, sections: Any, fields: Any) -> None:
    p = with_large(play("r0", **falls_back(**sections)))
    goes(p)
    p.ask(**fields)
    assert p.client.status == 503 and not p.dials


async def test_tier_not_named_by_the_fallback_stays(play: Playing) -> None:
    p = with_large(play("r0", **falls_back(FallbackEntry("unavailable", POOL, LARGE, ("free",)))))
    goes(p)
    p.ask()
    assert p.client.status == 503 and not p.dials


async def test_prompt_that_breaks_engines_does_not_fall_back(play: Playing) -> None:
    p = with_large(play("r0", "r1", **falls_back()))
    p.ask()
    (await p.connects()).refuses(500)
    (await p.connects()).refuses(500)
    await p.settle()
    assert p.client.status == 502 and not p.dials


async def test_fallback_models_refusal_is_not_the_callers_mistake(play: Playing) -> None:
    p = with_large(play("r0", **falls_back()))
    goes(p)
    p.ask()
    (await p.connects()).refuses(400, "context length exceeded")
    assert (p.client.status, p.client.error["code"]) == (503, "no_capacity")


# shifting


def under_pressure(p: Play, waiting: int, **changes: Any) -> None:
    sequence = 10 + waiting
    p.gateway.receive_heartbeat(
        heartbeat("r0", sequence=sequence, running=0, waiting=waiting, service_ms=100.0, **changes)
    )


SLO = AdmissionEntry("default", ("*",), (BandEntry("interactive", 1.0, 1000),))


async def test_pool_near_its_limit_shifts_uncached_prompts(play: Playing) -> None:
    p = with_large(play("r0", **falls_back(admission=(SLO,))))
    under_pressure(p, 0)
    p.ask(stream=False)
    assert (await p.connects()).replica_id == "r0"
    under_pressure(p, 30)
    p.ask(stream=False)
    engine = await p.connects()
    assert engine.replica_id == "big0"
    engine.answers(200, sse.whole(NAMED_LARGE))
    assert p.client.headers[b"x-shoal-degraded"] == b"from=acme/bot@v1;reason=saturated"


async def test_shifted_request_returns_home_rather_than_fail(play: Playing) -> None:
    p = with_large(play("r0", **falls_back(admission=(SLO,))))
    under_pressure(p, 30)
    p.ask(stream=False)
    await p.refuses_connection()
    engine = await p.connects()
    assert engine.replica_id == "r0"
    engine.answers(200, sse.whole(BOT_V1))
    assert p.client.status == 200 and b"x-shoal-degraded" not in p.client.headers


# cascades


async def test_sure_small_answer_is_passed_without_logprobs(play: Playing) -> None:
    p = with_large(play("r0", **cascades(0.5)))
    exchange = p.ask()
    engine = await p.connects()
    assert engine.requests[0]["logprobs"] is True and engine.requests[0]["top_logprobs"] == 5
    engine.begins_stream()
    engine.streams(sse.role(BOT_V1), scored("he", *SURE))
    assert p.client.status is None, "one of two tokens is judged"
    engine.streams(scored("llo", *SURE))
    assert p.client.body.count(b'"logprobs":null') == 3 and b"top_logprobs" not in p.client.body
    engine.streams(scored(" you", *UNSURE), END)
    engine.ends_stream()
    assert p.client.ended and b'" you"' in p.client.body and p.client.body.endswith(sse.DONE)
    assert exchange.usage is not None and p.quiet()
    assert figure(p, "shoal_cascade_total", **{"from": POOL, "to": LARGE, "verdict": "kept"}) == 1
    assert p.gateway.services.traces.recent[-1].row().route_score["cascade"]["verdict"] == "kept"


async def test_unsure_small_answer_is_replaced_by_the_larger_model(play: Playing) -> None:
    p = with_large(play("r0", **cascades(0.5)))
    p.ask()
    small = await p.connects()
    small.begins_stream()
    small.streams(sse.role(BOT_V1), scored("er", *UNSURE), scored("m", *UNSURE))
    assert small.dropped and p.client.status is None
    large = await p.connects()
    assert large.replica_id == "big0" and "logprobs" not in large.requests[0]
    large.begins_stream()
    large.streams(sse.token(NAMED_LARGE, "42"), END.replace(BOT_V1.encode(), NAMED_LARGE.encode()))
    large.ends_stream()
    assert b'"42"' in p.client.body and b'"er"' not in p.client.body and p.client.ended
    assert p.client.headers[b"x-shoal-model"] == b"llama-8b@v1"
    assert p.quiet() and figure(p, "shoal_cascade_total", **{"from": POOL, "to": LARGE, "verdict": "escalated"}) == 1


@pytest.mark.parametrize("logprobs", [SURE, UNSURE], ids=["sure", "unsure"])
async def test_a_whole_small_answer_is_judged_too(play: Playing, logprobs: tuple[float, ...]) -> None:
    p = with_large(play("r0", **cascades(0.5)))
    p.ask(stream=False)
    answer = orjson.loads(sse.whole(BOT_V1))
    tops = [{"token": "x", "logprob": one} for one in logprobs]
    answer["choices"][0]["logprobs"] = {"content": [{"token": "x", "logprob": logprobs[0], "top_logprobs": tops}]}
    (await p.connects()).answers(200, orjson.dumps(answer))
    if logprobs is SURE:
        assert orjson.loads(p.client.body)["choices"][0]["logprobs"] is None
    else:
        (await p.connects()).answers(200, sse.whole(NAMED_LARGE, "42"))
        assert orjson.loads(p.client.body)["choices"][0]["message"]["content"] == "42"
    assert p.client.status == 200 and p.quiet()


async def test_small_answer_stands_without_a_larger_model(play: Playing) -> None:
    p = play("r0", **cascades(0.5))
    p.ask()
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(scored("er", *UNSURE), scored("m", *UNSURE), END)
    engine.ends_stream()
    assert p.client.ended and b'"er"' in p.client.body and p.quiet()


async def test_when_the_larger_model_fails_the_small_one_answers_after_all(play: Playing) -> None:
    p = with_large(play("r0", **cascades(0.5)))
    p.ask()
    small = await p.connects()
    small.begins_stream()
    small.streams(scored("er", *UNSURE), scored("m", *UNSURE))
    await p.refuses_connection()
    again = await p.connects()
    assert again.replica_id == "r0" and "logprobs" not in again.requests[0]
    again.begins_stream()
    again.streams(HELLO, END)
    again.ends_stream()
    assert p.client.ended and b"hello" in p.client.body and p.quiet()


async def test_request_for_logprobs_is_answered_by_the_requested_model(play: Playing) -> None:
    p = with_large(play("r0", **cascades(0.0)))
    p.ask(stream=False, logprobs=True, top_logprobs=2)
    engine = await p.connects()
    assert engine.requests[0]["top_logprobs"] == 2
    engine.answers(200, sse.whole(BOT_V1))
    assert (
        p.client.status == 200
        and figure(p, "shoal_cascade_total", **{"from": POOL, "to": LARGE, "verdict": "kept"}) == 0
    )


async def test_small_answer_lost_while_judged_is_retried(play: Playing) -> None:
    p = with_large(play("r0", "r1", **cascades(0.5)))
    p.ask()
    first = await p.connects()
    first.begins_stream()
    first.streams(scored("he", *SURE))
    first.dies()
    second = await p.connects()
    second.begins_stream()
    second.streams(scored("hello", *SURE), END)
    second.ends_stream()
    assert p.client.body.count(b"hello") == 1 and b'"he"' not in p.client.body and p.client.ended and p.quiet()


def test_events_without_logprobs_are_unchanged() -> None:
    assert without_figures(HELLO + END) == HELLO + END


# classifiers


def auto(*rules: RuleEntry) -> dict[str, Any]:
    return pools(routing=(routing(classifier=ClassifierEntry("auto", POOL, rules)),))


async def test_virtual_model_routes_by_rule(play: Playing) -> None:
    p = with_large(play("r0", **auto(RuleEntry(LARGE, tools=True))))
    p.ask("auto", stream=False)
    engine = await p.connects()
    assert (engine.replica_id, engine.requests[0]["model"]) == ("r0", POOL)
    engine.answers(200, sse.whole(POOL))
    assert orjson.loads(p.client.body)["model"] == "auto" and p.client.headers[b"x-shoal-model"] == b"smollm2-135m@v1"
    p.ask("auto", stream=False, tools=[{"type": "function", "function": {"name": "f"}}])
    assert (await p.connects()).replica_id == "big0"


async def test_rule_grants_no_access_to_a_forbidden_model(play: Playing) -> None:
    p = with_large(play("r0", **{**auto(RuleEntry(LARGE)), "tenants": pools(acme_may=())["tenants"]}))
    p.ask("auto", stream=False)
    assert (await p.connects()).replica_id == "r0"


# prompts that fail replicas


async def test_a_prompt_that_failed_two_replicas_is_refused(play: Playing) -> None:
    p = play("r0", "r1", "r2", limits=Limits())
    p.ask()
    (await p.connects()).dies()
    (await p.connects()).dies()
    await p.settle()
    assert p.client.status == 502 and not p.dials, "no third replica is risked"
    assert "rejected for 600 s" in p.client.error["message"], p.client.body
    with pytest.raises(AssertionError, match="prompt_quarantined"):
        p.ask()
    assert p.client.status == 400 and figure(p, "shoal_prompts_quarantined_total") == 1
    p.ask(messages=[{"role": "user", "content": "something else"}])
    assert (await p.connects()).requests, "other prompts go on"
    p.rig.clock.forward(601.0)
    p.gateway.receive_heartbeat(heartbeat("r0", sequence=9))
    p.ask()
    assert p.client.status is None, "after ten minutes it may try again"


async def test_answered_prompt_is_not_quarantined(play: Playing) -> None:
    p = play("r0", "r1", "r2", limits=Limits())
    for _ in range(3):
        p.ask(stream=False)
        (await p.connects()).dies()
        (await p.connects()).answers(200, sse.whole(BOT_V1), extra="connection: close\r\n")
        assert p.client.status == 200
        p.after(60.0)
        for name in ("r0", "r1", "r2"):
            p.gateway.receive_heartbeat(heartbeat(name, sequence=int(p.rig.clock())))


async def test_request_that_failed_two_replicas_does_not_fall_back(play: Playing) -> None:
    p = with_large(play("r0", "r1", limits=Limits(), **falls_back()))
    p.ask()
    (await p.connects()).dies()
    (await p.connects()).dies()
    await p.settle()
    assert p.client.status == 502 and not p.dials


async def test_retry_policy_never_tries_a_third_replica_after_two_failures(play: Playing) -> None:
    """This holds even if the prompt is not quarantined: it was answered before, or quarantine is off."""
    p = play("r0", "r1", "r2", "r3", routing=(routing(retry_max_attempts=4),))
    p.ask()
    (await p.connects()).dies()
    (await p.connects()).dies()
    await p.settle()
    assert p.client.status == 502 and not p.dials


async def test_a_health_check_is_not_refused_after_both_engines_failed_and_came_back(play: Playing) -> None:
    p = play("r0", "r1", limits=Limits())
    p.ask(stream=False)
    (await p.connects()).answers(200, sse.whole(BOT_V1), extra="connection: close\r\n")
    p.ask(stream=False)
    (await p.connects()).dies()
    (await p.connects()).dies()
    await p.settle()
    assert p.client.status == 502
    p.after(20.0)
    for name in ("r0", "r1"):
        p.gateway.receive_heartbeat(heartbeat(name, sequence=9))
    p.ask(stream=False)
    (await p.connects()).answers(200, sse.whole(BOT_V1))
    assert p.client.status == 200


# hedges


async def test_late_first_token_starts_a_hedge(play: Playing) -> None:
    p = play("r0", "r1", **hedged())
    exchange = p.ask()
    slow = await p.connects()
    p.after(0.4)
    await p.settle()
    assert not p.dials, "it is not late yet"
    p.after(60.0 - 0.5)
    fast = await p.connects()
    assert fast.replica_id != slow.replica_id and p.gateway.services.router.load.in_flight == {"r0": 1, "r1": 1}
    fast.begins_stream()
    fast.streams(HELLO)
    assert slow.dropped, "the loser is aborted at once"
    fast.streams(END)
    fast.ends_stream()
    assert p.client.ended and p.client.headers[b"x-shoal-replica"] == fast.replica_id.encode()
    assert p.quiet() and p.requests(200) == 1 and exchange.tries.count == 2
    assert figure(p, "shoal_hedges_total", outcome="won") == 1


async def test_first_attempt_may_win_over_its_hedge(play: Playing) -> None:
    p = play("r0", "r1", **hedged())
    p.ask()
    first = await p.connects()
    p.after(10.0)
    second = await p.connects()
    first.begins_stream()
    first.streams(HELLO)
    assert second.dropped and not first.dropped
    first.streams(END)
    first.ends_stream()
    assert p.client.ended and p.quiet() and figure(p, "shoal_hedges_total", outcome="won") == 0


@pytest.mark.parametrize("number", [0, 1])
async def test_failed_attempt_leaves_the_other_running(play: Playing, number: int) -> None:
    p = play("r0", "r1", **hedged())
    p.ask()
    pair = [await p.connects()]
    p.after(10.0)
    pair.append(await p.connects())
    pair[number].dies()
    await p.settle()
    assert p.client.status is None and not p.dials
    other = pair[1 - number]
    other.begins_stream()
    other.streams(HELLO, END)
    other.ends_stream()
    assert p.client.ended and p.quiet()


@pytest.mark.parametrize(
    ("policy", "headers"),
    [(hedged(), {"header_x_shoal_class": "batch"}), (hedged(retry_budget_ratio=0.0), {})],
    ids=["not urgent", "no budget"],
)
async def test_requests_that_are_not_hedged(play: Playing, policy: Any, headers: Any) -> None:
    p = play("r0", "r1", **policy)
    p.ask(**headers)
    await p.connects()
    p.after(10.0)
    await p.settle()
    assert not p.dials


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_request_at_a_silent_replica_is_hedged(play: Playing, *, stream: bool) -> None:
    """This holds under any policy. A whole answer is silent until its end, so other streams that stop reveal the
    fault."""
    p, speaking = await streaming_at_one(play)
    p.ask(stream=stream, header_x_session_id="s")
    waiting = await p.connects()
    assert waiting.replica_id == speaking.replica_id
    p.after(2.5)
    other = await p.connects()
    assert other.replica_id != speaking.replica_id
    if stream:
        other.begins_stream()
        other.streams(HELLO)
    else:
        other.answers(200, sse.whole(BOT_V1))
    assert p.client.status == 200 and p.client.headers[b"x-shoal-replica"] == other.replica_id.encode()
    assert waiting.dropped, "the loser is aborted at once"
    p.gateway.services.router.sweep(p.rig.clock())
    attempt = p.ask().tries.attempt
    assert attempt is not None and attempt.replica.id == other.replica_id, "until it speaks again others come first"


async def test_request_at_a_replica_that_streams_to_others_waits(play: Playing) -> None:
    p, speaking = await streaming_at_one(play)
    p.ask(header_x_session_id="s")
    assert (await p.connects()).replica_id == speaking.replica_id
    for _ in range(20):
        p.after(0.5)
        speaking.streams(sse.token(BOT_V1, "x"))
        await p.settle()
    assert not p.dials and figure(p, "shoal_hedges_total", outcome="won") == 0


async def streaming_at_one(play: Playing) -> tuple[Play, Engine]:
    """Start a stream at a replica; the session's next request will join it. No hedge has started yet."""
    p = play("r0", "r1")
    p.ask(header_x_session_id="s")
    speaking = await p.connects()
    speaking.begins_stream()
    speaking.streams(HELLO)
    return p, speaking


async def test_client_disconnect_ends_both_attempts(play: Playing) -> None:
    p = play("r0", "r1", **hedged())
    exchange = p.ask()
    first = await p.connects()
    p.after(10.0)
    second = await p.connects()
    exchange.client_left()
    assert first.dropped and second.dropped and p.quiet()
