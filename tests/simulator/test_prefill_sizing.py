"""Sizes of a prefill and a decode pool for an SLO: enough, and no more than needed; and SLOs that one pool meets
cheaper.
"""

from dataclasses import replace

import pytest

from functions.simulator.fleet.engine_profile import PROFILES
from functions.simulator.prefill_sizing import Apart, PrefillReplicas, _readers, replicas_apart
from functions.simulator.replicas_needed import OfferedLoad, Unreachable, replicas_needed

PROFILE = PROFILES["h100-8b-vllm"]
READING = PrefillReplicas(profile=PROFILE, kv_bytes_per_token=131_072, kv_transfer_bytes_per_s=12.5e9)
LOAD = OfferedLoad(requests_per_s=6.0, prompt_tokens=2000, output_tokens=100, ttft_slo_s=2.0)


def apart(load: OfferedLoad, tried: list[str] | None = None) -> Apart:
    return replicas_apart(PROFILE, READING, load, 0, (tried if tried is not None else []).append)


def test_sized_pools_meet_the_slo_and_one_replica_less_does_not() -> None:
    tried: list[str] = []
    steady = replace(LOAD, itl_slo_s=0.025)
    found = apart(steady, tried)
    assert found.reading >= 1 and found.writing >= 1
    assert found.ttft_p99_ms <= 2000 and found.itl_p99_ms is not None and found.itl_p99_ms <= 25
    assert found.split_ratio > 0.5, "most prompts were read apart"
    total = found.reading + found.writing
    if total > 2:
        sizes = {sum(map(int, text.split(" replicas")[0].split(" + "))) for text in tried}
        assert total - 1 in sizes


def test_single_pool_needs_no_more_replicas_if_only_ttft_is_promised() -> None:
    found, one = apart(LOAD), replicas_needed(PROFILE, LOAD, 0, lambda _: None)
    assert one.replicas <= found.reading + found.writing


@pytest.mark.parametrize(
    ("replicas", "share", "readers"), [(1, 0.5, []), (2, 0.1, [1]), (4, 0.5, [2, 3, 1]), (4, 0.9, [3, 2])]
)
def test_each_pool_has_at_least_one_replica(replicas: int, share: float, readers: list[int]) -> None:
    assert list(_readers(replicas, share)) == readers


def test_slo_beyond_an_idle_replica_is_unreachable() -> None:
    with pytest.raises(Unreachable):
        apart(replace(LOAD, ttft_slo_s=0.1))
