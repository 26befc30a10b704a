"""Several gateways and one limit: in virtual time, request by request, with and without the bus."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from random import Random

import pytest

from functions.decisions.quota.dimensions import GPU, OUTPUT
from functions.decisions.quota.outage import Regime
from functions.decisions.quota.token_bucket import burst_of
from functions.decisions.request.features import RequestFeatures
from functions.fleet.quota_leases import Group, LeaseAnswer
from functions.gateway.quota import gateway_count
from functions.gateway.quota.accounts import RequestQuota, TenantQuotas
from functions.gateway.request.answers import Usage
from tests.gateway.quota_rig import ACME, Shared

LIMIT = 60_000
PER_S = LIMIT // 60


async def saturate(shared: Shared, seconds: float, rng: Random, factor: float = 3.0) -> list[tuple[float, int]]:
    """Send requests that complete at once and return when each was delivered, with its tokens."""
    delivered: list[tuple[float, int]] = []
    until_s, next_round_s = shared.clock() + seconds, shared.clock()
    while shared.clock() < until_s:
        if shared.clock() >= next_round_s:
            await shared.rounds()
            next_round_s = shared.clock() + 0.25
        expected = rng.randint(50, 150)
        entry = await shared.enters(rng.randrange(len(shared.quotas)), expected)
        if entry is not None:
            tokens = rng.randint(20, expected)
            shared.ends(entry, tokens)
            delivered.append((shared.clock(), tokens))
        shared.clock.forward(85.0 / (PER_S * factor))
    return delivered


def largest_minute(delivered: list[tuple[float, int]]) -> int:
    window: deque[tuple[float, int]] = deque()
    total = largest = 0
    for at_s, tokens in delivered:
        window.append((at_s, tokens))
        total += tokens
        while at_s - window[0][0] > 60.0:
            total -= window.popleft()[1]
        largest = max(largest, total)
    return largest


@pytest.mark.parametrize("gateways", [1, 4])
async def test_offered_three_times_the_limit_delivers_the_limit_within_two_percent(gateways: int) -> None:
    shared = Shared(gateways, output_tokens_per_minute=LIMIT)
    await shared.meet()
    delivered = await saturate(shared, 150.0, Random(gateways))
    assert largest_minute(delivered) <= LIMIT + burst_of(LIMIT) + 150, "the bound, and one request's worth"
    for start_s in (0, 30, 60, 90):
        began_s = delivered[0][0] + start_s
        minute = sum(tokens for at_s, tokens in delivered if began_s <= at_s < began_s + 60.0)
        assert minute == pytest.approx(LIMIT, rel=0.02)


async def test_limit_holds_through_a_bus_outage() -> None:
    shared = Shared(4, output_tokens_per_minute=LIMIT)
    await shared.meet()
    rng = Random(3)
    before = await saturate(shared, 60.0, rng)
    shared.broker.away = True
    without = await saturate(shared, 60.0, rng)
    assert {leases.regime.step for leases in shared.leases} == {"share"}, "half of it by the last rate, half by share"
    shared.broker.away = False
    after = await saturate(shared, 60.0, rng)
    assert {leases.regime.step for leases in shared.leases} == {"leased"}
    for delivered in (before, without, after):
        assert sum(tokens for _, tokens in delivered) == pytest.approx(LIMIT, rel=0.03)
    assert largest_minute([*before, *without, *after]) <= LIMIT + 2 * burst_of(LIMIT) + 150


async def test_gateway_with_all_requests_of_a_tenant_gets_its_whole_limit() -> None:
    shared = Shared(4, output_tokens_per_minute=LIMIT)
    await shared.meet()
    only = shared.quotas[2:3]
    shared.quotas = only
    delivered = await saturate(shared, 60.0, Random(5))
    assert sum(tokens for _, tokens in delivered) == pytest.approx(LIMIT, rel=0.02)


async def test_dead_gateway_loses_at_most_its_lease() -> None:
    shared = Shared(2, output_tokens_per_minute=LIMIT)
    await shared.meet()
    await saturate(shared, 10.0, Random(1))
    account = shared.quotas[1].accounts[ACME]
    bucket = account.buckets[OUTPUT]
    assert bucket is not None
    held = bucket.headroom // bucket.unit
    assert held <= burst_of(LIMIT), "a lease"
    shared.quotas, shared.leases = shared.quotas[:1], shared.leases[:1]
    delivered = await saturate(shared, 60.0, Random(2))
    assert sum(tokens for _, tokens in delivered) >= LIMIT - burst_of(LIMIT) - 150


async def test_excess_of_a_minute_is_bounded_by_leases_held_before() -> None:
    shared = Shared(4, output_tokens_per_minute=LIMIT)
    await shared.meet()
    rng = Random(11)
    before = await saturate(shared, 20.0, rng, factor=0.8)
    held = sum(
        bucket.headroom // bucket.unit for quotas in shared.quotas for _, bucket in quotas.accounts[ACME].limited
    )
    assert held <= 2 * burst_of(LIMIT)
    after = await saturate(shared, 59.9, rng)
    assert sum(tokens for _, tokens in after) <= LIMIT + burst_of(LIMIT) + max(0, held)
    assert largest_minute([*before, *after]) <= LIMIT + 3 * burst_of(LIMIT)


async def test_single_gateway_forgets_idle_accounts() -> None:
    shared = Shared(1, output_tokens_per_minute=LIMIT)
    await shared.meet()
    entry = await shared.enters(0, 10)
    assert entry is not None
    shared.ends(entry, 10)
    shared.clock.forward(60.0)
    shared.quotas[0].forget_idle(shared.clock())
    assert len(shared.quotas[0]) == 0 and not shared.leases[0]._active


async def test_idle_tenant_is_forgotten_with_its_leases() -> None:
    shared = Shared(2, output_tokens_per_minute=LIMIT, kv_token_seconds_per_minute=LIMIT, concurrent_requests=4)
    await shared.meet()
    for _ in range(3):
        entry = await shared.enters(0, 10)
        assert entry is not None
        entry.settle(Usage(7, 10), 10, 1.2345, 0.0, shared.clock())
        entry.leave(shared.clock())
    for _ in range(30):
        shared.clock.forward(0.25)
        await shared.rounds()
    shared.quotas[0].forget_idle(shared.clock())
    assert len(shared.quotas[0]) == 0 and not shared.leases[0]._active


async def test_idle_gateways_return_their_leases() -> None:
    shared = Shared(2, output_tokens_per_minute=LIMIT, concurrent_requests=8)
    await shared.meet()
    entry = await shared.enters(0, 100)
    assert entry is not None
    for _ in range(3):
        await shared.rounds()
        shared.clock.forward(0.25)
    shared.ends(entry, 10)
    for _ in range(12):
        shared.clock.forward(0.25)
        await shared.rounds()
    account = shared.quotas[0].accounts[ACME]
    assert account.slots in (0, None) and all(bucket.level == 0 for _, bucket in account.limited)
    assert shared.broker.outstanding(ACME, OUTPUT, LIMIT, burst_of(LIMIT)) == 0
    shared.clock.forward(1.0)
    assert await shared.enters(0, 100) is not None, "and is asked for again"


async def test_concurrency_slots_are_shared_to_the_last() -> None:
    shared = Shared(3, concurrent_requests=5)
    await shared.meet()
    open_entries = [await shared.enters(number % 3, 1) for number in range(9)]
    assert sum(1 for entry in open_entries if entry is not None) == 5
    for entry in open_entries:
        if entry is not None:
            shared.ends(entry, 1)
    for _ in range(3):
        await shared.rounds()
        shared.clock.forward(0.6)
    assert await shared.enters(2, 1) is not None


async def test_rejected_requests_are_not_charged() -> None:
    shared = Shared(2, output_tokens_per_minute=LIMIT, requests_per_minute=1000)
    await shared.meet()
    assert await shared.enters(0, burst_of(LIMIT)) is not None
    refused = [await shared.enters(1, 1000) for _ in range(20)]
    assert not any(refused)
    requests, output = (bucket for _, bucket in shared.quotas[1].accounts[ACME].limited)
    assert requests.level <= 0 and output.level <= 0, "no debt is left behind"
    assert shared.quotas[1].in_flight(ACME) == 0


async def test_slow_bus_admits_at_most_the_credit() -> None:
    shared = Shared(2, output_tokens_per_minute=LIMIT)
    await shared.meet()
    shared.broker.slow = True
    entered = [await shared.enters(0, 100) for _ in range(20)]
    came = sum(100 for entry in entered if entry is not None)
    assert 0 < came <= burst_of(LIMIT) // 4 // 2 + 100, "a gateway's half of a fourth, and the request that passed it"
    assert shared.leases[0].asks["slow"] == 20


async def test_share_without_the_bus_follows_the_setting() -> None:
    shared = Shared(2, output_tokens_per_minute=LIMIT)
    shared.broker.away = True
    await shared.rounds()
    entered = [await shared.enters(0, 100) for _ in range(20)]
    assert sum(100 for entry in entered if entry is not None) == burst_of(LIMIT) // 2


async def test_share_without_the_bus_follows_the_registrys_count() -> None:
    """With their settings alone, each of the six gateways would use the whole limit or half of it."""
    shared = Shared(6, output_tokens_per_minute=LIMIT)
    shared.broker.away = True
    await shared.rounds()
    for leases in shared.leases:
        leases.expect(6)
    delivered = await saturate(shared, 90.0, Random(6))
    assert 0.97 * LIMIT < largest_minute(delivered) <= LIMIT + burst_of(LIMIT) + 6 * 150
    shared.broker.away = False
    await shared.meet()
    for leases in shared.leases:
        leases.expect(40)
    assert {(leases.regime.step, leases.gateways) for leases in shared.leases} == {("leased", 6)}, (
        "the bus knows better"
    )


async def test_gateway_count_is_saved_across_restarts(tmp_path: Path) -> None:
    file = tmp_path / "gateways"
    assert gateway_count.last_known(file, 1) == 1
    shared = Shared(3, output_tokens_per_minute=LIMIT)
    await shared.meet()
    keeping = asyncio.create_task(gateway_count.save_changes(shared.leases[0], file))
    async with asyncio.timeout(60):
        while gateway_count.last_known(file, 1) != 3:
            await asyncio.sleep(0.01)
    keeping.cancel()
    for rubbish in ("", "0", "-3", "many", "99999999"):
        file.write_text(rubbish)
        assert gateway_count.last_known(file, 2) == 2


async def test_batch_is_rejected_after_ten_minutes_without_the_bus() -> None:
    shared = Shared(2, output_tokens_per_minute=LIMIT)
    await shared.meet()
    shared.broker.away = True
    for _ in range(3):
        await shared.rounds()
        shared.clock.forward(300.5)
    await shared.rounds()
    assert shared.leases[0].regime.step == "urgent_only"
    assert await shared.enters(0, 10, service_class="batch") is None
    assert await shared.enters(0, 10, service_class="near-real-time") is not None
    assert await shared.enters(0, 10) is not None


async def test_disconnect_during_a_lease_request_leaves_nothing_behind() -> None:
    shared = Shared(2, output_tokens_per_minute=LIMIT)
    await shared.meet()
    quotas = shared.quotas[0]
    entry = quotas.enter(ACME, shared.quota, shared.clock())
    assert entry.reserve(RequestFeatures(4, 1, False, 10, 10), shared.clock()) is False
    told: list[object] = []
    quotas.request_missing(entry, shared.clock, told.append)
    entry.leave(shared.clock())
    while not told:
        await asyncio.sleep(0)
    assert told == [None] and quotas.in_flight(ACME) == 0
    assert all(bucket.level <= 0 for _, bucket in quotas.accounts[ACME].limited)


async def at_once(shared: Shared, gateway: int, requests: int) -> list[RequestQuota]:
    """Send so many requests at once and return the admitted ones."""
    entered = await asyncio.gather(*(shared.enters(gateway, 10) for _ in range(requests)))
    return [entry for entry in entered if entry is not None]


@pytest.mark.parametrize("requests", [8, 9, 20, 200])
async def test_burst_is_admitted_up_to_the_free_concurrency_slots(requests: int) -> None:
    shared = Shared(2, concurrent_requests=8)
    await shared.meet()
    elsewhere = await at_once(shared, 1, 3)
    assert len(elsewhere) == 3
    came = await at_once(shared, 0, requests)
    assert len(came) == 5
    for entry in came:
        shared.ends(entry, 10)
    assert len(await at_once(shared, 0, 5)) == 5, "what was refused holds no place"


async def test_burst_at_all_gateways_never_exceeds_concurrency() -> None:
    shared = Shared(3, concurrent_requests=10)
    await shared.meet()
    came = [entry for group in await asyncio.gather(*(at_once(shared, at, 9) for at in range(3))) for entry in group]
    assert len(came) == 10


async def test_slot_freed_during_a_refused_lease_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared(2, concurrent_requests=2)
    await shared.meet()
    first, second = await at_once(shared, 0, 2)
    answers = shared.broker.request_leases

    async def request_leases(gateway_id: str, groups: Sequence[Group]) -> LeaseAnswer:
        answer = await answers(gateway_id, groups)
        assert not answer.granted[-1].ok
        shared.ends(first, 10)
        return answer

    monkeypatch.setattr(shared.broker, "request_leases", request_leases)
    assert len(await at_once(shared, 0, 1)) == 1
    assert shared.quotas[0].in_flight(ACME) == 2 and second.reservation.state == "reserved"


async def owes_gpu_seconds(shared: Shared, owed_s: float) -> None:
    [entry] = await at_once(shared, 0, 1)
    entry.settle(Usage(1, 10), 10, 0.0, owed_s, shared.clock())
    entry.leave(shared.clock())


async def test_burst_requests_its_debt_once() -> None:
    """1,200 s may be used at once; a debt of 32 s, requested by each of sixty requests, would be 1,920 s."""
    shared = Shared(2, gpu_seconds_per_hour=7200)
    await shared.meet()
    await owes_gpu_seconds(shared, 32.0)
    assert len(await at_once(shared, 0, 60)) == 60
    bucket = shared.quotas[0].accounts[ACME].buckets[GPU]
    assert bucket is not None and bucket.level == 0, "nothing is left over, nothing is owed"


async def test_unpayable_debt_rejects_all_requests() -> None:
    shared = Shared(2, gpu_seconds_per_hour=7200)
    await shared.meet()
    for _ in range(2):  # enough is left to pay the first 800 s
        await owes_gpu_seconds(shared, 800.0)
    assert await at_once(shared, 0, 60) == []
    assert shared.quotas[0].in_flight(ACME) == 0


def answers_late(shared: Shared, monkeypatch: pytest.MonkeyPatch, turns: Callable[[int], int]) -> None:
    """Delay the bus's answer to call n (from 0) by so many turns of the loop, so that other calls go out meanwhile."""
    answers, calls = shared.broker.request_leases, count()

    async def request_leases(gateway_id: str, groups: Sequence[Group]) -> LeaseAnswer:
        call = next(calls)
        answer = await answers(gateway_id, groups)
        for _ in range(turns(call)):
            await asyncio.sleep(0)
        return answer

    monkeypatch.setattr(shared.broker, "request_leases", request_leases)
    monkeypatch.setattr("functions.gateway.quota.leases.ASK_S", 30.0)  # turns of the loop, not time, order the answers


@pytest.mark.parametrize("first_turns", [5, 50], ids=["in order", "the first one last"])
@pytest.mark.parametrize("owed_s", [32.0, 500.0])
async def test_burst_of_several_calls_requests_its_debt_once(
    monkeypatch: pytest.MonkeyPatch, owed_s: float, first_turns: int
) -> None:
    """The bus has 900 s: 500 s requested by two calls each would be more, and the second would be rejected."""
    shared = Shared(2, gpu_seconds_per_hour=7200)
    await shared.meet()
    await owes_gpu_seconds(shared, owed_s)
    answers_late(shared, monkeypatch, lambda call: 5 if call else first_turns)
    assert len(await at_once(shared, 0, 100)) == 100
    bucket = shared.quotas[0].accounts[ACME].buckets[GPU]
    assert bucket is not None and bucket.level == 0


async def test_debt_unpayable_by_another_call_rejects_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared(2, gpu_seconds_per_hour=7200)
    await shared.meet()
    for _ in range(2):
        await owes_gpu_seconds(shared, 800.0)
    answers_late(shared, monkeypatch, lambda call: 5 if call else 50)
    assert await at_once(shared, 0, 200) == []
    assert not shared.leases[0]._debts


async def test_crossing_answers_revoke_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared(2, concurrent_requests=100)
    await shared.meet()
    answers_late(shared, monkeypatch, lambda call: 5 if call else 50)
    assert len(await at_once(shared, 0, 90)) == 90
    assert shared.quotas[0].accounts[ACME].slots == 90


async def test_repeated_bus_outages_create_no_debt_for_unspent_credit() -> None:
    """A part of each burst is kept for credit. Counted as spent, it used a limit up after some losses of the bus."""
    shared = Shared(2, gpu_seconds_per_hour=3600)
    await shared.meet()
    for _ in range(5):
        await some_requests(shared)
        shared.broker.away = True
        await some_requests(shared)
        shared.broker.restart()
        shared.broker.away = False
        await some_requests(shared)
    assert [_owed(quotas) for quotas in shared.quotas] == [0, 0]
    assert shared.broker.outstanding(ACME, GPU, 3600, 450) == 0


async def test_first_gateway_to_reconnect_still_counts_the_others() -> None:
    """The bus forgets gateways in ten seconds. Taken for the only one, the first gateway owed its earlier share once
    more."""
    shared = Shared(2, output_tokens_per_minute=LIMIT)
    await shared.meet()
    await saturate(shared, 10.0, Random(1))
    shared.broker.away = True
    await saturate(shared, 16.0, Random(2))
    shared.broker.away = False
    await shared.leases[0].round()
    assert shared.leases[0].regime == Regime("leased", 2)
    shared.leave(1)
    for _ in range(60):  # until the other gateway is known to be gone
        shared.clock.forward(0.25)
        await shared.leases[0].round()
    assert shared.leases[0].regime == Regime("share", 1)


async def some_requests(shared: Shared) -> None:
    """Send one request per gateway and round for three seconds; none costs anything of a slow limit."""
    for _ in range(12):
        await shared.rounds()
        for gateway in range(len(shared.quotas)):
            entry = await shared.enters(gateway, 1)
            assert entry is not None
            shared.ends(entry, 1)
        shared.clock.forward(0.25)


def _owed(quotas: TenantQuotas) -> int:
    bucket = quotas.accounts[ACME].buckets[GPU]
    assert bucket is not None
    return bucket.level // bucket.unit
