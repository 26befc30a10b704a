"""Limits of tenants: exact at one gateway, and shared by several through leases from the bus."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.api.ids import TenantId
from functions.api.snapshot import QuotaEntry, QuotaLimitsPart
from functions.decisions.quota.account import QuotaAccount, apply_regime
from functions.decisions.quota.dimensions import INPUT, PERIODS_S
from functions.decisions.quota.lease import shared_burst
from functions.decisions.quota.outage import Regime
from functions.fleet.quota_leases import MICRO, NO_LIMIT, Group, LeaseRequest, RateRequest
from functions.simulator.fleet.outcome import Outcome
from functions.simulator.fleet.quota_bus import QuotaBus
from functions.simulator.fleet.simulation import Simulation
from tests.simulator.rigs import lost, rig, served, shed, stream


def entry(**limits: int) -> QuotaEntry:
    return QuotaEntry("gold", 1.0, QuotaLimitsPart(**limits))


def run(per_s: float, seconds: float, quota: QuotaEntry, *happens: Any, **setting: Any) -> Outcome:
    simulation = rig(stream(per_s, seconds, tenant="acme"), *happens, quota=quota, **setting)
    return simulation.run()


@pytest.mark.parametrize("gateways", [1, 3])
def test_request_limit_holds_for_any_number_of_gateways(gateways: int) -> None:
    """120 a minute with a burst of 120: in 30 s at most 180 of 300 pass; several gateways share three fourths of the
    burst.
    """
    outcome = run(10.0, 30.0, entry(requests_per_minute=120), gateways=gateways)
    assert served(outcome) <= 181
    assert served(outcome) > (160 if gateways == 1 else 145)
    assert shed(outcome) == {"over_quota": 300 - served(outcome)}


@pytest.mark.parametrize("gateways", [1, 3])
def test_token_limit_holds_for_any_number_of_gateways(gateways: int) -> None:
    """24,000 a minute are one request of 400 tokens a second; a burst is 2 % of that, or one such request."""
    outcome = run(5.0, 40.0, entry(input_tokens_per_minute=24_000), gateways=gateways)
    assert 36 <= served(outcome) <= 44


def test_concurrency_limit_holds() -> None:
    outcome = run(20.0, 20.0, entry(concurrent_requests=3), gateways=2)
    assert 0 < served(outcome) < 400
    assert shed(outcome)["over_quota"] == 400 - served(outcome)


def test_limit_of_one_tenant_does_not_affect_others() -> None:
    few = {TenantId("t0"): entry(requests_per_minute=6)}
    outcome = rig(stream(8.0, 20.0), quotas=few).run()
    assert shed(outcome)["over_quota"] == pytest.approx(40 - 8, abs=2)
    assert served(outcome) == 160 - shed(outcome)["over_quota"]


def test_without_the_bus_each_gateway_uses_its_share() -> None:
    """Three gateways cut off after the burst is spent pass what one bucket would, and what `quota_outage` adds."""
    cut = tuple((15.0, lambda it, number=number: it.partition(number, 100.0)) for number in range(3))
    outcome = run(20.0, 40.0, entry(requests_per_minute=120), *cut, gateways=3)
    assert 120 + 2 * 15 < served(outcome) < 120 + 2 * 15 + 2 * 25 * (2 - 1 / 3) + 10


def test_failed_requests_are_not_charged() -> None:
    """The replica is gone for a while: requests that fail leave their tokens to later ones."""
    quota = entry(input_tokens_per_minute=60_000, token_burst_seconds=60)
    happens = (1.0, lambda it: it.crash(it.replica_ids()[0])), (20.0, lambda it: it.restart(it.replica_ids()[0]))
    outcome = run(4.0, 60.0, quota, *happens, replicas=1, admission=None)
    failed = sum(lost(outcome).values()) + shed(outcome).get("no_replica_ready", 0) + shed(outcome).get("all_tried", 0)
    assert failed > 20
    assert shed(outcome).get("over_quota", 0) == 0


def test_idle_accounts_are_forgotten() -> None:
    """The bus forgets an account two minutes after the last request, as the server's script does."""
    simulation: Simulation = rig(
        stream(20.0, 10.0, tenant=lambda number: f"t{number}"), quota=entry(requests_per_minute=600), gateways=2
    )
    kept: list[int] = []
    simulation.events.at(30.0, lambda: kept.extend(len(gateway.services.quotas) for gateway in simulation.gateways))
    simulation.events.at(150.0, lambda: kept.append(len(simulation._bus.model if simulation._bus is not None else ())))
    simulation._under_way += 1  # so that it runs until it is stopped
    simulation.events.at(151.0, simulation.events.stop)
    simulation.run()
    assert kept == [0, 0, 0]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4_000), st.integers(0, 3_000_000)), max_size=40))
def test_bus_grants_no_more_than_one_bucket_allows(asks: list[tuple[int, int, int]]) -> None:
    """All grants together <= three fourths of a burst + what time has emptied, for any requests."""
    bus, limits = QuotaBus(f"g{number}" for number in range(3)), QuotaLimitsPart(input_tokens_per_minute=60_000)
    accounts = [QuotaAccount() for _ in range(3)]
    now_us = granted = 0
    for account in accounts:
        account.set_limits(limits, 0)
        apply_regime(account, Regime("leased", 3), 0)
    bucket = accounts[0].buckets[INPUT]
    assert bucket is not None
    burst_micro = shared_burst(INPUT, bucket) * MICRO
    assert burst_micro <= bucket.burst * MICRO * 3 // 4
    for number, tokens, wait_us in asks:
        now_us += wait_us
        rate = RateRequest(INPUT, bucket.limit, burst_micro, PERIODS_S[INPUT], tokens * MICRO, 1)
        request = LeaseRequest("acme", NO_LIMIT, 0, 0, (rate,))
        answer = bus.model.request_leases(f"g{number}", [Group(False, (request,))], now_us)
        granted += answer.granted[0].grants[0].granted_micro[0]
        assert granted <= burst_micro + now_us * bucket.limit // PERIODS_S[INPUT] + len(asks)
