"""Throughput under a limit that several gateways share, from the first request on, in virtual time.

Rounds and requests come as in a fleet, and idle accounts are swept: dropping an account that the bus has charged loses
that part of the limit. With a bucket of `burst` at the bus, this must pass:

    passed = min(offered, burst + limit x t)        within 2 %, and in no window more than burst + limit x t
"""

from collections.abc import Awaitable, Callable
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import NamedTuple

import pytest

from functions.decisions.quota.token_bucket import burst_of
from functions.gateway.quota.leases import QuotaLeases
from functions.gateway.request.answers import Usage
from tests.gateway.quota_rig import Shared
from tests.soak import sampled

_SWEEP_S, _ROUND_S, _SERVED_S = 0.25, 0.25, 0.05
Step = Callable[[], Awaitable[None]]
GATEWAYS, PER_S = (1, 3, 8, 40), (1.5, 3.0, 10.0, 20.0)


class Passed(NamedTuple):
    at_s: float
    tokens: int


class Run:
    """A tenant's requests at all gateways in turn; records those admitted and counts those rejected."""

    def __init__(self, shared: Shared, *, tokens: Callable[[], int] = lambda: 1, gpu_s: float = 0.0) -> None:
        self.shared = shared
        self.passed: list[Passed] = []
        self.refused = 0
        self.sent = 0
        self._tokens, self._gpu_s = tokens, gpu_s
        self._began_s = shared.clock()
        self._numbers = count()
        self._due: list[tuple[float, int, Step]] = []
        self._rng = Random(1)
        self._rounds_of: list[QuotaLeases] = []
        self.at(_SWEEP_S / 2, self._sweep)
        self.look_for_gateways()

    def at(self, seconds: float, step: Step) -> None:
        """Schedule a step at this time since the start of the run."""
        heappush(self._due, (self._began_s + seconds, next(self._numbers), step))

    def look_for_gateways(self) -> None:
        for leases in self.shared.leases:
            if leases not in self._rounds_of:
                self._rounds_of.append(leases)
                self._after(self._rng.random() * _ROUND_S, lambda leases=leases: self._round(leases))  # type: ignore[misc]

    def offer(self, per_s: float) -> None:
        async def one() -> None:
            self.at((self.sent + 1) / per_s, one)
            await self.request()

        self.at(0.0, one)

    def add_polite_client(self) -> None:
        """Add a client that sends one request after another and waits as told after a rejection."""

        async def one() -> None:
            wait_s = _SERVED_S if await self.request() else self.shared.retry_after_s
            self._after(wait_s, one)

        self.at(0.0, one)

    async def request(self) -> bool:
        shared, tokens = self.shared, self._tokens()
        self.sent += 1
        entry = await shared.enters(self.sent % len(shared.quotas), tokens)
        if entry is None:
            self.refused += 1
            return False

        async def ends() -> None:
            entry.settle(Usage(1, tokens), tokens, 0.0, self._gpu_s, shared.clock())
            entry.leave(shared.clock())

        self.passed.append(Passed(shared.clock() - self._began_s, tokens))
        self._after(_SERVED_S, ends)
        return True

    async def until(self, seconds: float) -> None:
        while self._due and self._due[0][0] < self._began_s + seconds:
            at_s, _, step = heappop(self._due)
            self.shared.clock.now_s = max(self.shared.clock(), at_s)
            await step()

    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.passed)

    def above(self, limit_per_s: float) -> float:
        """Return the largest excess of any window over the limit's rate, which must be at most a burst."""
        most = bucket = 0.0
        last_s = 0.0
        for at_s, tokens in self.passed:
            bucket = max(0.0, bucket - (at_s - last_s) * limit_per_s) + tokens
            most, last_s = max(most, bucket), at_s
        return most

    def _after(self, seconds: float, step: Step) -> None:
        self.at(self.shared.clock() - self._began_s + seconds, step)

    async def _round(self, leases: QuotaLeases) -> None:
        if leases in self.shared.leases:
            await leases.round()
            self._after(_ROUND_S * (0.9 + 0.2 * self._rng.random()), lambda: self._round(leases))

    async def _sweep(self) -> None:
        for quotas in self.shared.quotas:
            quotas.forget_idle(self.shared.clock())
        self._after(_SWEEP_S, self._sweep)


async def met(gateways: int, **limits: int) -> Shared:
    shared = Shared(gateways, **limits)
    await shared.meet()
    return shared


_EACH = [(limit, gateways, per_s) for limit in (60, 300) for gateways in GATEWAYS for per_s in PER_S]
_KEPT = [(60, 1, 3.0), (60, 3, 1.5), (60, 3, 10.0), (60, 8, 20.0), (60, 40, 10.0), (300, 3, 20.0), (300, 8, 3.0)]


@pytest.mark.parametrize("case", sampled(_EACH, keep=_KEPT), ids=str)
async def test_whole_request_limit_is_usable(case: tuple[int, int, float]) -> None:
    limit, gateways, per_s = case
    run = Run(await met(gateways, requests_per_minute=limit))
    run.offer(per_s)
    for until_s in (20.0, 60.0):
        await run.until(until_s)
        due = min(per_s * until_s, limit + limit * until_s / 60.0)
        assert len(run.passed) == pytest.approx(due, rel=0.02)
    assert run.above(limit / 60.0) <= limit + 1


_TOKENS = [(limit, gateways, per_s) for limit in (6_000, 60_000) for gateways in GATEWAYS for per_s in (3.0, 20.0)]


@pytest.mark.parametrize("case", sampled(_TOKENS, keep=[(6_000, 8, 3.0), (60_000, 3, 20.0)]), ids=str)
async def test_whole_token_limit_is_usable(case: tuple[int, int, float]) -> None:
    """Requests have very different sizes; a fourth of a burst is kept for credit."""
    (limit, gateways, per_s), rng = case, Random(3)
    run = Run(
        await met(gateways, output_tokens_per_minute=limit, token_burst_seconds=10),
        tokens=lambda: rng.choice((20, 20, 50, 50, 100, 150, 200, 274)),
    )
    run.offer(per_s)
    await run.until(100.0)
    burst = limit / 6.0 * (1.0 if gateways == 1 else 0.75)
    assert run.tokens() == pytest.approx(min(per_s * 100.0 * 108, burst + limit / 60.0 * 100.0), rel=0.03)
    assert run.above(limit / 60.0) <= burst + 2 * 274


@pytest.mark.parametrize("gateways", sampled(GATEWAYS, keep=[3]))
async def test_request_as_large_as_a_burst_is_admitted(gateways: int) -> None:
    """The bus distributes 90 tokens at once: tokens that a gateway leases ahead of need would be missing for requests
    of 100."""
    run = Run(await met(gateways, output_tokens_per_minute=6_000), tokens=lambda: 100)
    run.offer(0.8)
    await run.until(60.0)
    assert run.refused == 0


@pytest.mark.parametrize("gateways", sampled(GATEWAYS, keep=[3]))
async def test_whole_accelerator_seconds_limit_is_usable(gateways: int) -> None:
    """Charged at the end: three fourths of a burst of 600, then one a second, and the requests that were under way at
    once."""
    run = Run(await met(gateways, gpu_seconds_per_hour=3600), gpu_s=4.0)
    run.offer(10.0)
    await run.until(100.0)
    burst = 600 if gateways == 1 else 450
    assert 4 * len(run.passed) == pytest.approx(burst + 100.0, rel=0.02 if gateways <= 8 else 0.3)


@pytest.mark.parametrize("gateways", sampled(GATEWAYS, keep=[3]))
@pytest.mark.parametrize("clients", [1, 5])
async def test_clients_that_obey_retry_after_use_the_whole_limit(gateways: int, clients: int) -> None:
    run = Run(await met(gateways, requests_per_minute=60))
    for _ in range(clients):
        run.add_polite_client()
    await run.until(100.0)
    assert len(run.passed) == pytest.approx(160, rel=0.04 if clients == 1 else 0.02)
    assert run.above(1.0) <= 61


async def test_whole_limit_is_usable_while_gateways_join_and_leave() -> None:
    shared = await met(3, requests_per_minute=60)
    run = Run(shared)
    run.offer(10.0)

    async def joins() -> None:
        shared.join()
        run.look_for_gateways()

    async def leaves() -> None:
        shared.leave(0)

    for at_s in (20.0, 35.0, 50.0):
        run.at(at_s, joins)
        run.at(at_s + 7.0, leaves)
    await run.until(100.0)
    assert len(run.passed) == pytest.approx(160, rel=0.02)
    assert run.above(1.0) <= 61 + 3, "each that joins has let one or so come before it heard of the others"


async def test_single_gateway_reports_its_spending_when_others_join() -> None:
    shared = await met(1, requests_per_minute=60)
    run = Run(shared)
    run.offer(10.0)
    await run.until(20.0)
    shared.join()
    run.look_for_gateways()
    await run.until(30.0)
    shared.leave(1)
    await run.until(60.0)
    assert run.above(1.0) <= 60 + 60, "one that starts knows of nobody until its first round"


@pytest.mark.parametrize("away_s", [0.0, 0.1, 1.0, 5.0])
async def test_bus_restart_rejects_nothing_far_below_a_limit(away_s: float) -> None:
    """Five requests a second of a hundred allowed, and a fourth of the accelerator seconds."""
    shared = await met(3, requests_per_minute=6000, gpu_seconds_per_hour=7200)
    run = Run(shared, gpu_s=0.1)
    run.offer(5.0)
    _restart(run, 10.0, away_s)
    await run.until(30.0)
    assert run.refused == 0 and run.sent > 149


@pytest.mark.parametrize("away_s", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("gateways", sampled((3, 8), keep=[3]))
async def test_bus_restart_admits_at_most_one_more_burst(gateways: int, away_s: float) -> None:
    limit, rng = 60_000, Random(5)
    run = Run(await met(gateways, output_tokens_per_minute=limit), tokens=lambda: rng.randint(50, 150))
    run.offer(30.0)
    _restart(run, 20.0, away_s)
    await run.until(50.0)
    assert run.above(limit / 60.0) <= 2 * burst_of(limit) + 150
    assert run.tokens() == pytest.approx(limit / 60.0 * 50.0, rel=0.05)


async def test_bus_restarts_do_not_double_a_minutes_requests() -> None:
    run = Run(await met(3, requests_per_minute=60))
    run.offer(10.0)
    for at_s in (15.0, 35.0):
        _restart(run, at_s, 1.0)
    await run.until(55.0)
    assert run.above(1.0) <= 60 + 2 * 10, "ten each: until every gateway's first round has told what was spent"


def _restart(run: Run, at_s: float, away_s: float) -> None:
    async def goes() -> None:
        run.shared.broker.restart()
        run.shared.broker.away = True

    async def comes() -> None:
        run.shared.broker.away = False

    run.at(at_s, goes)
    run.at(at_s + away_s, comes)
