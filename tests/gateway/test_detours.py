"""Requests that leave the pool that they asked for: it cannot, it is near its limit, or its model was not sure."""

from typing import Any

import orjson
import pytest

from functions.api.ids import EngineName, ModelId, PoolName, TenantId
from functions.api.snapshot import (
    AdmissionEntry,
    BandEntry,
    CascadeEntry,
    ClassifierEntry,
    FallbackEntry,
    ModelEntry,
    PoolEntry,
    RuleEntry,
    TenantEntry,
)
from functions.gateway.cascade import without_figures
from functions.gateway.limits import Limits
from functions.gateway.routes import COMPLETIONS
from tests.gateway import sse
from tests.gateway.engine_rig import Play
from tests.gateway.hello import END, HELLO, Playing
from tests.gateway.world import BOT_V1, DIGEST_V1, POOL, heartbeat, in_rollout, routing, snapshot, version

LARGE, THIRD = PoolName("llama-8b"), PoolName("llama-70b")
NAMED_LARGE = EngineName(LARGE)


def pools(*, acme_may: tuple[str, ...] = (LARGE, THIRD), window_tokens: int = 2048, **sections: Any) -> dict[str, Any]:
    """The world's sections with two more pools, whose base models acme may call."""
    small = snapshot()
    bases = tuple(
        ModelEntry(ModelId(name), name, "base", (version("v1", DIGEST_V1, name),), {"stable": "v1"})
        for name in (LARGE, THIRD)
    )
    return {
        "tenants": (
            TenantEntry(TenantId("acme"), "enterprise", ("acme/*", POOL, *acme_may)),
            *(tenant for tenant in small.tenants if tenant.name != "acme"),
        ),
        "models": tuple(sorted((*small.models, *bases), key=lambda model: model.id)),
        "pools": tuple(
            sorted(
                (*small.pools, *(PoolEntry(name, context_window_tokens=window_tokens) for name in (LARGE, THIRD))),
                key=lambda pool: pool.name,
            )
        ),
        **sections,
    }


def falls_back(*steps: FallbackEntry, **sections: Any) -> dict[str, Any]:
    chosen = steps or (FallbackEntry("unavailable", POOL, LARGE), FallbackEntry("saturated", POOL, LARGE))
    return pools(routing=(routing(fallback=chosen),), **sections)


def with_large(p: Play, *names: str, pool: PoolName = LARGE) -> Play:
    for name in names or ("big0",):
        p.gateway.heard(heartbeat(name, pool=pool, adapters=()))
    return p


def goes(p: Play, replica: str = "r0") -> None:
    p.gateway.heard(heartbeat(replica, sequence=2, phase="dead"))


def figure(p: Play, name: str, **labels: str) -> float:
    p.gateway.metrics.scrape(p.gateway)
    return p.gateway.metrics.registry.get_sample_value(name, labels) or 0.0


# fallback


async def test_another_pool_answers_when_the_own_one_is_gone(play: Playing) -> None:
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
    assert p.gateway.traces.recent[-1].row().degraded_from == "acme/bot@v1"
    assert p.quiet()


async def test_engines_that_are_all_full_are_a_saturated_pool(play: Playing) -> None:
    p = with_large(play("r0", **falls_back()))
    p.ask()
    (await p.connects()).refuses(503)
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO.replace(BOT_V1.encode(), NAMED_LARGE.encode()))
    assert p.client.headers[b"x-shoal-degraded"] == b"from=acme/bot@v1;reason=saturated"
    assert b'"model":"acme/bot"' in p.client.body


async def test_a_chain_ends_with_what_the_first_pool_said(play: Playing) -> None:
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
async def test_a_pool_that_will_not_do_is_not_used(play: Playing, sections: Any, fields: Any) -> None:
    p = with_large(play("r0", **falls_back(**sections)))
    goes(p)
    p.ask(**fields)
    assert p.client.status == 503 and not p.dials


async def test_a_tier_that_is_not_named_stays(play: Playing) -> None:
    p = with_large(play("r0", **falls_back(FallbackEntry("unavailable", POOL, LARGE, ("free",)))))
    goes(p)
    p.ask()
    assert p.client.status == 503 and not p.dials


async def test_a_prompt_that_breaks_engines_does_not_walk_on(play: Playing) -> None:
    p = with_large(play("r0", "r1", **falls_back()))
    p.ask()
    (await p.connects()).refuses(500)
    (await p.connects()).refuses(500)
    await p.settle()
    assert p.client.status == 502 and not p.dials


async def test_the_other_models_refusal_is_not_the_callers_mistake(play: Playing) -> None:
    p = with_large(play("r0", **falls_back()))
    goes(p)
    p.ask()
    (await p.connects()).refuses(400, "context length exceeded")
    assert (p.client.status, p.client.error["code"]) == (503, "no_capacity")


# shifting


def under_pressure(p: Play, waiting: int, **changes: Any) -> None:
    sequence = 10 + waiting
    p.gateway.heard(heartbeat("r0", sequence=sequence, running=0, waiting=waiting, service_ms=100.0, **changes))


SLO = AdmissionEntry("default", ("*",), (BandEntry("interactive", 1.0, 1000),))


async def test_a_pool_near_its_limit_sends_on_what_is_not_cached(play: Playing) -> None:
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


async def test_what_was_shifted_comes_home_rather_than_fail(play: Playing) -> None:
    p = with_large(play("r0", **falls_back(admission=(SLO,))))
    under_pressure(p, 30)
    p.ask(stream=False)
    await p.refuses_connection()
    engine = await p.connects()
    assert engine.replica_id == "r0"
    engine.answers(200, sse.whole(BOT_V1))
    assert p.client.status == 200 and b"x-shoal-degraded" not in p.client.headers


# cascades


def cascades(threshold_nats: float, tokens: int = 2) -> dict[str, Any]:
    step = CascadeEntry(POOL, LARGE, threshold_nats=threshold_nats, sample_tokens=tokens)
    return pools(routing=(routing(cascade=(step,)),))


def scored(text: str, *logprobs: float) -> bytes:
    entry = {
        "token": text,
        "logprob": logprobs[0],
        "top_logprobs": [{"token": "x", "logprob": one} for one in logprobs],
    }
    choice = {"index": 0, "delta": {"content": text}, "logprobs": {"content": [entry]}, "finish_reason": None}
    return sse.event({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": BOT_V1, "choices": [choice]})


SURE, UNSURE = (-0.001,), (-1.1, -1.2, -1.3)


async def test_a_sure_small_answer_is_passed_on_without_its_figures(play: Playing) -> None:
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
    assert p.gateway.traces.recent[-1].row().route_score["cascade"]["verdict"] == "kept"


async def test_an_unsure_small_answer_is_dropped_and_the_larger_model_asked(play: Playing) -> None:
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


async def test_without_a_larger_model_to_ask_the_small_answer_stands(play: Playing) -> None:
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


async def test_who_asks_for_figures_gets_the_model_that_was_asked(play: Playing) -> None:
    p = with_large(play("r0", **cascades(0.0)))
    p.ask(stream=False, logprobs=True, top_logprobs=2)
    engine = await p.connects()
    assert engine.requests[0]["top_logprobs"] == 2
    engine.answers(200, sse.whole(BOT_V1))
    assert (
        p.client.status == 200
        and figure(p, "shoal_cascade_total", **{"from": POOL, "to": LARGE, "verdict": "kept"}) == 0
    )


async def test_a_small_answer_that_breaks_off_while_it_is_judged_is_tried_again(play: Playing) -> None:
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


def test_events_without_figures_stay_byte_for_byte() -> None:
    assert without_figures(HELLO + END) == HELLO + END


# classifiers


def auto(*rules: RuleEntry) -> dict[str, Any]:
    return pools(routing=(routing(classifier=ClassifierEntry("auto", POOL, rules)),))


async def test_a_request_for_the_virtual_id_goes_where_it_fits(play: Playing) -> None:
    p = with_large(play("r0", **auto(RuleEntry(LARGE, tools=True))))
    p.ask("auto", stream=False)
    engine = await p.connects()
    assert (engine.replica_id, engine.requests[0]["model"]) == ("r0", POOL)
    engine.answers(200, sse.whole(POOL))
    assert orjson.loads(p.client.body)["model"] == "auto" and p.client.headers[b"x-shoal-model"] == b"smollm2-135m@v1"
    p.ask("auto", stream=False, tools=[{"type": "function", "function": {"name": "f"}}])
    assert (await p.connects()).replica_id == "big0"


async def test_a_rule_opens_nothing_that_the_tenant_may_not_call(play: Playing) -> None:
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
    with pytest.raises(AssertionError, match="prompt_quarantined"):
        p.ask()
    assert p.client.status == 400 and figure(p, "shoal_prompts_quarantined_total") == 1
    p.ask(messages=[{"role": "user", "content": "something else"}])
    assert (await p.connects()).requests, "other prompts go on"
    p.world.clock.forward(601.0)
    p.gateway.heard(heartbeat("r0", sequence=9))
    p.ask()
    assert p.client.status is None, "after ten minutes it may try again"


async def test_a_prompt_that_is_answered_is_not_suspected(play: Playing) -> None:
    p = play("r0", "r1", "r2", limits=Limits())
    for _ in range(3):
        p.ask(stream=False)
        (await p.connects()).dies()
        (await p.connects()).answers(200, sse.whole(BOT_V1), extra="connection: close\r\n")
        assert p.client.status == 200
        p.after(60.0)
        for name in ("r0", "r1", "r2"):
            p.gateway.heard(heartbeat(name, sequence=int(p.world.clock())))


# second attempts


def hedged(**changes: Any) -> dict[str, Any]:
    return {"routing": (routing(hedge_after_s=0.5, **changes),)}


async def test_a_late_first_token_is_asked_for_a_second_time(play: Playing) -> None:
    p = play("r0", "r1", **hedged())
    exchange = p.ask()
    slow = await p.connects()
    p.after(0.4)
    await p.settle()
    assert not p.dials, "it is not late yet"
    p.after(60.0 - 0.5)
    fast = await p.connects()
    assert fast.replica_id != slow.replica_id and p.gateway.in_flight == {"r0": 1, "r1": 1}
    fast.begins_stream()
    fast.streams(HELLO)
    assert slow.dropped, "the loser is aborted at once"
    fast.streams(END)
    fast.ends_stream()
    assert p.client.ended and p.client.headers[b"x-shoal-replica"] == fast.replica_id.encode()
    assert p.quiet() and p.requests(200) == 1 and exchange.attempts == 2
    assert figure(p, "shoal_hedges_total", outcome="won") == 1


async def test_the_first_one_may_still_win(play: Playing) -> None:
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
async def test_one_of_two_that_fails_leaves_it_to_the_other(play: Playing, number: int) -> None:
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
    [(hedged(), {"header_x_shoal_class": "batch"}), (hedged(retry_budget_ratio=0.0), {}), ({}, {})],
    ids=["not urgent", "no budget", "not asked for"],
)
async def test_who_is_not_asked_for_twice(play: Playing, policy: Any, headers: Any) -> None:
    p = play("r0", "r1", **policy)
    p.ask(**headers)
    await p.connects()
    p.after(10.0)
    await p.settle()
    assert not p.dials


async def test_a_client_that_leaves_ends_both(play: Playing) -> None:
    p = play("r0", "r1", **hedged())
    exchange = p.ask()
    first = await p.connects()
    p.after(10.0)
    second = await p.connects()
    exchange.client_left()
    assert first.dropped and second.dropped and p.quiet()


async def test_an_engine_that_reports_an_error_with_its_last_unsure_token_is_left_all_the_same(play: Playing) -> None:
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


async def test_a_small_answer_that_is_no_json_is_tried_again_rather_than_passed_on(play: Playing) -> None:
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
async def test_what_cannot_be_judged_is_not_tried(play: Playing, fields: dict[str, Any]) -> None:
    p = with_large(play("r0", **cascades(0.0)))
    p.ask(**fields)
    request = (await p.connects()).requests[0]
    assert request.get("logprobs") == fields.get("logprobs") and "top_logprobs" not in request


async def test_a_rollouts_old_version_is_judged_as_the_new_one_would_have_been(play: Playing) -> None:
    sections = cascades(0.5) | {"models": merged_models(in_rollout(99))}
    p = with_large(play("r0", **sections))
    p.gateway.heard(heartbeat("r0", sequence=2, adapters=(BOT_V1,)))
    p.ask()
    engine = await p.connects()
    assert engine.requests[0]["model"] == BOT_V1 and engine.requests[0]["logprobs"] is True
    engine.begins_stream()
    engine.streams(sse.role(BOT_V1), scored("he", *SURE), scored("llo", *SURE), END)
    engine.ends_stream()
    assert p.client.ended and b"top_logprobs" not in p.client.body and p.quiet()


def merged_models(sections: dict[str, Any]) -> Any:
    models = {model.id: model for model in (*pools()["models"], *sections["models"])}
    return tuple(models[name] for name in sorted(models))


# who pays for what


def counted(content: str, *logprobs: float, prompt: int = 7, completion: int = 0) -> bytes:
    """With the engine's count so far in it."""
    count = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return sse.event(orjson.loads(scored(content, *logprobs)[len(b"data: ") :]) | {"usage": count})


def settled(p: Play) -> tuple[int, int]:
    """Tokens of prompts and of answers that tenants were charged."""
    quotas = p.gateway.quotas
    both = (quotas.settled_by_engine, quotas.settled_by_count)
    return sum(each.input_tokens for each in both), sum(each.output_tokens for each in both)


async def escalated(p: Play) -> Any:
    p.ask()
    small = await p.connects()
    assert small.requests[0]["stream_options"]["continuous_usage_stats"] is True
    small.begins_stream()
    small.streams(sse.role(BOT_V1), counted("er", *UNSURE, completion=1), counted("m", *UNSURE, completion=2))
    return await p.connects()


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
    assert p.gateway.traces.recent[-1].row().route_score["cascade"]["completion_tokens"] == 2


async def test_a_small_answer_that_is_asked_for_again_is_paid_for_once(play: Playing) -> None:
    p = with_large(play("r0", **cascades(0.5)))
    large = await escalated(p)
    large.answers(503, b"{}")
    again = await p.connects()
    again.begins_stream()
    again.streams(HELLO, sse.finish(BOT_V1), sse.usage(BOT_V1, 7, 2), sse.DONE)
    again.ends_stream()
    assert p.client.ended and settled(p) == (7, 2)


async def test_who_leaves_before_the_larger_model_answers_has_had_the_small_one_asked(play: Playing) -> None:
    p = with_large(play("r0", **cascades(0.5)))
    await escalated(p)
    assert p.exchange is not None
    p.world.clock.forward(1.0)
    p.exchange.client_left()
    large_prompt = p.exchange.admitted.features.prompt_tokens  # as it was estimated: its engine has not told
    assert settled(p) == (7 + large_prompt, 2) and p.quiet()


async def test_who_leaves_a_small_answer_while_it_is_judged_pays_for_it(play: Playing) -> None:
    p = with_large(play("r0", **cascades(0.5, tokens=9)))
    exchange = p.ask()
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(sse.role(BOT_V1), counted("he", *SURE, completion=1))
    p.world.clock.forward(1.0)
    exchange.client_left()
    assert settled(p) == (7, 1) and p.quiet()


async def test_counts_that_only_we_asked_for_are_taken_out_again(play: Playing) -> None:
    p = with_large(play("r0", **cascades(0.5)))
    p.ask(stream_options={"include_usage": True})
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(sse.role(BOT_V1), counted("he", *SURE), counted("llo", *SURE), counted("!", *SURE), END)
    engine.ends_stream()
    assert p.client.body.count(b'"usage"') == 1 and p.client.ended, "the last one is the caller's"


async def test_the_loser_of_two_attempts_is_nobodys_charge_but_is_counted(play: Playing) -> None:
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


# engines that are full and say for how long


async def test_an_engine_that_asks_to_be_left_alone_is(play: Playing) -> None:
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


async def test_another_replica_is_asked_at_once(play: Playing) -> None:
    p = play("r0", "r1")
    p.ask()
    full = await p.connects()
    full.answers(429, b"{}", extra="retry-after: 7\r\n")
    for _ in range(3):
        assert (await p.connects()).replica_id != full.replica_id
        p.ask()


async def test_what_it_says_is_bounded(play: Playing) -> None:
    p = play("r0", limits=Limits())
    p.ask()
    (await p.connects()).answers(503, b"{}", extra="retry-after: 86400\r\n")
    assert int(p.client.headers[b"retry-after"]) <= 38


# what stays of a request


async def test_a_stream_that_runs_keeps_no_body_and_is_known_all_the_same(play: Playing) -> None:
    p = with_large(play("r0", limits=Limits(), **cascades(0.5)))
    exchange = p.ask()
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(sse.role(BOT_V1), scored("he", *SURE), scored("llo", *SURE))
    trial = exchange.detour.trial if exchange.detour is not None else None
    assert trial is not None and p.client.status == 200
    assert not any(each.upstream_body for each in (exchange.admitted, trial.plain, trial.asking, trial.larger))
    engine.dies()
    p.gateway.heard(heartbeat("r0", sequence=2))
    assert len(p.gateway.quarantine) == 1, "the prompt that it died of"


async def test_a_prompt_is_the_same_prompt_under_judgement(play: Playing) -> None:
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
    assert len(p.gateway.quarantine) == 1 and p.client.status == 502


async def test_a_connection_that_breaks_after_a_while_was_not_idle(play: Playing) -> None:
    p = play("r0", limits=Limits())
    p.ask(stream=False)
    engine = await p.connects()
    engine.answers(200, sse.whole(BOT_V1))
    p.ask()
    await p.settle()
    p.world.clock.forward(3.0)
    engine.dies()
    await p.settle()
    assert p.client.status == 502 and not p.dials, "nobody dials the same replica again, unseen"


async def test_what_an_engine_had_counted_is_charged_though_the_client_left(play: Playing) -> None:
    p = play("r0")
    exchange = p.ask()
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO, sse.finish(BOT_V1), sse.usage(BOT_V1, 11, 9))
    exchange.client_left()
    assert settled(p) == (11, 9), "not the single event that we counted"


async def test_failures_of_the_pool_that_was_left_stay_in_the_trace(play: Playing) -> None:
    p = with_large(play("r0", **falls_back()))
    p.ask(stream=False)
    await p.refuses_connection()
    (await p.connects()).answers(200, sse.whole(NAMED_LARGE))
    assert p.client.status == 200 and p.gateway.traces.recent[-1].row().error == "connect"


async def test_of_two_attempts_neither_follows_to_another_pool(play: Playing) -> None:
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
    assert p.gateway.in_flight == {"huge0": 1}
