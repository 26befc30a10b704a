"""`kubectl apply` (or `git push`) of a policy takes effect; an invalid one is reported."""

import json
import time

import httpx
import pytest

from tests.cluster.conftest import Accounts
from tests.cluster.declarations import key_id, minted, quota_policy
from tests.cluster.installation import Installation, conditions, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
NAME = "acceptance-policies"
CHANGES = 5
SEEN_S = 60.0


@pytest.fixture(scope="module")
def tenants_key(accounts: Accounts) -> str:
    return accounts.add(NAME, requestsPerMinute=1000)


def test_a_changed_limit_is_in_force_at_every_gateway(
    installation: Installation, accounts: Accounts, tenants_key: str
) -> None:
    """In twice as many consecutive answers as there are gateways, each has the new limit in its headers."""
    gateways = len(installation.pods("gateway"))
    entry = accounts.entries[NAME]
    taken = []
    for number in range(CHANGES):
        limit = 2000 + number
        began_s = time.monotonic()
        accounts.declarations.declare(NAME, quota_policy(NAME, requestsPerMinute=limit), accounts.body(NAME, entry))
        delivered_s = time.monotonic() - began_s
        with installation.client(tenants_key) as client:

            def told() -> bool:
                return all(_limit(client, installation.pool) == limit for _ in range(2 * gateways))  # noqa: B023

            taken.append(wait_until(f"the limit is {limit}", told, SEEN_S, every_s=0.0))
        print(f"delivered in {delivered_s:.2f} s, in force {taken[-1]:.2f} s later")
    assert max(taken) < SEEN_S


def test_what_the_schema_forbids_is_refused_with_its_path(installation: Installation) -> None:
    wrong = quota_policy("acceptance-wrong", requestsPerMinute=-1)
    wrong["metadata"]["namespace"] = "shoal"
    told = installation.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(wrong), check=False)
    print(told.strip())
    assert "spec.limits.requestsPerMinute" in told
    assert not installation.exists("quotapolicy", "acceptance-wrong")


def test_unknown_tier_is_reported_in_status_without_other_effects(
    installation: Installation, accounts: Accounts, tenants_key: str
) -> None:
    if installation.source() != "kubernetes":
        pytest.skip("a push with such an object is refused as a whole: tests/controller/gitops")
    _, entry = minted(installation, key_id("acceptance-tier"))
    began_s = time.monotonic()
    accounts.declarations.declare("acceptance-tier", accounts.body("acceptance-tier", [entry], tier="nosuch"))
    try:
        installation.wait("condition=Ready=False", "tenant/acceptance-tier", timeout_s=SEEN_S)
        ready = conditions(installation.get("tenant", "acceptance-tier"))["Ready"]
        print(f"after {time.monotonic() - began_s:.1f} s: {ready['reason']}: {ready['message']}")
        assert "nosuch" in ready["message"]
        assert accounts.answers(tenants_key) == 200
    finally:
        accounts.declarations.withdraw("acceptance-tier")


def _limit(client: httpx.Client, model: str) -> int:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    return int(client.post("/chat/completions", json=body).headers.get("x-ratelimit-limit-requests", 0))
