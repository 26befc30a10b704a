"""Quotas: what a tenant has under way and used lately, on every path through the gateway."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from functions.api.ids import TenantId
from functions.api.snapshot import QuotaEntry, QuotaLimitsPart
from functions.decisions.quota.dimensions import GPU, OUTPUT
from functions.gateway.intake.routes import TOKENIZE
from functions.gateway.quota.accounts import TenantQuotas
from functions.gateway.request.answers import Usage
from tests.gateway import sse
from tests.gateway.client_rig import CHAT_BODY, STREAM_BODY, Connection, HttpAnswer, get, post
from tests.gateway.engine_rig import Play
from tests.gateway.hello import END, HELLO, Playing
from tests.gateway.lane_steps import answered
from tests.gateway.rig import ACME_KEY, BATCH_KEY, BOT_V1, GLOBEX_KEY, Clock, catalogue, key_entry, limits, quota

ACME = TenantId("acme")
RATE_HEADERS = ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests")


def rejections(play: Play, dimension: str) -> float:
    sample = play.gateway.services.metrics.registry.get_sample_value(
        "shoal_quota_rejections_total", {"dimension": dimension}
    )
    return sample or 0.0


def rates(answer: HttpAnswer) -> list[str | None]:
    return [answer.headers.get(name) for name in RATE_HEADERS]


async def new_connection(play: Play, lane: str) -> Connection:
    """Open a connection on one of the two lanes."""
    connection = Connection(play)
    if lane == "plain":
        connection >> get("/healthz")
        await play.settle()
        connection.transport.got.clear()
    assert connection.on_the_lane is (lane == "fast")
    return connection


both_lanes = pytest.mark.parametrize("lane", ["fast", "plain"])


@both_lanes
async def test_concurrent_requests_are_limited_by_the_tier(play: Playing, lane: str) -> None:
    p = play("r0", quotas=(quota(concurrent_requests=1),))
    first, second = await new_connection(p, lane), await new_connection(p, lane)
    first >> post(STREAM_BODY)
    engine = await p.connects()
    second >> post(CHAT_BODY, key=BATCH_KEY)  # another key of the same tenant
    await p.settle()
    answer = second.answer
    assert (answer.status, answer.code) == (429, "rate_limit_exceeded")
    assert int(answer.headers["retry-after"]) >= 1
    assert "enterprise" in answer.error["message"] and "1 concurrent requests" in answer.error["message"]
    assert rejections(p, "concurrent_requests") == 1
    assert p.gateway.services.quotas.in_flight(ACME) == 1
    engine.begins_stream()
    engine.streams(HELLO, END)
    engine.ends_stream()
    await p.settle()
    assert p.gateway.services.quotas.in_flight(ACME) == 0
    second >> post(CHAT_BODY)
    await p.settle()
    p.engine.answers(200, sse.whole(BOT_V1))
    await p.settle()
    assert second.statuses == [429, 200]


@both_lanes
async def test_requests_per_minute_are_limited_by_the_tier(play: Playing, lane: str) -> None:
    p = play("r0", quotas=(quota(requests_per_minute=2),))
    connection = await new_connection(p, lane)
    for _ in range(2):
        await answered(connection)
        await p.settle()
    connection >> post(CHAT_BODY)
    await p.settle()
    assert connection.statuses == [200, 200, 429]
    found = [rates(answer) for answer in connection.answers]
    assert found == [["2", "1", "30.0s"], ["2", "0", "1m0s"], ["2", "0", "1m0s"]]
    refused = connection.answers[-1]
    assert refused.code == "rate_limit_exceeded" and refused.error["type"] == "requests"
    assert refused.headers["retry-after"] == "30"
    assert rejections(p, "requests_per_minute") == 1
    p.rig.clock.forward(30.0)
    await answered(connection)
    await p.settle()
    assert connection.statuses[-1] == 200, "when it was told"


async def test_streams_and_errors_report_the_remaining_quota(play: Playing) -> None:
    p = play("r0", quotas=(quota(requests_per_minute=60, max_output_tokens=5),))
    connection = Connection(p)
    await answered(connection, stream=True)
    connection >> post(b"{}") >> post(sse.compact({**json.loads(CHAT_BODY), "max_tokens": 6}))
    assert [answer.status for answer in connection.answers] == [200, 400, 400]
    assert [rates(answer)[1] for answer in connection.answers] == ["59", "58", "57"]
    assert rejections(p, "max_output_tokens") == 1
    connection >> post(CHAT_BODY)
    await p.settle()
    p.engine.answers(500, b"{}")
    await p.settle()
    assert rates(connection.answers[-1])[1] == "56" and connection.statuses[-1] == 502


@pytest.mark.parametrize("quotas", [(), (quota(),), (quota("other", requests_per_minute=1),)])
async def test_tier_without_limits_reports_and_rejects_nothing(play: Playing, quotas: tuple[Any, ...]) -> None:
    p = play("r0", quotas=quotas)
    connection = Connection(p)
    for _ in range(20):
        await answered(connection)
    assert set(connection.statuses) == {200}
    assert not any(any(rates(answer)) for answer in connection.answers)


async def test_quota_is_separate_per_tenant(play: Playing) -> None:
    p = play("r0", quotas=(quota("enterprise", requests_per_minute=1), quota("free", requests_per_minute=1)))
    connection = Connection(p)
    await answered(connection)
    connection >> post(CHAT_BODY) >> post(sse.compact({**json.loads(CHAT_BODY), "model": "globex/bot"}), key=GLOBEX_KEY)
    await p.settle()
    assert connection.statuses == [200, 429], "the other tenant's is under way"


async def test_request_with_a_wrong_key_is_charged_to_no_tenant(play: Playing) -> None:
    p = play("r0", quotas=(quota(requests_per_minute=1),))
    connection = Connection(p)
    for _ in range(5):
        connection >> post(CHAT_BODY, key=ACME_KEY[:-1])
    assert set(connection.statuses) == {401} and len(p.gateway.services.quotas) == 0


# every end counts once


def finishes(p: Play) -> None:
    p.engine.begins_stream()
    p.engine.streams(HELLO, END)
    p.engine.ends_stream()


def fails(p: Play) -> None:
    p.engine.refuses(400, "no")


def breaks_after_its_first_event(p: Play) -> None:
    p.engine.begins_stream()
    p.engine.streams(HELLO)
    p.engine.dies()


def leaves(p: Play) -> None:
    assert p.exchange is not None
    p.after(0.5)
    p.exchange.client_left()
    p.exchange.client_left()


def is_too_late(p: Play) -> None:
    p.after(601.0)


def is_cut_short(p: Play) -> None:
    p.gateway.cut_short()


@pytest.mark.parametrize("end", [finishes, fails, breaks_after_its_first_event, leaves, is_too_late, is_cut_short])
async def test_every_end_frees_its_concurrency_slot_once(play: Playing, end: Callable[[Play], None]) -> None:
    p = play("r0", quotas=(quota(concurrent_requests=1),))
    p.ask(stream=True)
    await p.connects()
    assert p.gateway.services.quotas.in_flight(ACME) == 1
    end(p)
    await p.settle()
    assert p.gateway.services.quotas.in_flight(ACME) == 0 and p.quiet()
    p.ask(stream=True)  # there is room again


async def test_request_refused_by_its_body_holds_no_slot(play: Playing) -> None:
    p = play("r0", quotas=(quota(concurrent_requests=1),))
    connection = Connection(p)
    for body in (b"", b"[]", b"{}", b'{"model":"acme/none","messages":[{"role":"user","content":"x"}]}'):
        connection >> post(body)
    assert connection.statuses == [400, 400, 400, 404]
    await answered(connection)
    assert connection.statuses[-1] == 200


async def test_internal_error_in_the_intake_holds_no_slot(play: Playing, monkeypatch: pytest.MonkeyPatch) -> None:
    p = play("r0", quotas=(quota(concurrent_requests=1),))
    connection = Connection(p)
    with monkeypatch.context() as broken:
        broken.setattr(p.gateway.services.intake, "admit", None)
        connection >> post(CHAT_BODY)
    assert connection.answer.code == "internal_error"
    await answered(connection)
    assert connection.statuses == [500, 200]


# changes of the snapshot


async def test_new_limit_applies_at_once_and_counts_requests_under_way(play: Playing) -> None:
    p = play("r0")
    p.ask()
    p.ask()
    p.gateway.swap(catalogue(epoch=2, quotas=(quota(concurrent_requests=2, requests_per_minute=60),)))
    connection = Connection(p) >> post(CHAT_BODY)
    assert connection.answer.status == 429
    p.gateway.swap(catalogue(epoch=3, quotas=(quota(concurrent_requests=3),)))
    connection >> post(CHAT_BODY)
    await p.settle()
    assert connection.statuses == [429], "it is under way"
    assert p.gateway.services.quotas.in_flight(ACME) == 3


async def test_new_snapshot_does_not_refill_a_quota(play: Playing) -> None:
    quotas = (quota(requests_per_minute=1),)
    p = play("r0", quotas=quotas)
    connection = Connection(p)
    await answered(connection)
    p.gateway.swap(catalogue(epoch=2, quotas=quotas))
    connection >> post(CHAT_BODY)
    assert connection.statuses == [200, 429]


async def test_removed_tenant_is_forgotten_after_its_last_request(play: Playing) -> None:
    p = play("r0", quotas=(quota(requests_per_minute=60),), limits=limits(answer_s=3600.0, first_byte_s=3600.0))
    exchange = p.ask()
    p.gateway.swap(catalogue(epoch=2, tenants=(), keys=()))
    p.rig.clock.forward(120.0)
    p.gateway.sweep()
    assert len(p.gateway.services.quotas) == 1, "it still has one under way"
    exchange.client_left()
    p.gateway.sweep()
    assert len(p.gateway.services.quotas) == 0 and p.quiet()


def test_sweep_covers_all_accounts_in_several_rounds() -> None:
    clock, quotas = Clock(), TenantQuotas()
    busy = quotas.enter(TenantId("busy"), None, clock())
    for number in range(1000):
        quotas.enter(TenantId(f"t{number}"), None, clock()).leave(clock())
    quotas.forget_idle(clock() + 60.0)
    assert 700 < len(quotas) < 800
    for _ in range(4):
        quotas.forget_idle(clock() + 60.0)
    assert len(quotas) == 1
    busy.leave(clock())


# tokens

TOKEN_HEADERS = tuple(f"x-ratelimit-{what}-tokens" for what in ("limit", "remaining", "reset"))


def asking(max_tokens: int, stream: bool = False, words: int = 1) -> bytes:
    body = json.loads(STREAM_BODY if stream else CHAT_BODY) | {"max_tokens": max_tokens}
    body["messages"][0]["content"] = "word " * words
    return sse.compact(body)


def output_used(play: Play) -> float:
    """Return the tokens currently charged to the tenant's account."""
    bucket = play.gateway.services.quotas.accounts[ACME].buckets[OUTPUT]
    assert bucket is not None
    return bucket.level / bucket.unit


def settled(play: Play, kind: str, by: str) -> float | None:
    labels = {"kind": kind, "by": by}
    return play.gateway.services.metrics.registry.get_sample_value("shoal_quota_settled_tokens_total", labels)


@both_lanes
async def test_output_tokens_are_limited_by_the_tier(play: Playing, lane: str) -> None:
    p = play("r0", quotas=(quota(output_tokens_per_minute=6000),))
    connection = await new_connection(p, lane)
    connection >> post(asking(100))
    await p.settle()
    engine = await p.connects()
    engine.answers(200, sse.whole(BOT_V1, completion=100))
    await p.settle()
    connection >> post(asking(100))
    await p.settle()
    assert connection.statuses == [200, 429]
    refused = connection.answers[-1]
    assert (refused.code, refused.error["type"]) == ("rate_limit_exceeded", "tokens")
    assert "6000 output tokens a minute" in refused.error["message"] and "Try again in 1 s" in refused.error["message"]
    assert refused.headers["retry-after"] == "1" and 800 <= int(refused.headers["retry-after-ms"]) <= 880
    found = [[answer.headers.get(name) for name in TOKEN_HEADERS] for answer in connection.answers]
    assert found == [["6000", "20", "1.0s"]] * 2
    assert rejections(p, "output_tokens_per_minute") == 1
    p.rig.clock.forward(0.8)
    connection >> post(asking(100))
    await p.settle()
    assert connection.statuses == [200, 429], "it is under way"


async def test_request_larger_than_a_limit_is_refused_without_retry_after(play: Playing) -> None:
    p = play("r0", quotas=(quota(input_tokens_per_minute=100, requests_per_minute=60),))
    connection = Connection(p) >> post(asking(5, words=500))
    answer = connection.answer
    assert (answer.status, answer.code) == (400, "request_over_quota") and "retry-after" not in answer.headers
    assert "100 input tokens a minute" in answer.error["message"]
    await answered(connection)
    assert rates(connection.answers[-1])[1] == "59", "it cost nothing"


async def test_tokenize_uses_no_tokens_of_a_limit(play: Playing) -> None:
    p = play("r0", quotas=(quota(input_tokens_per_minute=100),))
    body = {"model": "acme/bot", "prompt": "word " * 500}
    connection = Connection(p) >> post(sse.compact(body), path=TOKENIZE.path)
    await p.settle()
    engine = await p.connects()
    engine.answers(200, b'{"count":500,"max_model_len":2048,"tokens":[]}')
    await p.settle()
    assert connection.statuses == [200]
    assert settled(p, "input", "count") == 0


async def test_max_tokens_over_a_limit_is_refused_but_an_estimate_is_not(
    play: Playing,
) -> None:
    p = play("r0", quotas=(quota(output_tokens_per_minute=60),))
    connection = Connection(p) >> post(asking(61))
    assert (connection.answer.status, connection.answer.code) == (400, "request_over_quota")
    assert "60 output tokens a minute" in connection.answer.error["message"]
    await answered(connection)
    assert connection.statuses == [400, 200], "it said nothing of its length, and is short"


async def test_first_streams_of_a_tenant_start_concurrently(play: Playing) -> None:
    p = play("r0", quotas=(quota(output_tokens_per_minute=500_000, token_burst_seconds=10),))
    opened = [Connection(p) >> post(asking(2000, stream=True)) for _ in range(200)]
    await p.settle()
    assert not any(connection.statuses for connection in opened), "all are under way"
    assert p.gateway.services.quotas.in_flight(ACME) == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_disconnect_pays_for_the_prompt_and_engine_failure_does_not(play: Playing, stream: bool) -> None:
    p = play("r0", quotas=(quota(input_tokens_per_minute=60_000),))
    exchange = p.ask(stream=stream)
    engine = await p.connects()
    leaves(p)
    prompt_tokens = exchange.admitted.features.prompt_tokens
    assert settled(p, "input", "count") == prompt_tokens > 0
    exchange = p.ask(stream=stream)
    engine = await p.connects()
    p.after(0.5)
    engine.dies()
    await p.settle()
    exchange.client_left()
    assert settled(p, "input", "count") == prompt_tokens, "the platform's fault"


@pytest.mark.parametrize("stream", [True, False])
async def test_callers_deadline_pays_for_the_prompt_and_platform_timeout_does_not(play: Playing, stream: bool) -> None:
    p = play("r0", quotas=(quota(input_tokens_per_minute=60_000),), limits=limits(answer_s=5.0, first_byte_s=60.0))
    exchange = p.ask(stream=stream, header_x_shoal_deadline_ms="300")
    await p.connects()
    p.after(1.0)
    prompt_tokens = exchange.admitted.features.prompt_tokens
    assert settled(p, "input", "count") == prompt_tokens > 0
    p.ask(stream=stream)
    await p.connects()
    p.after(10.0)
    assert p.quiet()
    assert settled(p, "input", "count") == prompt_tokens


async def test_stream_over_its_reservation_continues_and_becomes_debt(play: Playing) -> None:
    p = play("r0", quotas=(quota(output_tokens_per_minute=6000),))
    connection = Connection(p) >> post(asking(100, stream=True))
    engine = await p.connects()
    engine.begins_stream()
    assert output_used(p) == 100
    engine.streams(HELLO)
    for _ in range(120):
        engine.streams(sse.token(BOT_V1, "more"))
    await p.settle()
    assert output_used(p) == 356, "256 more, although the burst is 120"
    engine.streams(sse.finish(BOT_V1) + sse.usage(BOT_V1, prompt=3, completion=121) + sse.DONE)
    engine.ends_stream()
    await p.settle()
    assert output_used(p) == 121 and connection.answer.status == 200
    connection >> post(asking(1))
    assert connection.statuses[-1] == 429, "the debt is waited off"


@pytest.mark.parametrize(
    ("end", "input_tokens", "output_tokens", "by"),
    [
        (finishes, 3, 2, "engine"),
        (fails, 0, 0, "count"),
        (breaks_after_its_first_event, None, 1, "count"),
        (leaves, None, 0, "count"),
        (is_too_late, 0, 0, "count"),
        (is_cut_short, 0, 0, "count"),
    ],
)
async def test_every_end_is_charged_once_for_what_was_delivered(
    play: Playing, end: Callable[[Play], None], input_tokens: int | None, output_tokens: int, by: str
) -> None:
    p = play("r0", quotas=(quota(input_tokens_per_minute=60_000, output_tokens_per_minute=60_000),))
    exchange = p.ask(stream=True)
    await p.connects()
    end(p)
    await p.settle()
    estimated = exchange.admitted.features.prompt_tokens
    assert settled(p, "input", by) == (estimated if input_tokens is None else input_tokens)
    assert settled(p, "output", by) == output_tokens
    assert (
        p.gateway.services.quotas.settled_by_engine.requests + p.gateway.services.quotas.settled_by_count.requests == 1
    )


async def test_cached_prompt_tokens_are_weighted_by_the_tier(play: Playing) -> None:
    for weight_ratio, charged in ((0.0, 40), (0.25, 55), (1.0, 100)):
        tier = QuotaEntry(
            "enterprise", limits=QuotaLimitsPart(input_tokens_per_minute=60_000), cached_token_weight_ratio=weight_ratio
        )
        p = play("r0", quotas=(tier,))
        entry = p.gateway.services.quotas.enter(ACME, tier, 0.0)
        entry.settle(Usage(100, 1, 60), 1, 0.0, 0.0, 0.0)
        entry.leave(0.0)
        assert settled(p, "input", "engine") == charged


async def test_accelerator_and_cache_seconds_are_in_the_metrics(play: Playing) -> None:
    p = play("r0", quotas=(quota(gpu_seconds_per_hour=3600),))
    entry = p.gateway.services.quotas.enter(ACME, quota(gpu_seconds_per_hour=3600), 0.0)
    entry.settle(Usage(100, 1), 1, 50.5, 0.25, 0.0)
    entry.leave(0.0)
    for name, charged in (("kv_token_seconds", 50.5), ("gpu_seconds", 0.25)):
        registry = p.gateway.services.metrics.registry
        assert registry.get_sample_value(f"shoal_quota_settled_{name}_total", {"by": "engine"}) == charged
    bucket = p.gateway.services.quotas.accounts[ACME].buckets[GPU]
    assert bucket is not None and bucket.level == bucket.unit // 4


# keys


async def test_key_limits_apply_within_tenant_limits(play: Playing) -> None:
    limited = structs.replace(key_entry(ACME_KEY, "acme"), limits=QuotaLimitsPart(requests_per_minute=2))
    keys = (limited, key_entry(BATCH_KEY, "acme", max_class="batch"))
    p = play("r0", quotas=(quota(requests_per_minute=3),), keys=keys)
    connection = Connection(p)
    await answered(connection)
    await answered(connection)
    connection >> post(CHAT_BODY)
    assert connection.statuses == [200, 200, 429]
    assert [rates(answer)[:2] for answer in connection.answers] == [["2", "1"], ["2", "0"], ["2", "0"]], (
        "what is tighter"
    )
    connection >> post(CHAT_BODY, key=BATCH_KEY)
    await p.settle()
    p.engine.answers(200, sse.whole(BOT_V1))
    await p.settle()
    connection >> post(CHAT_BODY, key=BATCH_KEY)
    assert connection.statuses == [200, 200, 429, 200, 429], "what the key was refused cost its tenant nothing"


async def test_rejection_names_the_longest_wait_and_its_limit(play: Playing) -> None:
    limited = structs.replace(key_entry(ACME_KEY, "acme"), limits=QuotaLimitsPart(output_tokens_per_minute=600))
    p = play("r0", quotas=(quota(output_tokens_per_minute=6000),), keys=(limited,))
    connection = Connection(p) >> post(asking(120))
    await p.settle()
    (await p.connects()).answers(200, sse.whole(BOT_V1, completion=120))
    await p.settle()
    connection >> post(asking(10))
    refused = connection.answers[-1]
    assert refused.status == 429 and refused.headers["retry-after"] in ("12", "13"), "not the tenant's 0.1 s"
    assert "This key allows 600 output tokens a minute" in refused.error["message"]


async def test_key_caps_apply(play: Playing) -> None:
    limited = structs.replace(key_entry(ACME_KEY, "acme"), limits=QuotaLimitsPart(max_output_tokens=5))
    p = play("r0", quotas=(quota(max_output_tokens=50),), keys=(limited, key_entry(BATCH_KEY, "acme")))
    connection = Connection(p) >> post(asking(6))
    assert (connection.answer.status, connection.answer.code) == (400, "output_length_exceeded")
    connection >> post(asking(6), key=BATCH_KEY)
    await p.settle()
    assert connection.statuses == [400], "the other key's is under way"
