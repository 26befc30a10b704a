"""Sums of usage: every end counts once, for the model that answered; the platform bears engine work without an
answer."""

from typing import Any

import pytest

from functions.api.snapshot import PoolEntry
from functions.fleet.usage_report import UsageRow
from functions.gateway.intake.routes import TOKENIZE
from functions.gateway.usage.sums import UsageSums
from tests.gateway import sse
from tests.gateway.client_rig import Connection, post
from tests.gateway.detours import LARGE, NAMED_LARGE, cascades, escalated, hedged, with_large
from tests.gateway.engine_rig import Play
from tests.gateway.hello import END, HELLO, Playing, finishes
from tests.gateway.rig import BOT_V1, NOW_UNIX_S, POOL

HOUR = int(NOW_UNIX_S) // 3600
FOUR = (PoolEntry(POOL, 2048, accelerators_per_replica=4, price_per_accelerator_hour=9.0),)


def rows(p: Play) -> dict[str, UsageRow]:
    """Return the usage rows by pool."""
    return {row.pool: row for row in p.gateway.services.usage.pop_rows()}


def only(p: Play) -> UsageRow:
    (row,) = rows(p).values()
    return row


def tokens(row: UsageRow) -> tuple[int, int, int]:
    return row.prompt_tokens, row.cached_tokens, row.completion_tokens


async def test_row_has_tenant_model_and_hour(play: Playing) -> None:
    p = play("r0")
    for _ in range(3):
        p.ask()
        finishes(await p.connects())
        await p.settle()
        p.gateway.services.upstreams.close()
    row = only(p)
    assert (row.hour, row.tenant, row.model, row.version, row.pool) == (HOUR, "acme", "acme/bot", "v1", POOL)
    assert (row.service_class, row.requests, row.failed, row.left) == ("interactive", 3, 0, 0)
    assert tokens(row) == (9, 0, 6) and row.lost_attempts == 0
    assert p.gateway.services.usage.pop_rows() == [], "and is taken once"


async def test_all_accelerators_of_a_replica_are_charged_at_their_price(play: Playing) -> None:
    """Quotas, traces and bills used to charge only one accelerator of four."""
    spent = []
    for pools in ((PoolEntry(POOL, 2048),), FOUR):
        p = play("r0", pools=pools)
        p.ask()
        engine = await p.connects()
        p.rig.clock.forward(0.1)
        engine.begins_stream()
        engine.streams(HELLO)
        p.rig.clock.forward(2.0)
        engine.streams(END)
        engine.ends_stream()
        settled, row = p.gateway.services.quotas.settled_by_engine.gpu_s, only(p)
        assert row.accelerator_seconds == settled > 1.0
        assert p.gateway.services.traces.recent[-1].row().gpu_seconds == pytest.approx(settled, abs=1e-6)
        spent.append(row)
    one, four = spent
    assert four.accelerator_seconds == pytest.approx(4 * one.accelerator_seconds)
    assert four.cost == pytest.approx(four.accelerator_seconds * 9.0 / 3600) and one.cost == 0.0
    assert four.kv_token_seconds == one.kv_token_seconds > 0, "a token is held once, on however many"


async def test_disconnect_is_charged_for_prompt_and_delivered_tokens(play: Playing) -> None:
    p = play("r0")
    exchange = p.ask()
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO)
    p.rig.clock.forward(1.0)
    exchange.client_left()
    row = only(p)
    assert (row.requests, row.left, row.failed) == (1, 1, 0)
    assert tokens(row) == (exchange.admitted.features.prompt_tokens, 0, 1) and row.lost_attempts == 0


async def test_request_that_fails_everywhere_is_charged_to_the_platform(play: Playing) -> None:
    p = play("r0", "r1")
    exchange = p.ask()
    for _ in range(2):
        engine = await p.connects()
        p.after(0.5)
        engine.dies()
        await p.settle()
    row = only(p)
    assert (row.requests, row.failed, tokens(row), row.cost) == (1, 1, (0, 0, 0), 0.0)
    prompt_tokens = exchange.admitted.features.prompt_tokens
    assert (row.lost_attempts, row.lost_prompt_tokens) == (2, 2 * prompt_tokens)
    assert row.lost_accelerator_seconds > 0.0


async def test_retried_request_is_charged_once(play: Playing) -> None:
    p = play("r0", "r1", pools=FOUR)
    p.ask()
    first = await p.connects()
    p.after(0.5)
    first.dies()
    finishes(await p.connects())
    row = only(p)
    assert (row.requests, row.failed, tokens(row)) == (1, 0, (3, 0, 2))
    assert row.lost_attempts == 1 and row.lost_cost == pytest.approx(row.lost_accelerator_seconds * 9.0 / 3600)


@pytest.mark.parametrize("refusal", [429, 503])
async def test_attempt_at_a_full_engine_is_not_a_lost_attempt(play: Playing, refusal: int) -> None:
    p = play("r0", "r1")
    p.ask()
    (await p.connects()).refuses(refusal)
    finishes(await p.connects())
    row = only(p)
    assert (row.requests, row.lost_attempts, row.lost_prompt_tokens) == (1, 0, 0)


@pytest.mark.parametrize("winner", [0, 1])
async def test_losing_hedge_is_charged_to_the_platform(play: Playing, winner: int) -> None:
    p = play("r0", "r1", **hedged())
    exchange = p.ask()
    pair = [await p.connects()]
    p.after(10.0)
    pair.append(await p.connects())
    finishes(pair[winner])
    row = only(p)
    assert (row.requests, tokens(row)) == (1, (3, 0, 2))
    assert (row.lost_attempts, row.lost_prompt_tokens) == (1, exchange.admitted.features.prompt_tokens)


async def test_disconnect_during_a_hedge_is_charged_for_one_attempt(play: Playing) -> None:
    p = play("r0", "r1", **hedged())
    exchange = p.ask()
    await p.connects()
    p.after(10.0)
    await p.connects()
    exchange.client_left()
    row, prompt_tokens = only(p), exchange.admitted.features.prompt_tokens
    assert (row.requests, row.left, tokens(row)) == (1, 1, (prompt_tokens, 0, 0))
    assert (row.lost_attempts, row.lost_prompt_tokens) == (1, prompt_tokens)


async def test_attempt_ended_by_a_platform_timeout_is_lost(play: Playing) -> None:
    p = play("r0")
    p.ask(stream=False)
    await p.connects()
    p.after(100_000.0)
    row = only(p)
    assert (row.requests, row.failed, tokens(row), row.lost_attempts) == (1, 1, (0, 0, 0), 1)


async def test_both_answers_of_a_cascade_are_charged_each_to_its_model(play: Playing) -> None:
    p = with_large(play("r0", **cascades(0.5)))
    large = await escalated(p)
    p.rig.clock.forward(1.0)
    large.begins_stream()
    large.streams(sse.token(NAMED_LARGE, "42"), sse.finish(NAMED_LARGE), sse.usage(NAMED_LARGE, 5, 3), sse.DONE)
    large.ends_stream()
    found = rows(p)
    assert (found[POOL].requests, tokens(found[POOL]), found[POOL].model) == (0, (7, 0, 2), "acme/bot")
    assert (found[LARGE].requests, tokens(found[LARGE]), found[LARGE].model) == (1, (5, 0, 3), LARGE)
    charged = p.gateway.services.quotas.settled_by_engine
    assert sum(row.accelerator_seconds for row in found.values()) == pytest.approx(charged.gpu_s)
    assert sum(row.kv_token_seconds for row in found.values()) == pytest.approx(charged.kv_token_s)


async def test_repeated_small_answer_is_charged_once_and_lost_once(play: Playing) -> None:
    p = with_large(play("r0", **cascades(0.5)))
    large = await escalated(p)
    large.answers(503, b"{}")
    again = await p.connects()
    again.begins_stream()
    again.streams(HELLO, sse.finish(BOT_V1), sse.usage(BOT_V1, 7, 2), sse.DONE)
    again.ends_stream()
    row = rows(p)[POOL]
    assert (row.requests, tokens(row)) == (1, (7, 0, 2))
    assert (row.lost_attempts, row.lost_prompt_tokens, row.lost_completion_tokens) == (1, 7, 2)


async def test_tokenize_counts_as_request_without_tokens(play: Playing) -> None:
    p = play("r0")
    Connection(p) >> post(sse.compact({"model": "acme/bot", "prompt": "word " * 500}), path=TOKENIZE.path)
    await p.settle()
    (await p.connects()).answers(200, b'{"count":500,"max_model_len":2048,"tokens":[]}')
    await p.settle()
    row = only(p)
    assert (row.requests, tokens(row), row.lost_attempts) == (1, (0, 0, 0), 0)


async def test_request_rejected_before_a_model_is_not_billed(play: Playing) -> None:
    p = play("r0")
    Connection(p) >> post(sse.compact({"model": "acme/nobody", "messages": []}))
    await p.settle()
    assert rows(p) == {}


# bounds


async def ended_once(play: Playing, **fields: Any) -> Any:
    """Return the record of one ended request."""
    p = play("r0")
    given: list[Any] = []
    services = p.gateway.services
    object.__setattr__(services, "end_listeners", (*services.end_listeners, given.append))
    p.ask(**fields)
    finishes(await p.connects())
    return given[0]


async def test_rows_over_the_bound_are_merged_per_tenant_then_counted_as_lost(play: Playing) -> None:
    ended = await ended_once(play)
    hours = iter(range(100))
    sums = UsageSums(lambda: next(hours) * 3600.0, rows=3)
    for _ in range(3):
        sums.count(ended, (3, 0, 2))
    assert len(sums) == 3 and sums.lost_requests_total == 0
    for _ in range(5):
        sums.count(ended, (3, 0, 2))
    found = sums.pop_rows()
    assert [row.model for row in found] == ["acme/bot"] * 3 + [""] * 3
    assert sum(row.requests for row in found) == 6 and sums.lost_requests_total == 2


async def test_restored_rows_are_added_to_new_ones(play: Playing) -> None:
    ended = await ended_once(play)
    sums = UsageSums(lambda: NOW_UNIX_S)
    sums.count(ended, (3, 1, 2))
    taken = sums.pop_rows()
    sums.count(ended, (30, 10, 20))
    sums.restore_rows(taken)
    (row,) = sums.pop_rows()
    assert (row.requests, tokens(row)) == (2, (33, 11, 22))
