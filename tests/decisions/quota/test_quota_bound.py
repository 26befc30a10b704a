"""Bound on a tenant's delivered tokens in any window, however requests overlap, grow, refund and owe:

delivered <= limit x t / 60 + max(burst, largest request) + reserved as it began, not yet delivered + debt as it ends
"""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from functions.api.snapshot import QuotaLimitsPart
from functions.decisions.quota.account import QuotaAccount
from functions.decisions.quota.dimensions import OUTPUT, UNITS
from functions.decisions.quota.reservation import Reservation
from functions.decisions.quota.token_bucket import US_PER_S
from functions.decisions.request.features import RequestFeatures

LIMIT = 6_000
GRAIN = UNITS[OUTPUT]


@dataclass
class Stream:
    reservation: Reservation
    tokens: int  # tokens that the stream will deliver
    delivered: int = 0


@dataclass
class Tenant:
    """A tenant with overlapping requests and an account, and a record of its state after each step."""

    now_us: int = 0
    open: list[Stream] = field(default_factory=list)
    delivered: int = 0
    largest: int = 0
    seen: list[tuple[int, int, int, int]] = field(default_factory=list)  # time, delivered, not yet delivered, level

    def __post_init__(self) -> None:
        self.account = QuotaAccount()
        self.account.set_limits(QuotaLimitsPart(output_tokens_per_minute=LIMIT), 0)
        bucket = self.account.buckets[OUTPUT]
        assert bucket is not None
        self.bucket = bucket
        self.record_state()

    def asks(self, expected: int, tokens: int) -> None:
        reservation = Reservation((self.account,))
        features = RequestFeatures(4, 1, False, 4096, expected)
        costs = reservation.costs(features)
        if self.account.find_shortage(costs, self.now_us) is None:
            reservation.reserve(features, costs, self.now_us)
            self.largest = max(self.largest, expected)
            self.open.append(Stream(reservation, tokens))

    def streams(self, number: int, tokens: int) -> None:
        if self.open:
            stream = self.open[number % len(self.open)]
            more = min(tokens, stream.tokens - stream.delivered)
            stream.reservation.extend(stream.delivered + more, self.now_us)
            stream.delivered += more
            self.delivered += more

    def ends(self, number: int) -> None:
        if self.open:
            stream = self.open.pop(number % len(self.open))
            self.delivered += stream.tokens - stream.delivered
            stream.reservation.settle(0, stream.tokens, 0.0, 0.0, self.now_us)

    def record_state(self) -> None:
        self.bucket.advance(self.now_us)
        not_yet = sum(stream.reservation.output_tokens - stream.delivered for stream in self.open)
        self.seen.append((self.now_us, self.delivered, not_yet, self.bucket.level))


steps = st.lists(
    st.tuples(
        st.sampled_from(["asks", "asks", "streams", "ends"]),
        st.integers(0, 10 * US_PER_S),
        st.integers(1, 600),
        st.integers(0, 900),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=200)
@given(steps)
def test_no_window_exceeds_its_bound(script: list[tuple[str, int, int, int]]) -> None:
    tenant = Tenant()
    for what, pause_us, number, tokens in script:
        tenant.now_us += pause_us
        if what == "asks":
            tenant.asks(number, tokens)
        elif what == "streams":
            tenant.streams(number, tokens)
        else:
            tenant.ends(number)
        tenant.record_state()
    at_once = max(tenant.bucket.burst, tenant.largest) * GRAIN
    for index, (began_us, before, not_yet, _) in enumerate(tenant.seen):
        for ended_us, after, _, level in tenant.seen[index:]:
            debt = max(0, level - at_once)
            bound = LIMIT * (ended_us - began_us) + at_once + not_yet * GRAIN + debt
            assert (after - before) * GRAIN <= bound
