"""Host memory behind the KV cache in virtual time, with the gateway's own decisions: where it pays, and where it
costs.
"""

from dataclasses import replace
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from functions.api.ids import ReplicaId
from functions.simulator.fleet.engine_profile import PROFILES
from functions.simulator.fleet.prefix_cache import PrefixCache
from functions.simulator.fleet.reported_prefixes import ReportedPrefixes
from functions.simulator.host_memory import HostArm, HostExperiment

# A cache of a tenth, so that a minute of chats overflows it.
PROFILE = replace(PROFILES["h100-8b-vllm"], kv_tokens=40_000)
TRIAL = HostExperiment(profile=PROFILE, thinking_s=20.0, seconds=90.0)
A = ReplicaId("a")


@cache
def arm(host_gib: float, gigabytes_per_s: float = 25.0) -> HostArm:
    """Run the trial at three requests a second."""
    return TRIAL.arm(3.0, host_gib, gigabytes_per_s)


def test_chats_under_way_match_the_prologue() -> None:
    assert round(HostExperiment(profile=PROFILE).under_way(2.0)) == 244


def test_returning_chats_are_reloaded_and_not_recomputed() -> None:
    without, with_host = arm(0.0), arm(32.0)
    assert without.reloaded_ratio == 0.0
    assert with_host.reloaded_ratio > 0.1 and with_host.computed_ratio < 0.7 * without.computed_ratio
    assert with_host.ttft_p50_ms < without.ttft_p50_ms
    assert with_host.lost_ratio <= without.lost_ratio


def test_a_slow_link_costs_more_than_it_saves() -> None:
    """A reload that took no time in the model would make any link pay."""
    assert arm(32.0, 1.0).ttft_p50_ms > max(arm(0.0).ttft_p50_ms, 1.5 * arm(32.0).ttft_p50_ms)


def test_host_memory_no_larger_than_the_cache_gains_nothing() -> None:
    """The host memory only copies the cache: 4 GiB are 32,768 tokens, the cache has 40,000."""
    assert arm(4.0).computed_ratio == arm(0.0).computed_ratio > arm(32.0).computed_ratio


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6)), max_size=40), st.integers(0, 12))
def test_reported_prefixes_match_each_host_memory(sent: list[tuple[int, int]], host_blocks: int) -> None:
    told = ReportedPrefixes()
    cache = PrefixCache(8 * 16, 16, told.listener_of(A), host_tokens=host_blocks * 16)
    for chain, length in sent:
        cache.enter([chain * 100 + place for place in range(length)])
    for chain in range(5):
        blocks = [chain * 100 + place for place in range(6)]
        held = told.match(blocks)
        assert held.in_host.get(A, 0) * 16 == cache.to_reload(blocks)
        assert held.blocks.get(A, 0) * 16 == cache.peek(blocks, 1000) + cache.to_reload(blocks)
    cache.clear()
    assert not told.match([0]).blocks
