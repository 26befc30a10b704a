"""A key from its making to its end: `shoal key create` and `revoke`, and what every gateway makes of it.

The revocation has to hold in every state of the controller: also while a Tenant is wrong and another controller leads,
when it goes on with what was last in force.
"""

import time
from collections.abc import Iterator

import pytest

from tests.cluster.conftest import Accounts
from tests.cluster.declarations import ByKubectl, key_id, minted
from tests.cluster.installation import Installation, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
NAME = "acceptance-keys"
SEEN_S = 60.0
STAYS_S = 20.0


@pytest.fixture(scope="module")
def declared(installation: Installation, accounts: Accounts) -> Iterator[None]:
    accounts.add(NAME, requestsPerMinute=100_000)
    yield


def created(installation: Installation, accounts: Accounts, name: str) -> tuple[str, str]:
    """A key that the registry made and that answers; its id."""
    made = key_id(name)
    with installation.operator() as shoal:
        began_s = time.monotonic()
        key = shoal("key", "create", NAME, "--id", made)
    taken_s = wait_until("the key answers", lambda: accounts.answers(key) == 200, SEEN_S)
    print(f"{made}: made in {time.monotonic() - began_s - taken_s:.1f} s, answers {taken_s:.2f} s later")
    return key, made


def revoked(installation: Installation, accounts: Accounts, key: str, made: str) -> None:
    """Refused by every gateway within seconds, and it stays so."""
    with installation.operator() as shoal:
        shoal("key", "revoke", NAME, made)
    asked = 3 * len(installation.pods("gateway"))

    def refused() -> bool:
        return all(accounts.answers(key) == 401 for _ in range(asked))

    taken_s = wait_until("the key is refused", refused, SEEN_S)
    until_s = time.monotonic() + STAYS_S
    while time.monotonic() < until_s:
        assert accounts.answers(key) == 401, "it is valid again"
    print(f"{made}: refused {asked} times in a row {taken_s:.2f} s after the revocation, and for {STAYS_S:.0f} s more")


def test_a_revoked_key_is_refused(installation: Installation, accounts: Accounts, declared: None) -> None:
    revoked(installation, accounts, *created(installation, accounts, "plain"))


def test_a_revoked_key_is_refused_while_its_tenant_is_wrong(
    installation: Installation, accounts: Accounts, declared: None
) -> None:
    if not isinstance(accounts.declarations, ByKubectl):
        pytest.skip("git refuses such a Tenant before it is in force")
    key, made = created(installation, accounts, "wrong")
    entry = installation.get("tenants", NAME)["spec"]["keys"]
    whole = accounts.declarations.sets[NAME]
    _, other = minted(installation, key_id("another"))
    accounts.declarations.declare(NAME, whole[0], accounts.body(NAME, [*entry, other], tier="nosuch"))
    try:
        installation.wait("condition=Ready=False", f"tenant/{NAME}", timeout_s=SEEN_S)
        former = installation.leader()
        installation.kubectl("-n", former.namespace, "delete", "pod", former.name)
        led = wait_until("another leads", lambda: _leads(installation, former.name), SEEN_S, every_s=0.5)
        print(f"another controller leads after {led:.1f} s")
        assert accounts.answers(key) == 200, "what was in force goes on"
        revoked(installation, accounts, key, made)
    finally:
        accounts.declarations.declare(NAME, *whole)
        installation.wait("condition=Ready", f"tenant/{NAME}", timeout_s=SEEN_S)
    assert accounts.answers(key) == 401


def _leads(installation: Installation, former: str) -> bool:
    holder = str(installation.get("lease", "shoal-controller")["spec"].get("holderIdentity") or former)
    return not holder.startswith(former)
