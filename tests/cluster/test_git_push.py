"""If the installation follows a repository, `git push` deploys; a bad commit is reported and changes nothing."""

import time

import pytest

from tests.cluster.conftest import Accounts
from tests.cluster.declarations import ByGit, quota_policy
from tests.cluster.installation import Installation, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
NAME = "acceptance-git"
POLLED_S = 90.0
RECONCILE = "shoal.dev/reconcile-requested-at"


@pytest.fixture(scope="module")
def tenants_key(accounts: Accounts) -> str:
    if not isinstance(accounts.declarations, ByGit):
        pytest.skip("the installation takes its objects from the cluster")
    began_s = time.monotonic()
    key = accounts.add(NAME, requestsPerMinute=1000)
    print(f"a pushed tenant answers after {time.monotonic() - began_s:.1f} s")
    return key


def test_a_push_and_a_request_to_look_at_once(installation: Installation, accounts: Accounts, tenants_key: str) -> None:
    entry = accounts.entries[NAME]
    for number, at_once in enumerate((False, True)):
        limit = 2000 + number
        accounts.declarations.declare(NAME, quota_policy(NAME, requestsPerMinute=limit), accounts.body(NAME, entry))
        if at_once:
            stamp = f"{RECONCILE}={time.time_ns()}"
            installation.kubectl("-n", "shoal", "annotate", "--overwrite", "configmap/shoal-controller", stamp)
        taken_s = wait_until("it is in force", lambda: _limit(installation, tenants_key) == limit, POLLED_S)  # noqa: B023
        print(f"push to effect{', asked for at once' if at_once else ''}: {taken_s:.1f} s")
        assert not at_once or taken_s < 10.0


def test_a_bad_commit_is_told_and_changes_nothing(
    installation: Installation, accounts: Accounts, tenants_key: str
) -> None:
    before = _limit(installation, tenants_key)
    entry = accounts.entries[NAME]
    accounts.declarations.declare(NAME, accounts.body(NAME, entry, tier="nosuch"))
    record = ("configmap", "shoal-controller")
    taken_s = wait_until("the record tells", lambda: "nosuch" in str(installation.get(*record)["data"]), POLLED_S)
    print(f"the record tells after {taken_s:.1f} s")
    assert _limit(installation, tenants_key) == before
    accounts.declarations.declare(NAME, quota_policy(NAME, requestsPerMinute=before), accounts.body(NAME, entry))


def _limit(installation: Installation, key: str) -> int:
    body = {"model": installation.pool, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    with installation.client(key) as client:
        return int(client.post("/chat/completions", json=body).headers.get("x-ratelimit-limit-requests", 0))
