"""The fluid engine, which computes only at changes, behaves like the engine that steps."""

import math
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.engines.sim.core import EngineCore
from functions.engines.sim.limits import EngineLimits, StepCosts
from functions.engines.sim.sequence import Sequence as Running
from functions.engines.sim.sequence import Status
from functions.simulator.fleet.engine_profile import PROFILES, EngineProfile
from functions.simulator.fleet.fluid_engine import FluidEngine, FluidSequence
from functions.simulator.fleet.prefix_cache import PrefixCache
from functions.simulator.fleet.token_gaps import TokenGaps
from tests.soak import sampled

SIM = PROFILES["sim"]
Arrival = tuple[float, int, int]  # seconds, prompt tokens, output tokens


def lengths(count: int, per_s: float) -> list[Arrival]:
    rng, at_s, found = Random(3), 0.0, []
    for _ in range(count):
        at_s += rng.expovariate(per_s)
        prompt, output = rng.lognormvariate(6.0, 1.0), rng.lognormvariate(4.5, 0.8)
        found.append((at_s, int(min(8000, prompt)) + 1, int(min(1000, output)) + 1))
    return found


def fluid(asked: Sequence[Arrival], profile: EngineProfile) -> tuple[dict[int, float], dict[int, float], FluidEngine]:
    """Return the times of first and last tokens by request, and the engine."""
    engine, first, last, number = FluidEngine(profile, TokenGaps()), {}, {}, 0
    while number < len(asked) or engine.next_s < math.inf:
        if number < len(asked) and asked[number][0] < engine.next_s:
            at_s, prompt, output = asked[number]
            engine.add(FluidSequence(number, prompt, output, number), at_s)
            number += 1
        else:
            engine.advance(engine.next_s)
        for work in engine.first:
            assert work.number not in first
            first[work.number] = engine.now_s
        for work in engine.over:
            assert work.number not in last
            last[work.number] = engine.now_s
        engine.first, engine.over = [], []
    return first, last, engine


def stepping(asked: Sequence[Arrival]) -> tuple[dict[int, float], dict[int, float], list[float]]:
    """Return the same from the simulated engine, with the gaps between tokens."""
    limits = EngineLimits(
        max_model_len_tokens=10_000,
        max_num_seqs=SIM.max_sequences,
        max_num_batched_tokens=SIM.step_budget_tokens,
        num_kv_blocks=SIM.kv_tokens // 16,
        enable_prefix_caching=False,
    )
    core = EngineCore(limits, StepCosts(), Random(0))
    now_s, number = 0.0, 0
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    gaps: list[float] = []
    while number < len(asked) or core.has_work:
        if not core.has_work:
            now_s = max(now_s, asked[number][0])
        while number < len(asked) and asked[number][0] <= now_s:
            core.add(Running.arrive(number, range(asked[number][1]), range(asked[number][2]), now_s=now_s))
            number += 1
        now_s += core.begin_step(now_s).duration_s
        for seq in core.end_step(now_s):
            if seq.emitted_tokens == 1:
                first[seq.seq_id] = now_s
            else:
                gaps.append(now_s - last[seq.seq_id])
            last[seq.seq_id] = now_s
            assert seq.status in (Status.RUNNING, Status.FINISHED)
    return first, last, gaps


def quantile(values: Sequence[float], q: float) -> float:
    return sorted(values)[int(q * len(values))]


@pytest.mark.parametrize("per_s", sampled([2.0, 8.0, 14.0], keep=[8.0]))
def test_agrees_with_the_engine_that_steps(per_s: float) -> None:
    """Loads go up to nine tenths of capacity (16/s); beyond, memory is full and preemptions multiply any difference."""
    asked = lengths(2000, per_s)
    first, last, engine = fluid(asked, SIM)
    true_first, true_last, gaps = stepping(asked)
    assert len(first) == len(last) == len(asked)
    ttfts = [first[number] - at_s for number, (at_s, _, _) in enumerate(asked)]
    true_ttfts = [true_first[number] - at_s for number, (at_s, _, _) in enumerate(asked)]
    assert quantile(ttfts, 0.5) == pytest.approx(quantile(true_ttfts, 0.5), rel=0.1)
    assert quantile(ttfts, 0.99) == pytest.approx(quantile(true_ttfts, 0.99), rel=0.1)
    whole = [sum(ends[number] - at_s for number, (at_s, _, _) in enumerate(asked)) for ends in (last, true_last)]
    assert whole[0] == pytest.approx(whole[1], rel=0.02)
    assert engine.gaps.quantile_s(0.99) == pytest.approx(quantile(gaps, 0.99), rel=0.1)
    assert engine.gaps.tokens == pytest.approx(len(gaps))


def test_single_request_takes_exactly_its_steps() -> None:
    first, last, _ = fluid([(1.0, 5000, 11)], SIM)
    reading_ms = 3 * SIM.step_ms + 5000 * SIM.prefill_ms_per_token
    assert first[0] == pytest.approx(1.0 + reading_ms / 1000)
    assert last[0] == pytest.approx(first[0] + 10 * (SIM.step_ms + SIM.decode_ms_per_sequence) / 1000)


def test_attention_makes_long_answers_slower() -> None:
    """Worked example: 10 tokens after a prompt of 1,000, at 0.01 ms a token held: 10 x 1,000 + 10 x 10 / 2 tokens."""
    profile = EngineProfile(
        step_ms=1.0, prefill_ms_per_token=0.0, decode_ms_per_sequence=0.0, decode_ms_per_kv_token=0.01,
        step_budget_tokens=2048, max_sequences=8, kv_tokens=100_000,
    )  # fmt: skip
    first, last, _ = fluid([(0.0, 1000, 11)], profile)
    assert last[0] - first[0] == pytest.approx((10 * 1.0 + 0.01 * (10 * 1000 + 50)) / 1000)


SMALL = EngineProfile(
    step_ms=1.0, prefill_ms_per_token=0.01, decode_ms_per_sequence=0.1, decode_ms_per_kv_token=0.0001,
    step_budget_tokens=64, max_sequences=4, kv_tokens=600,
)  # fmt: skip


@given(st.lists(st.tuples(st.floats(0, 0.5), st.integers(1, 500), st.integers(1, 300)), min_size=1, max_size=25))
def test_any_requests_each_end_once_and_free_all_memory(asked: list[Arrival]) -> None:
    """Memory is small and slots are few: requests are preempted repeatedly, and some exceed the cache alone."""
    first, last, engine = fluid(sorted(asked), SMALL)
    assert set(first) == set(last) == set(range(len(asked)))
    assert all(first[number] <= last[number] for number in first)
    assert engine.kv_tokens == pytest.approx(0.0, abs=0.01)
    assert engine.running == engine.waiting == 0
    assert engine.finished == len(asked)


def test_cached_blocks_are_not_prefilled_again() -> None:
    engine = FluidEngine(SIM, TokenGaps(), PrefixCache(SIM.kv_tokens, 64))
    took = []
    for number in range(2):
        began_s = engine.now_s
        engine.add(FluidSequence(number, 2000, 1, number, blocks=tuple(range(31))), began_s)
        engine.advance(engine.next_s)
        took.append(engine.now_s - began_s)
    assert took[0] == pytest.approx((SIM.step_ms + 2000 * SIM.prefill_ms_per_token) / 1000)
    assert took[1] == pytest.approx((SIM.step_ms + (2000 - 31 * 64) * SIM.prefill_ms_per_token) / 1000)


def test_lru_eviction_keeps_prefixes_longer_than_their_ends() -> None:
    cache = PrefixCache(kv_tokens=4 * 16, block_tokens=16)
    cache.enter((1, 2, 3))
    cache.enter((7, 8))
    assert cache.cached_tokens((1, 2, 3), 48) == 2 * 16  # its end, block 3, was evicted for the new blocks
    assert cache.cached_tokens((7, 8), 32) == 31  # the last token is always computed
    assert cache.cached_tokens((2,), 16) == 15
    assert cache.cached_tokens((9, 1), 32) == 0  # not cached from the first block on


def test_profiles_are_within_the_published_ranges() -> None:
    h100 = PROFILES["h100-8b"]
    assert 60 <= h100.step_ms + 256 * h100.prefill_ms_per_token <= 120
    published_ms = {"h100-8b": (10, 15), "a100-8b": (15, 25), "l40s-8b": (25, 35), "4xh100-70b": (25, 40)}
    for name, (least, most) in published_ms.items():
        profile = PROFILES[name]
        gap_ms = profile.step_ms + 16 * profile.decode_ms_per_sequence + 16_000 * profile.decode_ms_per_kv_token
        assert least <= gap_ms <= most, name


def test_the_simulated_engine_has_the_costs_of_its_server() -> None:
    costs = StepCosts()
    assert SIM.step_ms == pytest.approx(costs.overhead_s * 1000)
    assert SIM.prefill_ms_per_token == pytest.approx(costs.prefill_s_per_token * 1000)
    assert SIM.decode_ms_per_sequence == pytest.approx(costs.decode_s_per_seq * 1000)


def test_profile_with_step_budget_below_max_sequences_is_refused() -> None:
    with pytest.raises(ValueError, match="raise step_budget_tokens above max_sequences"):
        EngineProfile(
            step_ms=1.0, prefill_ms_per_token=1.0, decode_ms_per_sequence=0.0, decode_ms_per_kv_token=0.0,
            step_budget_tokens=8, max_sequences=8, kv_tokens=100,
        )  # fmt: skip
