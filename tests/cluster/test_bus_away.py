"""No bus at all for two minutes, and one that is stopped: who is within their limits is not refused for it.

A pod that is killed is replaced in seconds, so the StatefulSet has none meanwhile; processes are stopped where
SHOAL_CLUSTER_STOP and SHOAL_CLUSTER_CONTINUE say how (`{node}` and `{container}`, as SHOAL_CLUSTER_KILL has them).
"""

import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tests.cluster.callers import load
from tests.cluster.conftest import Accounts
from tests.cluster.installation import Installation, Pod, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
AWAY_S = 120.0
_BACK_S = 300.0
_STOP, _CONTINUE = "SHOAL_CLUSTER_STOP", "SHOAL_CLUSTER_CONTINUE"


@pytest.fixture(scope="module")
def limited(accounts: Accounts) -> str:
    """Two requests a second may pass, and one and a half are asked for."""
    return accounts.add("acceptance-bus-away", requestsPerMinute=120)


@contextmanager
def none_there(installation: Installation) -> Iterator[None]:
    former = int(installation.get("statefulset", "bus")["spec"]["replicas"])
    installation.kubectl("-n", "shoal", "scale", "statefulset/bus", "--replicas=0")
    wait_until("the bus is gone", lambda: not installation.pods("bus"), _BACK_S, every_s=1.0)
    try:
        yield
    finally:
        installation.kubectl("-n", "shoal", "scale", "statefulset/bus", f"--replicas={former}")
        wait_until("the bus is back", lambda: len(installation.pods("bus")) == former, _BACK_S, every_s=1.0)


@contextmanager
def stopped(installation: Installation) -> Iterator[None]:
    if not (os.environ.get(_STOP) and os.environ.get(_CONTINUE)):
        pytest.skip(f"{_STOP} and {_CONTINUE} do not say how to stop a container's process and let it go on")
    pods = installation.pods("bus")
    for pod in pods:
        _signalled(_STOP, pod)
    try:
        yield
    finally:
        for pod in pods:
            _signalled(_CONTINUE, pod)


def _signalled(variable: str, pod: Pod) -> None:
    told = os.environ[variable].format(node=pod.node, container=pod.containers["valkey"])
    subprocess.run(shlex.split(told), check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("away", [none_there, stopped])
def test_nobody_within_a_limit_is_refused(
    installation: Installation, key: str, limited: str, away: Callable[[Installation], AbstractContextManager[None]]
) -> None:
    with (
        away(installation),
        load(installation, key) as unlimited,
        load(installation, limited, rate_per_s=1.5) as within,
    ):
        time.sleep(AWAY_S)  # real: so long it stays away
    print(f"bus {away.__name__} for {AWAY_S:.0f} s: unlimited {unlimited.words()}; within {within.words()}")
    assert not unlimited.failed
    assert not within.failed
