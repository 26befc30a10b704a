"""The staging overlay's processes together: three gateways behave as one, with only the pods' settings.

Registry, controller on an API server, bus with its users, six agents beside simulated engines. The limits are those of
tests/e2e/test_many_gateways.py (`shoal up`) and tests/cluster/test_quotas.py (a cluster).
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import httpx
import pytest

from tests.cluster.windows import RATES_PER_S, Window, allowed_in, is_drained, offered, polite
from tests.controller.kubernetes.api_server import ApiServer
from tests.controller.kubernetes.fixtures import TIMEOUT_S, kube_assets
from tests.e2e.more_gateways import Front, Gateway
from tests.e2e.test_many_gateways import talked
from tests.manifests.rendering import Rendering
from tests.manifests.whole_fleet import POOL, WholeFleet, running

pytestmark = [pytest.mark.servers, pytest.mark.timeout(TIMEOUT_S)]
PER_MINUTE = (60, 300)
NAMES = (*(f"{rate:g}/s" for rate in RATES_PER_S), "polite")
LIMITS = {f"limited-{per_minute}-{number}": per_minute for per_minute in PER_MINUTE for number in range(len(NAMES))}
TENANTS = {"unlimited": 1_000_000, "within": 120, **LIMITS}
WINDOW_S, WINDOW_SOAK_S = 20.0, 120.0  # 2 % of 300 a minute are two requests in the short one
BUS_AWAY_S, BUS_AWAY_SOAK_S = 5.0, 120.0
WITHIN_PER_S = 1.5  # below the limit of 120 a minute, 2 a second


@pytest.fixture(scope="module")
def fleet(staging: Rendering, crds_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeFleet]:
    """Start the fleet with its own API server: other tests have objects in the same namespaces."""
    folder = tmp_path_factory.mktemp("as-shipped")
    with ExitStack() as stack:
        server = ApiServer.start(folder / "kubernetes", kube_assets())
        stack.callback(server.close)
        yield stack.enter_context(
            running(staging, server, crds_dir, folder / "fleet", agents=6, gateways=3, limits=TENANTS)
        )


def front_of(fleet: WholeFleet, stack: ExitStack, *gateways: Gateway) -> Front:
    return Front(list(gateways), [stack.enter_context(fleet.client(each, "unlimited")) for each in gateways])


def test_sessions_are_at_home_at_every_gateway(fleet: WholeFleet) -> None:
    """The better of two rounds counts: on a busy machine a replica may seem slow, and its sessions move."""
    with ExitStack() as stack:
        alone = talked(front_of(fleet, stack, fleet.gateways[0]), "one", names_session=True, words=60)
        for attempt in range(2):
            three = talked(front_of(fleet, stack, *fleet.gateways), f"three-{attempt}", names_session=True, words=60)
            if three.at_home >= 0.99:
                break
    assert three.at_home >= 0.99
    assert three.cached >= 0.95 * alone.cached


@pytest.mark.parametrize("length_s", [WINDOW_S, pytest.param(WINDOW_SOAK_S, marks=pytest.mark.soak)])
async def test_shared_limits_are_exact(fleet: WholeFleet, length_s: float) -> None:
    """Each limit has its own tenant, and all are measured at once."""
    async with AsyncExitStack() as stack:
        windows = await asyncio.gather(*(_measured(fleet, stack, per_minute, length_s) for per_minute in PER_MINUTE))
    for per_minute, of_limit in zip(PER_MINUTE, windows, strict=True):
        for window, rate in zip(of_limit, [*RATES_PER_S, float("inf")], strict=True):
            print(f"{per_minute} a minute, {window.words()}")
            assert window.is_exact(allowed_in(length_s, per_minute, rate)), window.words()


async def _measured(fleet: WholeFleet, stack: AsyncExitStack, per_minute: int, length_s: float) -> list[Window]:
    names = [name for name, limit in LIMITS.items() if limit == per_minute]
    clients = [await stack.enter_async_context(fleet.by_lot(name)) for name in names]
    return await asyncio.gather(
        *(
            offered(client, POOL, name, rate, length_s, drained=is_drained(per_minute, rate))
            for client, name, rate in zip(clients, NAMES, RATES_PER_S, strict=False)
        ),
        polite(clients[-1], POOL, NAMES[-1], length_s),
    )


def test_a_gateway_that_joins_and_one_that_leaves_change_nothing(fleet: WholeFleet) -> None:
    """A new gateway knows the homes of conversations; a killed gateway's homes stay known."""
    with ExitStack() as stack:
        front = front_of(fleet, stack, *fleet.gateways)
        joined = stack.enter_context(fleet.gateway("gateway-joins"))
        leaves = stack.enter_context(fleet.gateway("gateway-leaves"))
        for attempt in range(2):
            talks = talked(front, f"join-{attempt}", names_session=True, words=40)
            talks.turn(front_of(fleet, stack, joined))
            if not attempt:
                talks.turn(front_of(fleet, stack, leaves))
                assert leaves.process is not None
                leaves.process.kill()
            talks.turn(front)
            print(f"with one that joins and one that leaves: {talks.at_home:.3f} at home")
            if talks.at_home >= 0.99:
                break
    assert talks.at_home >= 0.99


@pytest.mark.parametrize(
    ("hung", "away_s"),
    [
        (False, BUS_AWAY_S),
        pytest.param(False, BUS_AWAY_SOAK_S, marks=pytest.mark.soak),
        pytest.param(True, BUS_AWAY_SOAK_S, marks=pytest.mark.soak),
    ],
)
async def test_requests_within_a_limit_pass_while_the_bus_is_down(fleet: WholeFleet, hung: bool, away_s: float) -> None:
    """Every gateway continues with its part of the limit, and finds homes without messages."""
    async with fleet.by_lot("within") as within, fleet.by_lot("unlimited") as unlimited:
        with fleet.bus.away(hung=hung):
            statuses = await asyncio.gather(
                _statuses_at_rate(within, WITHIN_PER_S, away_s), _statuses_at_rate(unlimited, 5.0, away_s)
            )
        print(f"bus {'hung' if hung else 'killed'} for {away_s:g} s: {statuses}")
        assert [set(each) for each in statuses] == [{200}, {200}]
        after = await _statuses_at_rate(within, WITHIN_PER_S, BUS_AWAY_S)
    assert set(after) == {200}


async def _statuses_at_rate(client: httpx.AsyncClient, rate_per_s: float, length_s: float) -> Counter[int]:
    """Send requests at that rate and count the answers' status codes."""
    statuses: Counter[int] = Counter()
    began_s = time.monotonic()

    async def ask() -> None:
        body = {"model": POOL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
        statuses[(await client.post("/chat/completions", json=body)).status_code] += 1

    async with asyncio.TaskGroup() as group:
        for number in range(int(rate_per_s * length_s)):
            await asyncio.sleep(max(0.0, began_s + number / rate_per_s - time.monotonic()))  # real: that rate
            group.create_task(ask())
    return statuses
