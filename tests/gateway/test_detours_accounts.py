"""Consequences of a detour: charges, engine back-off, what is kept of a request, and judgements that fail."""

from typing import Any

import pytest

from functions.api.snapshot import (
    FallbackEntry,
)
from functions.gateway.intake.routes import COMPLETIONS
from functions.gateway.limits import Limits
from tests.gateway import sse
from tests.gateway.detours import (
    LARGE,
    NAMED_LARGE,
    SURE,
    THIRD,
    UNSURE,
    cascades,
    counted,
    escalated,
    falls_back,
    figure,
    goes,
    hedged,
    merged_models,
    pools,
    scored,
    settled,
    with_large,
)
from tests.gateway.hello import END, HELLO, Playing
from tests.gateway.rig import BOT_V1, POOL, heartbeat, in_rollout, routing

# judgements that fail


async def test_engine_error_with_the_last_unsure_token_still_escalates(play: Playing) -> None:
    p = with_large(play("r0", **cascades(0.5)))
    p.ask()
    small = await p.connects()
    small.begins_stream()
    small.streams(scored("e", *UNSURE))
    small.streams(scored("r", *UNSURE) + sse.error(500))
    assert p.client.status is None and not p.client.ended, "the larger model is being asked"
    large = await p.connects()
    large.answers(503, b"{}")
    again = await p.connects()
    assert again.replica_id == "r0"


async def test_small_answer_with_invalid_json_is_retried(play: Playing) -> None:
    p = with_large(play("r0", "r1", **cascades(0.5)))
    p.ask()
    first = await p.connects()
    first.begins_stream()
    first.streams(b'data: {"logprobs":{ broken}\n\n' + sse.DONE)
    assert p.client.status is None
    second = await p.connects()
    assert second.replica_id != first.replica_id


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"route": COMPLETIONS, "logprobs": 0},
        {"route": COMPLETIONS, "echo": True},
        {"route": COMPLETIONS, "prompt": ["one", "two"]},
        {"stream_options": {"continuous_usage_stats": True, "include_usage": True}},
    ],
    ids=["several answers", "figures of its own", "the prompt's figures", "several prompts", "counts of its own"],
)
async def test_unjudgeable_request_has_no_cascade(play: Playing, fields: dict[str, Any]) -> None:
    p = with_large(play("r0", **cascades(0.0)))
    p.ask(**fields)
    request = (await p.connects()).requests[0]
    assert request.get("logprobs") == fields.get("logprobs") and "top_logprobs" not in request


async def test_fallback_to_control_is_judged_like_the_candidate(play: Playing) -> None:
    sections = cascades(0.5) | {"models": merged_models(in_rollout(99))}
    p = with_large(play("r0", **sections))
    p.gateway.receive_heartbeat(heartbeat("r0", sequence=2, adapters=(BOT_V1,)))
    p.ask()
    engine = await p.connects()
    assert engine.requests[0]["model"] == BOT_V1 and engine.requests[0]["logprobs"] is True
    engine.begins_stream()
    engine.streams(sse.role(BOT_V1), scored("he", *SURE), scored("llo", *SURE), END)
    engine.ends_stream()
    assert p.client.ended and b"top_logprobs" not in p.client.body and p.quiet()


# charges


async def test_a_tenant_pays_for_both_answers_of_its_cascade(play: Playing) -> None:
    p = with_large(play("r0", **cascades(0.5)))
    large = await escalated(p)
    large.begins_stream()
    large.streams(sse.token(NAMED_LARGE, "42"), sse.finish(NAMED_LARGE), sse.usage(NAMED_LARGE, 5, 3), sse.DONE)
    large.ends_stream()
    assert p.client.ended and settled(p) == (7 + 5, 2 + 3)
    for pool, kind, tokens in (
        (POOL, "prompt", 7),
        (POOL, "completion", 2),
        (LARGE, "prompt", 5),
        (LARGE, "completion", 3),
    ):
        assert figure(p, "shoal_tokens_total", pool=pool, kind=kind) == tokens
    assert p.gateway.services.traces.recent[-1].row().route_score["cascade"]["completion_tokens"] == 2


async def test_repeated_small_answer_is_charged_once(play: Playing) -> None:
    p = with_large(play("r0", **cascades(0.5)))
    large = await escalated(p)
    large.answers(503, b"{}")
    again = await p.connects()
    again.begins_stream()
    again.streams(HELLO, sse.finish(BOT_V1), sse.usage(BOT_V1, 7, 2), sse.DONE)
    again.ends_stream()
    assert p.client.ended and settled(p) == (7, 2)


async def test_disconnect_during_escalation_pays_for_the_small_answer(play: Playing) -> None:
    p = with_large(play("r0", **cascades(0.5)))
    await escalated(p)
    assert p.exchange is not None
    p.rig.clock.forward(1.0)
    p.exchange.client_left()
    large_prompt = p.exchange.admitted.features.prompt_tokens  # an estimate: its engine has not reported yet
    assert settled(p) == (7 + large_prompt, 2) and p.quiet()


async def test_disconnect_during_judgement_pays_for_the_small_answer(play: Playing) -> None:
    p = with_large(play("r0", **cascades(0.5, tokens=9)))
    exchange = p.ask()
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(sse.role(BOT_V1), counted("he", *SURE, completion=1))
    p.rig.clock.forward(1.0)
    exchange.client_left()
    assert settled(p) == (7, 1) and p.quiet()


async def test_counts_requested_by_the_gateway_are_removed(play: Playing) -> None:
    p = with_large(play("r0", **cascades(0.5)))
    p.ask(stream_options={"include_usage": True})
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(sse.role(BOT_V1), counted("he", *SURE), counted("llo", *SURE), counted("!", *SURE), END)
    engine.ends_stream()
    assert p.client.body.count(b'"usage"') == 1 and p.client.ended, "the last one is the caller's"


async def test_losing_hedge_is_not_charged_but_counted(play: Playing) -> None:
    p = play("r0", "r1", **hedged())
    exchange = p.ask()
    await p.connects()
    p.after(10.0)
    fast = await p.connects()
    fast.begins_stream()
    fast.streams(HELLO, sse.finish(BOT_V1), sse.usage(BOT_V1, 3, 2), sse.DONE)
    fast.ends_stream()
    assert p.client.ended and settled(p) == (3, 2)
    lost = exchange.admitted.features.prompt_tokens
    assert figure(p, "shoal_hedge_lost_tokens_total", pool=POOL) == lost > 0


# full engines that send Retry-After


async def test_retry_after_of_an_engine_is_respected(play: Playing) -> None:
    p = play("r0", limits=Limits())
    p.ask()
    (await p.connects()).answers(503, b"{}", extra="retry-after: 7\r\n")
    assert (p.client.status, p.client.error["code"]) == (503, "overloaded")
    assert 7 <= int(p.client.headers[b"retry-after"]) <= 9, "as it said, spread"
    p.ask()
    assert p.client.status == 503 and not p.dials and int(p.client.headers[b"retry-after"]) >= 7
    assert figure(p, "shoal_shed_total", reason="told_to_wait") == 2
    p.after(7.1)
    p.ask()
    assert p.client.status is None, "then it is asked again"


async def test_retry_after_of_one_replica_moves_requests_to_another_at_once(play: Playing) -> None:
    p = play("r0", "r1")
    p.ask()
    full = await p.connects()
    full.answers(429, b"{}", extra="retry-after: 7\r\n")
    for _ in range(3):
        assert (await p.connects()).replica_id != full.replica_id
        p.ask()


async def test_retry_after_of_an_engine_is_bounded(play: Playing) -> None:
    p = play("r0", limits=Limits())
    p.ask()
    (await p.connects()).answers(503, b"{}", extra="retry-after: 86400\r\n")
    assert int(p.client.headers[b"retry-after"]) <= 38


# memory kept for a request


async def test_running_stream_keeps_no_body_but_can_be_quarantined(play: Playing) -> None:
    p = with_large(play("r0", limits=Limits(), **cascades(0.5)))
    exchange = p.ask()
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(sse.role(BOT_V1), scored("he", *SURE), scored("llo", *SURE))
    trial = exchange.plan.cascade if exchange.plan is not None else None
    assert trial is not None and p.client.status == 200
    assert not any(each.upstream_body for each in (exchange.admitted, trial.plain, trial.asking, trial.larger))
    engine.dies()
    p.gateway.receive_heartbeat(heartbeat("r0", sequence=2))
    assert len(p.gateway.services.quarantine) == 1, "the prompt that it died of"


async def test_quarantine_recognises_a_judged_prompt(play: Playing) -> None:
    p = with_large(play("r0", "r1", "r2", limits=Limits(), **cascades(0.5)))
    p.ask()
    (await p.connects()).dies()
    (await p.connects()).dies()
    await p.settle()
    with pytest.raises(AssertionError, match="prompt_quarantined"):
        p.ask()


async def test_a_replica_that_dies_of_a_prompt_on_an_idle_connection_counts(play: Playing) -> None:
    p = play("r0", limits=Limits())
    p.ask(stream=False)
    engine = await p.connects()
    engine.answers(200, sse.whole(BOT_V1))
    p.ask(messages=[{"role": "user", "content": "a prompt that kills"}])
    await p.settle()
    assert len(engine.requests) == 2, "on the same connection"
    engine.dies()
    await p.refuses_connection()
    assert len(p.gateway.services.quarantine) == 1 and p.client.status == 502


async def test_connection_lost_after_a_while_is_not_redialled(play: Playing) -> None:
    p = play("r0", limits=Limits())
    p.ask(stream=False)
    engine = await p.connects()
    engine.answers(200, sse.whole(BOT_V1))
    p.ask()
    await p.settle()
    p.rig.clock.forward(3.0)
    engine.dies()
    await p.settle()
    assert p.client.status == 502 and not p.dials, "nobody dials the same replica again, unseen"


async def test_engine_count_is_charged_after_client_disconnect(play: Playing) -> None:
    p = play("r0")
    exchange = p.ask()
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO, sse.finish(BOT_V1), sse.usage(BOT_V1, 11, 9))
    exchange.client_left()
    assert settled(p) == (11, 9), "not the single event that we counted"


async def test_trace_keeps_failures_of_the_first_pool(play: Playing) -> None:
    p = with_large(play("r0", **falls_back()))
    p.ask(stream=False)
    await p.refuses_connection()
    (await p.connects()).answers(200, sse.whole(NAMED_LARGE))
    assert p.client.status == 200 and p.gateway.services.traces.recent[-1].row().error == "connect"


async def test_moving_to_another_pool_ends_both_attempts(play: Playing) -> None:
    steps = (FallbackEntry("unavailable", POOL, LARGE), FallbackEntry("unavailable", LARGE, THIRD))
    p = play("r0", **pools(routing=(routing(fallback=steps, hedge_after_s=0.5),)))
    with_large(with_large(p, "big0", "big1"), "huge0", pool=THIRD)
    goes(p)
    p.ask()
    slow = await p.connects()
    p.after(10.0)
    second = await p.connects()
    assert {slow.replica_id, second.replica_id} == {"big0", "big1"}
    slow.refuses(400, "context length exceeded")
    third = await p.connects()
    assert third.replica_id == "huge0" and second.dropped, "the other one is not asked any more either"
    assert p.gateway.services.router.load.in_flight == {"huge0": 1}
