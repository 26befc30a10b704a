"""One tenant's request rate to the registry is limited, so that other tenants and the operator are still served."""

import asyncio
from contextlib import ExitStack

import pytest

from functions.api.ids import TenantId
from functions.registry.errors import ApiError
from functions.registry.rate_limiter import TenantRateLimiter
from functions.registry.sql.database import THREADS, Database
from tests.registry.backends import url
from tests.registry.catalogue_rig import Rig

__all__ = ["url"]

ACME, GLOBEX = TenantId("acme"), TenantId("globex")


def test_a_burst_passes_and_then_the_rate_holds() -> None:
    now_s = [0.0]
    limiter = TenantRateLimiter(per_s=2.0, burst=3, clock=lambda: now_s[0])
    for _ in range(3):
        with limiter.admit_request(ACME):
            pass
    with pytest.raises(ApiError) as told, limiter.admit_request(ACME):
        pass
    assert (told.value.status, told.value.headers["retry-after"]) == (429, "1")
    with limiter.admit_request(GLOBEX):  # a rate of its own
        now_s[0] += 0.5
    with limiter.admit_request(ACME):
        pass


def test_open_requests_are_bounded_except_the_operators() -> None:
    limiter = TenantRateLimiter(at_once=2)
    with ExitStack() as opened:
        for tenant in (ACME, ACME, GLOBEX, None, None, None):
            opened.enter_context(limiter.admit_request(tenant))
        with pytest.raises(ApiError, match="you have 2 open requests"), limiter.admit_request(ACME):
            pass
    with limiter.admit_request(ACME):
        pass


def test_idle_caller_is_removed() -> None:
    now_s = [0.0]
    limiter = TenantRateLimiter(clock=lambda: now_s[0])
    for number in range(5000):
        now_s[0] += 1.0
        with limiter.admit_request(TenantId(f"t{number}")):
            pass
    assert len(limiter._buckets) <= 1024


async def test_open_requests_of_one_tenant_do_not_block_a_rollback_of_another(catalogue: Rig) -> None:
    rollout = await catalogue.rolling(model="globex/bot")
    path = "/v1/artifacts/sha256:" + "c" * 64
    hog = [asyncio.ensure_future(catalogue.call("GET", path, "acme-writer")) for _ in range(600)]
    await asyncio.sleep(0)
    back = await catalogue.call("POST", f"/v1/rollouts/{rollout}/rollback", "globex-writer", json={"reason": "rude"})
    assert back.status_code == 200, back.text
    codes = {answer.status_code for answer in await asyncio.gather(*hog)}
    assert codes == {404, 429}


async def test_reads_of_a_tenant_do_not_block_its_own_rollback(catalogue: Rig) -> None:
    rollout = await catalogue.rolling()
    authenticator = catalogue.services.authenticator
    with ExitStack() as opened:
        for _ in range(authenticator.readers.at_once):
            opened.enter_context(authenticator.readers.admit_request(ACME))
        assert (await catalogue.call("GET", "/v1/models", "acme-reader")).status_code == 429
        path, body = f"/v1/rollouts/{rollout}/rollback", {"reason": "rude"}
        assert (await catalogue.call("POST", path, "acme-writer", json=body)).status_code == 200


async def test_operator_calls_bypass_the_queue_of_tenants(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("functions.registry.sql.database.MAX_PENDING", THREADS)
    loop, release = asyncio.get_running_loop(), asyncio.Event()

    def held() -> None:
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()

    holding = [asyncio.ensure_future(database.run(held)) for _ in range(THREADS)]
    await asyncio.sleep(0)
    assert await database.run(lambda: 7, for_operator=True) == 7
    release.set()
    await asyncio.gather(*holding)
