"""A pool's size by its AutoscalingPolicy: bounds that move it, load that moves it, and no stream lost on the way down.

The pool's own policy is declared anew for these tests and then as it was; with the git source that is a push's work and
not done here.
"""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.callers import Load, load, streams
from tests.cluster.installation import MODELS, Body, Installation, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
STREAMS, STREAM_WORDS = 20, 200
OVERFLOW = 3  # times what the replicas have places for
_SEATS = "--max-num-seqs="
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
    """Waves of streams, more than the replicas have places for: some wait, and the rule on waiting adds a replica."""
    count = OVERFLOW * _seats(installation) * int(policy["spec"]["replicas"]["min"])
    least = int(policy["spec"]["replicas"]["min"])
    rules = {"scaleUp": ["utilization > 20%: +1", "queue_seconds > 0.05: +1"]}
    _declare(installation, policy, {**policy["spec"], **_bounds(least, least + 1), **rules})
    began_s = time.monotonic()
    waves: list[Load] = []
    with load(installation, key) as requests:
        while not _is_at(installation, least + 1):
            assert time.monotonic() < began_s + MOVED_S, f"after {len(waves)} waves of {count} streams: no replica more"
            with streams(installation, key, count, STREAM_WORDS) as wave:
                waves.append(wave)
    up_s = time.monotonic() - began_s
    print(f"{least} to {least + 1} in {up_s:.1f} s under waves of {count} streams; requests: {requests.words()}")
    assert [wave.words() for wave in waves if wave.failed] == []


def _seats(installation: Installation) -> int:
    """Of one replica, as its engine's arguments say: sequences that it computes at once."""
    (seats,) = [
        int(argument.removeprefix(_SEATS)) for argument in _model(installation)["args"] if argument.startswith(_SEATS)
    ]
    return seats


def _bounds(least: int, most: int) -> dict[str, Any]:
    return {"replicas": {"min": least, "max": most}}


def _declare(installation: Installation, policy: Body, spec: Body) -> None:
    metadata = {name: policy["metadata"][name] for name in ("name", "namespace")}
    installation.apply({**{name: policy[name] for name in ("apiVersion", "kind")}, "metadata": metadata, "spec": spec})


def _until(installation: Installation, replicas: int) -> float:
    """So many engines are ready, no more and no fewer wanted."""

    return wait_until(f"{replicas} replicas", lambda: _is_at(installation, replicas), MOVED_S, every_s=1.0)


def _is_at(installation: Installation, replicas: int) -> bool:
    wanted = _predictor(installation).get("minReplicas")
    return bool(wanted == replicas and len(installation.pods("engine")) == replicas)


def _model(installation: Installation) -> Body:
    model: Body = _predictor(installation)["model"]
    return model


def _predictor(installation: Installation) -> Body:
    pool = installation.get("inferenceservices", "-l", f"shoal.dev/pool={installation.pool}", namespace=MODELS)
    predictor: Body = pool["items"][0]["spec"]["predictor"]
    return predictor
