"""Fixtures: the installation that the environment names, and tenants for this suite.

Removal comes last: what it takes away, all others need.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.cluster.declarations import Declarations, declarations_of, key_id, minted, quota_policy, tenant
from tests.cluster.installation import Body, Installation, found_installation, wait_until

UNLIMITED = "acceptance"
_LAST = "test_removal.py"
_IN_FORCE_S = 120.0


@dataclass(slots=True)
class Accounts:
    """Tenants of this run, each with its own tier and key; keys and Tenant entries by tenant."""

    installation: Installation
    declarations: Declarations
    keys: dict[str, str] = field(default_factory=dict)
    entries: dict[str, list[Body]] = field(default_factory=dict)

    def add(self, name: str, **limits: int) -> str:
        """Declare a tenant, wait until its key works, and return the key."""
        key, entry = minted(self.installation, key_id(name), "inference", "models:write")
        self.declarations.declare(name, quota_policy(name, **limits), self.body(name, [entry]))
        wait_until(f"the key of {name} answers", lambda: self.answers(key) == 200, _IN_FORCE_S)
        self.keys[name], self.entries[name] = key, [entry]
        return key

    def body(self, name: str, keys: list[Body], tier: str | None = None) -> Body:
        return tenant(name, tier or name, [f"{name}/*", self.installation.pool], keys)

    def answers(self, key: str) -> int:
        body = {
            "model": self.installation.pool,
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 1,
        }
        with self.installation.client(key) as client:
            return client.post("/chat/completions", json=body).status_code


@pytest.fixture(scope="session")
def installation() -> Installation:
    found = found_installation()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(scope="session")
def accounts(installation: Installation) -> Iterator[Accounts]:
    with declarations_of(installation) as declarations:
        accounts = Accounts(installation, declarations)
        yield accounts
        for name in accounts.keys:
            declarations.withdraw(name)


@pytest.fixture(scope="session")
def key(accounts: Accounts) -> str:
    """Return the key of a tenant whose limits no test reaches."""
    return accounts.add(UNLIMITED, requestsPerMinute=1_000_000)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name == _LAST)
