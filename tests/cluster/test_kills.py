"""Each process killed under load, as the kernel kills or as a pod is deleted by force: what is lost, and for how long.

A killed gateway or engine takes along what it was at work on; that is all that may be lost. Registry, controller and
bus take nothing along.
"""

import time

import pytest

from tests.cluster.callers import Call, Load, load
from tests.cluster.installation import Installation, Pod, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
RATE_PER_S = 5.0
BEFORE_S, AFTER_S = 5.0, 20.0
BACK_S = 180.0
CONTAINERS = {
    "gateway": ("gateway", "gateway"),
    "engine": ("engine", "kserve-container"),
    "controller": ("controller", "controller"),
    "registry": ("registry", "registry"),
    "bus": ("bus", "valkey"),
}
# The span, in seconds after the kill, over which requests may fail; 0: none may. A gateway's replacement is not waited
# for where there are others; an engine is out once its agent or its connections say so.
LOST_S = {"gateway": 5.0, "engine": 10.0, "controller": 0.0, "registry": 0.0, "bus": 0.0}


@pytest.mark.parametrize("role", CONTAINERS)
def test_a_killed_process_takes_only_its_own_along(installation: Installation, key: str, role: str) -> None:
    asked, container = CONTAINERS[role]
    pods = installation.pods(asked)
    if role in ("gateway", "engine") and len(pods) < 2:
        pytest.skip(f"the only {role}: nobody is there to take over")
    pod = installation.leader() if role == "controller" else pods[0]
    with load(installation, key, rate_per_s=RATE_PER_S) as requests:
        wait_until("requests are answered", lambda: len(requests.ended) >= RATE_PER_S * BEFORE_S, 60)
        killed_s = time.monotonic()
        how = installation.kill(pod, container)
        back_s = wait_until(f"{role} is back", lambda: _is_back(installation, asked, pod, len(pods)), BACK_S, 1.0)
        wait_until("the load goes on", lambda: time.monotonic() > killed_s + AFTER_S, BACK_S)
    lost = [call for call in requests.failed if call.ended_s > killed_s]
    print(f"{role} ({how}): back after {back_s:.1f} s; {requests.words()}{_by_whom(lost, killed_s)}")
    assert [call for call in requests.failed if call.ended_s <= killed_s] == []
    _check(requests, lost, killed_s, LOST_S[role])


def _is_back(installation: Installation, role: str, killed: Pod, wanted: int) -> bool:
    """Return True if as many pods are ready as before, and the killed one was replaced or restarted."""
    pods = installation.pods(role)
    same = [pod for pod in pods if pod.name == killed.name]
    is_new = all(pod.restarts > killed.restarts or pod.containers != killed.containers for pod in same)
    return len(pods) >= wanted and is_new


def _check(requests: Load, lost: list[Call], killed_s: float, allowed_s: float) -> None:
    late = [call for call in lost if call.began_s > killed_s + allowed_s]
    assert not late, f"begun more than {allowed_s} s after the kill: {late[:3]}"
    assert allowed_s or not lost, lost[:3]
    assert len(requests.ended) >= RATE_PER_S * AFTER_S * 0.8


def _by_whom(lost: list[Call], killed_s: float) -> str:
    if not lost:
        return ""
    return f"; the last was begun {max(call.began_s for call in lost) - killed_s:.1f} s after the kill"
