"""An AutoscalingPolicy changes a pool's size by bounds and by load, and scaling down loses no stream.

The tests change the pool's own policy and restore it. They are skipped with the git source, which would need pushes.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.callers import Load, load, streams
from tests.cluster.installation import Body, Installation
from tests.cluster.pool_size import AT_ONCE, bounds, declare, least_of, policy_of, predictor, until_at

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
STREAMS, STREAM_WORDS = 20, 200
OVERFLOW = 3  # times the number of slots of all replicas
_SLOTS = "--max-num-seqs="


@pytest.fixture
def policy(installation: Installation) -> Iterator[Body]:
    if installation.source() != "kubernetes":
        pytest.skip("the pool's policy is git's")
    found = policy_of(installation)
    if found is None:
        pytest.skip(f"no AutoscalingPolicy of {installation.pool}")
    yield found
    declare(installation, found, {**found["spec"], **bounds(least_of(found), least_of(found)), **AT_ONCE})
    until_at(installation, least_of(found))
    declare(installation, found, found["spec"])


def test_bounds_move_the_pool_and_streams_end_whole(installation: Installation, key: str, policy: Body) -> None:
    least = least_of(policy)
    declare(installation, policy, {**policy["spec"], **bounds(least + 1, least + 1)})
    print(f"up to {least + 1} in {until_at(installation, least + 1):.1f} s")
    with load(installation, key) as requests, streams(installation, key, STREAMS, STREAM_WORDS) as open_streams:
        declare(installation, policy, {**policy["spec"], **bounds(least, least), **AT_ONCE})
        down_s = until_at(installation, least)
    serving = {call.replica for call in open_streams.calls}
    print(
        f"down to {least} in {down_s:.1f} s, {STREAMS} streams on {len(serving)} replicas: "
        f"{open_streams.words()}; requests: {requests.words()}"
    )
    assert not open_streams.failed
    assert not requests.failed


def test_load_scales_the_pool_up(installation: Installation, key: str, policy: Body) -> None:
    """Waves of streams exceed the slots of all replicas: some wait, and the rule on waiting adds a replica.

    Requests that cannot be served in time are rejected at once with `overloaded`; no other error and no lost stream.
    """
    least = least_of(policy)
    rules = {"scaleUp": ["utilization > 20%: +1", "queue_seconds > 0.05: +1"]}
    declare(installation, policy, {**policy["spec"], **bounds(least, least + 1), **rules})
    count = OVERFLOW * _slots(installation) * least
    with load(installation, key) as requests, _waves(installation, key, count) as waves:
        up_s = until_at(installation, least + 1)
    fates = Counter(call.fate for made in (requests, *waves) for call in made.ended)
    print(f"{least} to {least + 1} in {up_s:.1f} s under {len(waves)} waves of {count} streams: {dict(fates)}")
    assert set(fates) <= {"whole", "overloaded"}
    assert fates["whole"] >= count / OVERFLOW  # streams that had a slot


@contextmanager
def _waves(installation: Installation, key: str, count: int) -> Iterator[list[Load]]:
    """Start waves in sequence until the context ends; running streams end by themselves."""
    made: list[Load] = []
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            with streams(installation, key, count, STREAM_WORDS) as wave:
                made.append(wave)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield made
    finally:
        over.set()
        thread.join()


def _slots(installation: Installation) -> int:
    """Return the slots of one replica, from its engine's `--max-num-seqs`."""
    arguments = predictor(installation)["model"]["args"]
    (slots,) = [int(argument.removeprefix(_SLOTS)) for argument in arguments if argument.startswith(_SLOTS)]
    return slots
