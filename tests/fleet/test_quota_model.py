"""The model of the quota script and the script on a real Valkey give the same answers to the same requests."""

import time
from random import Random

import pytest

from functions.fleet.quota_leases import (
    MICRO,
    NO_LIMIT,
    Group,
    LeaseAnswer,
    LeaseRequest,
    RateRequest,
    ValkeyQuotaBroker,
)
from functions.fleet.quota_model import QuotaModel
from tests.fleet.conftest import PASSWORD, valkey_port

__all__ = ["valkey_port"]
pytestmark = pytest.mark.servers
_PERIOD_S, _LIMIT = 1_000_000, 1_000  # a thousandth of a token a second, so that the two clocks do not matter
_NEAR_MICRO = 60_000  # use of one minute


def _draw_request(rng: Random, held: dict[tuple[str, str], int], gateway: str) -> LeaseRequest:
    account = rng.choice(("acme", "globex", "acme/ci"))
    rates = tuple(
        RateRequest(number, _LIMIT, burst * MICRO, _PERIOD_S, int(rng.choice((0, 0.5, 7, 40, 400, -3)) * MICRO), one)
        for number, burst, one in ((1, 50, 1), (2, 100, 3 * MICRO))
    )
    limit = rng.choice((NO_LIMIT, 5))
    now_held = held.get((gateway, account), 0) if limit != NO_LIMIT else 0
    if rng.random() < 0.2:  # a request that crosses another one of the same gateway
        now_held = max(0, now_held - 1)
    return LeaseRequest(account, limit, now_held, rng.choice((0, 1, 3, -1)) if limit != NO_LIMIT else 0, rates)


def _alike(real: LeaseAnswer, model: LeaseAnswer) -> None:
    assert (real.gateways, real.learning) == (model.gateways, model.learning)
    for one, other in zip(real.granted, model.granted, strict=True):
        assert one.ok == other.ok
        assert one.wait_us == pytest.approx(other.wait_us, abs=_NEAR_MICRO * _PERIOD_S / _LIMIT)
        for grant, modelled in zip(one.grants, other.grants, strict=True):
            assert grant.places == modelled.places
            assert grant.granted_micro == pytest.approx(modelled.granted_micro, abs=_NEAR_MICRO)
            assert grant.left_micro == pytest.approx(modelled.left_micro, abs=_NEAR_MICRO)


@pytest.mark.parametrize("learning", [True, False])
async def test_the_model_answers_as_the_script_does(valkey_port: int, learning: bool) -> None:
    broker = ValkeyQuotaBroker(f"valkey://127.0.0.1:{valkey_port}/0", password=PASSWORD, timeout_s=60.0)
    await broker._client.flushall()
    model, rng = QuotaModel(), Random(5)
    if not learning:
        await broker._client.set("shoal:quota:born", 1)
        model.request_leases("g0", (), time.time_ns() // 1000 - 2_000_000)
        await broker.request_leases("g0", ())
    held: dict[tuple[str, str], int] = {}
    for _ in range(3 if learning else 60):
        gateway = rng.choice(("g0", "g1"))
        groups = []
        for _ in range(rng.randint(1, 2)):
            requests = [_draw_request(rng, held, gateway) for _ in range(rng.randint(1, 2))]
            groups.append(Group(rng.random() < 0.5, tuple({request.account: request for request in requests}.values())))
        real = await broker.request_leases(gateway, groups)
        _alike(real, model.request_leases(gateway, groups, time.time_ns() // 1000))
        for group, granted in zip(groups, real.granted, strict=True):
            for request, grant in zip(group.requests, granted.grants, strict=True):
                if request.places_limit != NO_LIMIT:
                    held[gateway, request.account] = grant.places
    await broker.close()
