"""A pool's size by its AutoscalingPolicy: bounds that move it, load that moves it, and no stream lost on the way down.

The pool's own policy is declared anew for these tests and then as it was; with the git source that is a push's work and
not done here.
"""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.callers import load, streams
from tests.cluster.installation import MODELS, Body, Installation, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
STREAMS, STREAM_WORDS = 20, 200
MOVED_S = 300.0


@pytest.fixture
def policy(installation: Installation) -> Iterator[Body]:
    if installation.source() != "kubernetes":
        pytest.skip("the pool's policy is git's")
    found = [
        body
        for body in installation.get("autoscalingpolicies")["items"]
        if body["spec"]["pool"] == installation.pool
    ]  # fmt: skip
    if not found:
        pytest.skip(f"no AutoscalingPolicy of {installation.pool}")
    yield found[0]
    _declare(installation, found[0], found[0]["spec"])
    _until(installation, int(found[0]["spec"]["replicas"]["min"]))


def test_bounds_move_the_pool_and_streams_end_whole(installation: Installation, key: str, policy: Body) -> None:
    least = int(policy["spec"]["replicas"]["min"])
    rules = {"scaleUp": ["queue_seconds > 100000: +1"], "scaleDown": ["utilization < 100%: -1"]}
    _declare(installation, policy, {**policy["spec"], **_bounds(least + 1, least + 1)})
    print(f"up to {least + 1} in {_until(installation, least + 1):.1f} s")
    with load(installation, key) as requests, streams(installation, key, STREAMS, STREAM_WORDS) as open_streams:
        _declare(installation, policy, {**policy["spec"], **_bounds(least, least), **rules})
        down_s = _until(installation, least)
    serving = {call.replica for call in open_streams.calls}
    print(
        f"down to {least} in {down_s:.1f} s, {STREAMS} streams on {len(serving)} replicas: "
        f"{open_streams.words()}; requests: {requests.words()}"
    )
    assert not open_streams.failed
    assert not requests.failed


def test_load_scales_the_pool_up(installation: Installation, key: str, policy: Body) -> None:
    """More streams than the replicas have places for: they wait, and the rule on waiting adds one."""
    least = int(policy["spec"]["replicas"]["min"])
    rules = {"scaleUp": ["utilization > 20%: +1", "queue_seconds > 0.05: +1"]}
    _declare(installation, policy, {**policy["spec"], **_bounds(least, least + 1), **rules})
    began_s = time.monotonic()
    with streams(installation, key, 3 * STREAMS, STREAM_WORDS) as open_streams, load(installation, key) as requests:
        _until(installation, least + 1)
        up_s = time.monotonic() - began_s
    print(
        f"{least} to {least + 1} in {up_s:.1f} s under {3 * STREAMS} streams: {open_streams.words()}; "
        f"requests: {requests.words()}"
    )
    assert not open_streams.failed


def _bounds(least: int, most: int) -> dict[str, Any]:
    return {"replicas": {"min": least, "max": most}}


def _declare(installation: Installation, policy: Body, spec: Body) -> None:
    metadata = {name: policy["metadata"][name] for name in ("name", "namespace")}
    installation.apply({**{name: policy[name] for name in ("apiVersion", "kind")}, "metadata": metadata, "spec": spec})


def _until(installation: Installation, replicas: int) -> float:
    """So many engines are ready, no more and no fewer wanted."""

    def there() -> bool:
        pool = installation.get("inferenceservices", "-l", f"shoal.dev/pool={installation.pool}", namespace=MODELS)
        wanted = pool["items"][0]["spec"]["predictor"].get("minReplicas")
        return wanted == replicas and len(installation.pods("engine")) == replicas

    return wait_until(f"{replicas} replicas", there, MOVED_S, every_s=1.0)
