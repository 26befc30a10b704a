"""Reservation: made, extended and settled exactly once; the final charge is the real cost of the request."""

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from functions.api.snapshot import QuotaLimitsPart
from functions.decisions.quota.account import QuotaAccount
from functions.decisions.quota.dimensions import INPUT, OUTPUT, UNITS
from functions.decisions.quota.reservation import EXTENSION_TOKENS, Reservation
from functions.decisions.quota.token_bucket import US_PER_S, burst_of
from functions.decisions.request.features import RequestFeatures

INPUT_LIMIT, OUTPUT_LIMIT = 6_000, 3_000
LIMITS = QuotaLimitsPart(input_tokens_per_minute=INPUT_LIMIT, output_tokens_per_minute=OUTPUT_LIMIT)


def of(prompt_tokens: int, expected: int) -> RequestFeatures:
    return RequestFeatures(prompt_tokens * 4, prompt_tokens, False, 4096, expected)


def account() -> QuotaAccount:
    made = QuotaAccount()
    made.set_limits(LIMITS, 0)
    return made


def spent(of_account: QuotaAccount, index: int) -> int:
    bucket = of_account.buckets[index]
    assert bucket is not None
    return bucket.level // UNITS[index]


def reserved(accounts: tuple[QuotaAccount, ...], features: RequestFeatures) -> Reservation:
    reservation = Reservation(accounts)
    reservation.reserve(features, reservation.costs(features), 0)
    return reservation


def test_worked_example_from_the_prologue() -> None:
    tenant = account()
    reservation = reserved((tenant,), of(1000, 100))
    assert (spent(tenant, INPUT), spent(tenant, OUTPUT)) == (1000, 100)
    reservation.extend(100, 0)
    assert spent(tenant, OUTPUT) == 100
    reservation.extend(101, 0)
    assert spent(tenant, OUTPUT) == 356 and reservation.state == "extended"
    assert reservation.settle(1000 - 400, 120, 0.0, 0.0, 0)
    assert (spent(tenant, INPUT), spent(tenant, OUTPUT)) == (600, 120)


def test_settled_reservation_does_not_change() -> None:
    tenant = account()
    reservation = reserved((tenant,), of(10, 10))
    assert reservation.settle(5, 5, 0.0, 0.0, 0)
    assert not reservation.settle(9, 9, 0.0, 0.0, 0)
    reservation.extend(1000, 0)
    reservation.reserve(of(10, 10), reservation.costs(of(10, 10)), 0)
    reservation.release(0)
    assert (spent(tenant, INPUT), spent(tenant, OUTPUT)) == (5, 5)


def test_released_reservation_is_refunded() -> None:
    tenant = account()
    reservation = reserved((tenant,), of(10, 10))
    reservation.release(0)
    reservation.release(0)
    assert spent(tenant, INPUT) == spent(tenant, OUTPUT) == 0
    assert reservation.settle(0, 0, 0.0, 0.0, 0)


def test_tenant_and_key_are_charged_alike() -> None:
    tenant, key = account(), account()
    reserved((tenant, key), of(10, 20)).settle(7, 9, 0.0, 0.0, 0)
    assert [spent(each, OUTPUT) for each in (tenant, key)] == [9, 9]


def test_request_that_can_never_fit_is_distinguished() -> None:
    reservation = Reservation((account(),))
    over = reservation.too_large(of(INPUT_LIMIT + 1, 1))
    assert over is not None and (over.dimension, over.limit) == ("input_tokens_per_minute", INPUT_LIMIT)
    assert reservation.too_large(of(INPUT_LIMIT, OUTPUT_LIMIT)) is None
    asking = msgspec.structs.replace(of(1, 256), asked_output_tokens=OUTPUT_LIMIT + 1)
    over = reservation.too_large(asking)
    assert over is not None and (over.dimension, over.limit) == ("output_tokens_per_minute", OUTPUT_LIMIT)


def test_estimate_above_the_whole_limit_reserves_the_limit() -> None:
    tenant = account()
    guessed = of(1, OUTPUT_LIMIT + 1000)
    assert Reservation((tenant,)).too_large(guessed) is None
    reservation = reserved((tenant,), guessed)
    assert spent(tenant, OUTPUT) == reservation.output_tokens == OUTPUT_LIMIT
    reservation.extend(OUTPUT_LIMIT + 1, 0)
    assert spent(tenant, OUTPUT) == OUTPUT_LIMIT + EXTENSION_TOKENS
    assert reservation.settle(1, 7, 0.0, 0.0, 0) and spent(tenant, OUTPUT) == 7


def test_learned_kv_use_is_reserved_for_later_requests() -> None:
    tenant = QuotaAccount()
    tenant.set_limits(QuotaLimitsPart(kv_token_seconds_per_minute=1000), 0)
    first = reserved((tenant,), of(100, 0))
    assert spent(tenant, 3) == 0, "nothing was learnt yet"
    first.settle(100, 0, 500.0, 0.0, 0)
    assert spent(tenant, 3) == 500
    second = reserved((tenant,), of(100, 0))
    assert spent(tenant, 3) == 600, "a fifth of 5 s a token, for 100 tokens"
    second.settle(0, 0, 0.0, 0.0, 0)
    assert spent(tenant, 3) == 500


class Requests(RuleBasedStateMachine):
    """Compare with an oracle that stores every charge in a list, without sums or rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.account = account()
        self.now_us = 0
        self.open: list[Reservation] = []
        self.levels = [0, 0]  # levels of the oracle, in units
        self.held: dict[int, list[int]] = {}  # tokens by request: input, output
        self.settled_tokens = self.charged_tokens = 0

    @rule(pause_us=st.integers(0, 20 * US_PER_S))
    def time_passes(self, pause_us: int) -> None:
        self.now_us += pause_us
        for at, limit in enumerate((INPUT_LIMIT, OUTPUT_LIMIT)):
            self.levels[at] = max(0, self.levels[at] - pause_us * limit)

    @rule(prompt=st.integers(0, 400), expected=st.integers(0, 200))
    def arrives(self, prompt: int, expected: int) -> None:
        features, reservation = of(prompt, expected), Reservation((self.account,))
        costs = reservation.costs(features)
        may = True
        for level, limit, wanted in zip(self.levels, (INPUT_LIMIT, OUTPUT_LIMIT), (prompt, expected), strict=True):
            capacity = burst_of(limit) * UNITS[INPUT]
            may &= wanted == 0 or level + min(wanted * UNITS[INPUT], capacity) <= capacity
        assert (self.account.find_shortage(costs, self.now_us) is None) is may
        if may:
            reservation.reserve(features, costs, self.now_us)
            self._oracle_adds(reservation, prompt, expected)
            self.open.append(reservation)

    @rule(data=st.data(), tokens=st.integers(0, 2000))
    def streams(self, data: st.DataObject, tokens: int) -> None:
        if self.open:
            reservation = data.draw(st.sampled_from(self.open))
            before = self.held[id(reservation)][1]
            reservation.extend(tokens, self.now_us)
            steps = max(0, -(-(tokens - before) // EXTENSION_TOKENS))
            self._oracle_adds(reservation, 0, steps * EXTENSION_TOKENS)

    @rule(data=st.data(), prompt=st.integers(0, 400), output=st.integers(0, 2000), twice=st.booleans())
    def ends(self, data: st.DataObject, prompt: int, output: int, twice: bool) -> None:
        if not self.open:
            return
        reservation = data.draw(st.sampled_from(self.open))
        self.open.remove(reservation)
        held = self.held[id(reservation)]
        assert reservation.settle(prompt, output, 0.0, 0.0, self.now_us)
        self._oracle_adds(reservation, prompt - held[0], output - held[1])
        if twice:
            assert not reservation.settle(1, 1, 0.0, 0.0, self.now_us)
        held = self.held.pop(id(reservation))  # the next one may be made at the same address
        assert [reservation.input_tokens, reservation.output_tokens] == [prompt, output] == held

    def _oracle_adds(self, reservation: Reservation, prompt: int, output: int) -> None:
        held = self.held.setdefault(id(reservation), [0, 0])
        for at, tokens in enumerate((prompt, output)):
            held[at] += tokens
            self.levels[at] = max(0, self.levels[at] + tokens * UNITS[INPUT])

    @invariant()
    def levels_agree(self) -> None:
        levels = []
        for _, bucket in self.account.limited:
            elapsed_us = self.now_us - bucket.updated_us
            levels.append(max(0, bucket.level - elapsed_us * bucket.limit))
        assert levels == self.levels


TestRequests = Requests.TestCase
TestRequests.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)
