"""Limits shared by several gateways admit exactly what is allowed at every rate, and all of it to a polite client.

This also holds while a gateway leaves, which returns its leases, and another joins.

`tests.cluster.windows` explains the counting; tests/manifests/test_fleet_as_shipped.py tests the same with processes.
"""

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.cluster.conftest import Accounts
from tests.cluster.installation import Installation
from tests.cluster.windows import RATES_PER_S, allowed_in, is_drained, offered, polite

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
WINDOW_S = 60.0
LEAVES_AFTER_S = 15.0


@pytest.mark.parametrize("leaves", [False, True], ids=["steady", "one-leaves"])
@pytest.mark.parametrize("per_minute", [60, 300])
async def test_a_shared_limit_is_exact(
    installation: Installation, accounts: Accounts, per_minute: int, leaves: bool
) -> None:
    """Each rate has its own tenant with the same limit, and all are measured at once."""
    names = [*(f"{rate:g}/s" for rate in RATES_PER_S), "polite"]
    tenants = [f"acceptance-{per_minute}-{number}{'-gone' * leaves}" for number in range(len(names))]
    keys = [accounts.add(tenant, requestsPerMinute=per_minute) for tenant in tenants]
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(installation.async_client(key)) for key in keys]
        *windows, _ = await asyncio.gather(
            *(
                offered(client, installation.pool, name, rate, WINDOW_S, drained=is_drained(per_minute, rate))
                for client, name, rate in zip(clients, names, RATES_PER_S, strict=False)
            ),
            polite(clients[-1], installation.pool, names[-1], WINDOW_S),
            _one_leaves(installation) if leaves else asyncio.sleep(0),
        )
    print(f"limit {per_minute} a minute, {len(installation.pods('gateway'))} gateways, {WINDOW_S:.0f} s")
    for window in windows:
        print("  " + window.words())
    for window, rate in zip(windows, [*RATES_PER_S, float("inf")], strict=True):
        assert window.is_exact(allowed_in(WINDOW_S, per_minute, rate)), window.words()


async def _one_leaves(installation: Installation) -> None:
    """Delete a gateway pod, which drains; its Deployment starts another, which joins within the window."""

    def delete() -> None:
        leaver = installation.pods("gateway")[0]
        installation.kubectl("-n", leaver.namespace, "delete", "pod", leaver.name, "--wait=false")

    await asyncio.sleep(LEAVES_AFTER_S)
    await asyncio.to_thread(delete)  # real processes: requests continue
