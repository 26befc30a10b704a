"""Cost of a hostile input file: bytes held, and turns of the event loop that others wait for."""

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from functions.api.ids import TenantId
from functions.decisions.batch import record as batch_moves
from functions.decisions.batch.lines import MAX_FILE_LINES, RawLine, too_many_lines
from functions.decisions.batch.pace import BatchPace
from functions.gateway.batch.conductor import ENDPOINTS
from functions.gateway.batch.limits import BatchLimits
from functions.gateway.batch.line_round import _request
from functions.gateway.batch.pacer import LinePacer
from functions.gateway.batch.reading import lines_of
from functions.gateway.batch.run import BatchRun
from functions.gateway.batch.validation import Validation
from functions.gateway.tenant_limits import TenantShares
from tests.decisions.batch.test_batch_record import record
from tests.gateway.batch_memory import RangedStore, batches_of, put_file, shared_of
from tests.gateway.batch_rig import CHAT, as_file, line
from tests.gateway.quota_rig import Shared
from tests.gateway.rig import Rig, quota

ACME = TenantId("acme")


def turns_of(rig: Rig, answers: TenantShares, batches: int = 1) -> LinePacer:
    pace = BatchPace(32.0)
    pace.window = 32.0
    return LinePacer(
        rig.gateway.services,
        ACME,
        pace,
        slots=TenantShares(96, 48),
        answers=answers,
        open_batches=Counter({ACME: batches}),
        clock=rig.clock,
    )


async def test_large_answers_limit_concurrent_lines() -> None:
    rig, answers = Rig(), TenantShares(100, 60)
    turns = turns_of(rig, answers)
    for size_bytes, most in ((10, 6), (40, 1), (200, 1)):
        turns.record_answer_size(size_bytes)
        begun = []
        while turns._may_send():
            turn = turns.next_turn()
            await turn.__aenter__()
            begun.append(turn)
        assert len(begun) == most
        for turn in begun:
            await turn.__aexit__(None, None, None)
        assert answers.held == 0


@pytest.mark.parametrize(
    ("limit", "gateways", "batches", "lines"),
    [
        (64, 8, 0, 32),  # the batch began after the last scan
        (64, 8, 1, 32),
        (64, 8, 2, 16),
        (64, 8, 50, 4),
        (8, 1, 9, 4),
        (8, 3, 3, 1),
        (256, 4, 4, 32),
        (1, 2, 2, 1),
    ],
)
async def test_batch_lines_leave_half_of_concurrency_to_calls_across_gateways(
    limit: int, gateways: int, batches: int, lines: int
) -> None:
    rig = Rig(policies={"quotas": (quota(concurrent_requests=limit),)})
    if gateways > 1:
        shared = Shared(gateways, concurrent_requests=limit)
        await shared.meet()
        rig.gateway.services.quotas.leasing = shared.leases[0]
    turns = turns_of(rig, TenantShares(10**9, 10**9), batches)
    async with AsyncExitStack() as begun:
        while turns._may_send():
            await begun.enter_async_context(turns.next_turn())
        assert turns.in_flight == lines


async def test_one_large_answer_stops_limiting_after_35_small_ones() -> None:
    turns = turns_of(Rig(), TenantShares(30_000, 30_000))
    for shorter, may_begin in ((34, False), (35, True)):
        turns.record_answer_size(30_000)
        for _ in range(shorter):
            turns.record_answer_size(1)
        async with turns.next_turn():
            assert turns._may_send() is may_begin


async def test_large_answers_of_one_batch_leave_another_batch_a_line() -> None:
    rig, answers = Rig(), TenantShares(100, 100)
    greedy, other = turns_of(rig, answers), turns_of(rig, answers)
    for turns in (greedy, other):
        turns.record_answer_size(90)
    async with greedy.next_turn():
        assert other._may_send() and not greedy._may_send()


def test_queued_line_is_held_as_bytes() -> None:
    body = {"model": "m", "prompt": [300] * 1000}
    text = json.dumps({"custom_id": "a", "method": "POST", "url": CHAT, "body": body}).encode()
    request = _request(RawLine(1, 0, text), CHAT)
    assert request is not None and json.loads(request.body) == body and len(request.body) < len(text)


async def test_queued_lines_of_all_batches_share_one_budget() -> None:
    batches = batches_of(Rig(), RangedStore(), BatchLimits(held_bytes=1000, held_bytes_per_tenant=1000))
    shared = shared_of(batches)
    run = BatchRun(shared, batch_moves.claimed(record(expires_s=2**40), "us", 2), ENDPOINTS[CHAT])._round("")
    with shared.bodies.reserved("another", 900):
        await run._until_headroom(4000)  # one line passes whatever its size
        waiting = asyncio.ensure_future(asyncio.Event().wait())
        run._under_way.add(waiting)  # type: ignore[arg-type]
        await run._until_headroom(100)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await run._until_headroom(101)
    await run._until_headroom(1000)
    waiting.cancel()
    batches.close_store()


async def test_duplicate_custom_ids_are_found_by_digest() -> None:
    objects, rig = RangedStore(), Rig()
    batches, claim = batches_of(rig, objects), batch_moves.claimed(record(), "us", 2)
    long_id = "\U0001f600" * 256
    put_file(objects, claim.input_file_id, as_file(line(long_id, "a"), line("b"), line(long_id, "c")))
    validation = Validation(rig.gateway.services, batches.store, claim, ENDPOINTS[CHAT])
    problems = await validation.run()
    assert [(one.code, one.line) for one in problems] == [("duplicate_custom_id", 3)]
    assert sorted(len(one) for one in validation._seen) == [16, 16]
    batches.close_store()


async def test_file_of_empty_lines_yields_the_loop_and_is_not_read_to_its_end() -> None:
    objects, claim = RangedStore(), record()
    batches = batches_of(Rig(), objects)
    put_file(objects, claim.input_file_id, b"\n" * (20 * MAX_FILE_LINES))
    turns, is_read = 0, False

    async def count() -> None:
        nonlocal turns
        while not is_read:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    found = [one async for one in lines_of(batches.store, "acme", claim.input_file_id, 1000)]
    is_read = True
    await counting
    assert [too_many_lines(one) is not None for one in found] == [True]
    assert turns >= MAX_FILE_LINES / 10_000
    batches.close_store()
