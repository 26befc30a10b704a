"""A node loses power under load, and so does its zone if the node is the only one there; the others continue.

Only where SHOAL_CLUSTER_POWER_OFF and SHOAL_CLUSTER_POWER_ON say how (`{node}`), on a node whose loss leaves engines,
a gateway and the ingress. Kubernetes calls it NotReady after most of a minute; gateways know sooner that its engines
are silent. Requests that the ingress sends to a lost gateway are counted apart; they end when Kubernetes removes its
address.
"""

import os
import shlex
import subprocess
import time
from collections import Counter

import pytest

from tests.cluster.callers import Call, load, streams
from tests.cluster.installation import MODELS, Installation, conditions, wait_until
from tests.cluster.pool_size import held

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
OFF, ON = "SHOAL_CLUSTER_POWER_OFF", "SHOAL_CLUSTER_POWER_ON"
RATE_PER_S, STREAMS, WORDS = 5.0, 12, 400
SILENT_S = 15.0  # by then, broken connections or missing heartbeats are noticed
NOT_READY_S, TAKEN_OUT_S, AFTER_S = 180.0, 15.0, 30.0
BACK_S = 600.0


def test_lost_node_loses_only_its_own_requests(installation: Installation, key: str) -> None:
    if not (os.environ.get(OFF) and os.environ.get(ON)):
        pytest.skip(f"{OFF} and {ON} do not say how to take a node's power away and give it back")
    nodes = len(installation.get("nodes")["items"])
    with held(installation, max(2, nodes)):
        node = _one_that_may_go(installation)
        if node is None:
            pytest.skip("no node may go: each has all engines, all gateways or the ingress")
        _lose(installation, key, node)


def _lose(installation: Installation, key: str, node: str) -> None:
    engines = installation.pods("engine")
    theirs = {pod.name for pod in engines if pod.node == node}
    gateways = Counter(pod.node for pod in installation.pods("gateway"))
    told = f"{node} with {len(theirs)} of {len(engines)} engines, {gateways[node]} of {gateways.total()} gateways"
    with streams(installation, key, STREAMS, WORDS) as long, load(installation, key, rate_per_s=RATE_PER_S) as requests:
        wait_until("requests are answered", lambda: len(requests.ended) >= RATE_PER_S * 5, 60)
        off_s = time.monotonic()
        _power(OFF, node)
        try:
            seen_s = wait_until("it is NotReady", lambda: not _is_ready(installation, node), NOT_READY_S, every_s=1.0)
            time.sleep(TAKEN_OUT_S + AFTER_S)  # real: the load continues, and no request may be lost any more
        finally:
            _power(ON, node)
        on_s = time.monotonic()
        back_s = wait_until("all engines are back", lambda: _engines(installation) >= len(engines), BACK_S, every_s=1.0)
    failed = [call for call in requests.failed if call.began_s > off_s - 60]
    ours, ingress = [call for call in failed if _is_ours(call)], [call for call in failed if not _is_ours(call)]
    print(f"{told}: NotReady after {seen_s:.0f} s, back {back_s:.0f} s after its power; {requests.words()}")
    print(f"  said by a gateway: {_report(ours, off_s)}; by the ingress, or broken: {_report(ingress, off_s)}")
    print(
        f"  streams begun before: {Counter(call.fate for call in long.calls)}, on its engines {_on(long.calls, theirs)}"
    )
    assert not [call for call in ours if call.began_s > off_s + SILENT_S and call.began_s < on_s]
    assert not [call for call in failed if off_s + seen_s + TAKEN_OUT_S < call.began_s < on_s]
    elsewhere = [call for call in long.calls if call.replica and call.replica not in theirs and _is_ours(call)]
    assert not [call for call in elsewhere if not call.whole]


def _one_that_may_go(installation: Installation) -> str | None:
    """Return a node with an engine whose loss does least harm: preferably one without bus and registry."""
    roles = {role: {pod.node for pod in installation.pods(role)} for role in ("engine", "gateway", "bus", "registry")}
    roles["ingress"] = _of_the_ingress(installation)
    stay = ("engine", "gateway", "ingress")
    may_go = [node for node in sorted(roles["engine"]) if all(roles[role] - {node} for role in stay)]
    alone = [node for node in may_go if node not in roles["bus"] | roles["registry"]]
    return next(iter(alone + may_go), None)


def _of_the_ingress(installation: Installation) -> set[str]:
    spaces = installation.get("namespaces", "-l", "shoal.dev/ingress=true")["items"]
    names = [str(each["metadata"]["name"]) for each in spaces]
    return {pod.node for name in names for pod in installation.ready_pods(name)}


def _power(variable: str, node: str) -> None:
    told = os.environ[variable].format(node=node)
    subprocess.run(shlex.split(told), check=True, capture_output=True, timeout=300)


def _is_ready(installation: Installation, node: str) -> bool:
    return conditions(installation.get("node", node)).get("Ready", {}).get("status") == "True"


def _engines(installation: Installation) -> int:
    return len(installation.ready_pods(MODELS, "-l", f"shoal.dev/pool={installation.pool}"))


def _is_ours(call: Call) -> bool:
    """Return True if a gateway began to answer: not the ingress, and the connection did not break."""
    said = (call.code or "").startswith("status ")
    return bool(call.replica or call.code) and not said and call.broken is None


def _report(calls: list[Call], off_s: float) -> str:
    if not calls:
        return "0"
    began = [call.began_s - off_s for call in calls]
    fates = Counter(call.fate for call in calls)
    return f"{len(calls)}, begun {min(began):.1f} to {max(began):.1f} s after the loss ({dict(fates)})"


def _on(calls: list[Call], replicas: set[str]) -> str:
    there = [call for call in calls if call.replica in replicas]
    return f"{len(there)}, whole {sum(call.whole for call in there)}"
