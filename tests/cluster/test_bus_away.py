"""The bus is down for two minutes, or stopped; requests within their limits are not rejected.

A pod that is killed is replaced in seconds, so the StatefulSet has none meanwhile; processes are stopped where
SHOAL_CLUSTER_STOP and SHOAL_CLUSTER_CONTINUE say how (`{node}` and `{container}`, as SHOAL_CLUSTER_KILL has them).
"""

import os
import shlex
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.cluster.callers import load
from tests.cluster.conftest import Accounts
from tests.cluster.installation import Installation, Pod, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
AWAY_S = 120.0
_BACK_S, _AFTER_S = 300.0, 10.0
_VALKEY = "valkey"
_STOP, _CONTINUE = "SHOAL_CLUSTER_STOP", "SHOAL_CLUSTER_CONTINUE"


@pytest.fixture(scope="module")
def limited(accounts: Accounts) -> str:
    """Return the key of a tenant with a limit of two requests a second; the test sends one and a half."""
    return accounts.add("acceptance-bus-away", requestsPerMinute=120)


def none_there(installation: Installation) -> str:
    former = int(installation.get("statefulset", "bus")["spec"]["replicas"])
    installation.kubectl("-n", "shoal", "scale", "statefulset/bus", "--replicas=0")
    try:
        wait_until("the bus is gone", lambda: not installation.pods("bus"), _BACK_S, every_s=1.0)
        time.sleep(AWAY_S)  # real: the outage lasts this long
    finally:
        installation.kubectl("-n", "shoal", "scale", "statefulset/bus", f"--replicas={former}")
        back_s = wait_until("the bus is back", lambda: len(installation.pods("bus")) == former, _BACK_S, every_s=1.0)
    return f"back {back_s:.0f} s later"


def stopped(installation: Installation) -> str:
    """Stop the bus, and each container that the kubelet starts after a failed liveness probe."""
    if not (os.environ.get(_STOP) and os.environ.get(_CONTINUE)):
        pytest.skip(f"{_STOP} and {_CONTINUE} do not say how to stop a container's process and let it go on")
    wanted = len(installation.pods("bus"))
    held: dict[str, Pod] = {}  # by container id
    until_s = time.monotonic() + AWAY_S
    try:
        while time.monotonic() < until_s:
            for pod in installation.pods("bus"):
                if pod.containers[_VALKEY] not in held and _signalled(_STOP, pod):
                    held[pod.containers[_VALKEY]] = pod
            time.sleep(1.0)  # real: the outage lasts this long
    finally:
        for pod in held.values():
            _signalled(_CONTINUE, pod)
    assert len(held) >= wanted, "nothing was stopped"
    back_s = wait_until("the bus is back", lambda: len(installation.pods("bus")) == wanted, _BACK_S, every_s=1.0)
    return f"{len(held)} processes of it; back {back_s:.0f} s later"


def _signalled(variable: str, pod: Pod) -> bool:
    """Send the signal; return False if the container no longer exists."""
    told = os.environ[variable].format(node=pod.node, container=pod.containers[_VALKEY])
    return subprocess.run(shlex.split(told), check=False, capture_output=True, timeout=60).returncode == 0


@pytest.mark.parametrize("away", [none_there, stopped])
def test_requests_within_a_limit_are_not_rejected(
    installation: Installation, key: str, limited: str, away: Callable[[Installation], str]
) -> None:
    """Requests pass both during the outage and after it."""
    with load(installation, key) as unlimited, load(installation, limited, rate_per_s=1.5) as within:
        told = away(installation)
        time.sleep(_AFTER_S)  # real: time for the first calls to the new bus
    print(
        f"bus {away.__name__} for {AWAY_S:.0f} s, {told}: unlimited {unlimited.words()}; within {within.words()}"
    )  # fmt: skip
    assert not unlimited.failed
    assert not within.failed
