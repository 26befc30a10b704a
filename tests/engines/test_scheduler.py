"""The step loop: conservation of blocks, order of sequences, and durations."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.engines.sim.limits import EngineLimits, LimitsError, StepCosts
from functions.engines.sim.sequence import Status
from tests.engines.virtual import VirtualEngine, make_limits

REQUESTS = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": st.lists(st.integers(0, 3), min_size=1, max_size=40),
            "reply": st.integers(1, 24),
            "adapter": st.none() | st.integers(1, 2),
            "salt": st.none() | st.sampled_from(["x", "y"]),
            "priority": st.integers(-2, 2),
            "steps_before": st.integers(0, 3),
        }
    ),
    min_size=1,
    max_size=12,
)
LIMITS = st.builds(
    make_limits,
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(1, 32),
    num_kv_blocks=st.integers(16, 40),
    block_size_tokens=st.sampled_from([4, 8]),
    enable_prefix_caching=st.booleans(),
    priority_scheduling=st.booleans(),
)


def play(limits: EngineLimits, requests: list[dict[str, Any]], *, seed: int = 0) -> VirtualEngine:
    engine = VirtualEngine(limits, StepCosts(jitter_ratio=0.2), seed)
    for request in requests:
        for _ in range(request["steps_before"]):
            if engine.core.has_work:
                engine.step()
        asked = {key: value for key, value in request.items() if key != "steps_before"}
        engine.submit(**asked)
    return engine


@settings(deadline=None)
@given(LIMITS, REQUESTS)
def test_each_sequence_gets_every_token_once_and_in_order(limits: EngineLimits, requests: list[dict[str, Any]]) -> None:
    engine = play(limits, requests).run()
    for seq, request in zip(engine.seqs, requests, strict=True):
        numbers = [number for _, number in engine.tokens[seq.seq_id]]
        assert numbers == list(range(1, request["reply"] + 1))
        times = [when_s for when_s, _ in engine.tokens[seq.seq_id]]
        assert times == sorted(times)
    assert engine.core.stats.generation_tokens == sum(request["reply"] for request in requests)


@settings(deadline=None)
@given(LIMITS, REQUESTS)
def test_blocks_are_never_lost_and_never_shared_out_twice(limits: EngineLimits, requests: list[dict[str, Any]]) -> None:
    engine = play(limits, requests)
    while engine.core.has_work:
        engine.step()
        running = engine.core.scheduler.running
        for seq in running:
            assert len(seq.blocks) * limits.block_size_tokens >= seq.computed_tokens
            assert len(set(seq.blocks)) == len(seq.blocks)
        assert engine.held_blocks == len({block for seq in running for block in seq.blocks})
    assert engine.held_blocks == 0


@settings(deadline=None)
@given(LIMITS, REQUESTS)
def test_limits_are_never_exceeded(limits: EngineLimits, requests: list[dict[str, Any]]) -> None:
    engine = play(limits, requests)
    scheduler = engine.core.scheduler
    while engine.core.has_work:
        step = scheduler.schedule()
        assert step.total_tokens <= limits.max_num_batched_tokens
        assert 0 < len(scheduler.running) <= limits.max_num_seqs
        assert len(scheduler.running_adapters) <= limits.max_loras
        assert step.chunks, "a step that computes nothing makes no progress"
        scheduler.finish_step(step)


@settings(deadline=None)
@given(LIMITS, REQUESTS, st.data())
def test_an_abort_at_any_time_frees_everything_of_that_sequence_only(
    limits: EngineLimits, requests: list[dict[str, Any]], data: st.DataObject
) -> None:
    engine = play(limits, requests)
    victim = data.draw(st.sampled_from(engine.seqs))
    engine.core.begin_step(engine.now_s)
    engine.core.abort(victim)
    engine.core.end_step(engine.now_s + 1)
    assert victim.blocks == [] and victim.status in (Status.ABORTED, Status.FINISHED)
    engine.run()
    assert engine.held_blocks == 0
    assert all(seq.status is Status.FINISHED for seq in engine.seqs if seq is not victim)


@settings(deadline=None, max_examples=30)
@given(LIMITS, REQUESTS, st.integers(0, 5))
def test_the_same_seed_gives_the_same_run(limits: EngineLimits, requests: list[dict[str, Any]], seed: int) -> None:
    assert play(limits, requests, seed=seed).run().tokens == play(limits, requests, seed=seed).run().tokens


def test_another_seed_gives_other_times() -> None:
    request = {"prompt": [1, 2, 3], "reply": 5, "steps_before": 0}
    assert play(make_limits(), [request], seed=1).run().tokens != play(make_limits(), [request], seed=2).run().tokens


def test_a_prefill_chunk_delays_the_decodes_beside_it() -> None:
    """The worked example of limits.py: ten decodes beside 512 prompt tokens wait 34.6 ms instead of 9 ms."""
    limits = make_limits(max_num_seqs=16, max_model_len_tokens=1024, num_kv_blocks=400, max_num_batched_tokens=522)
    engine = VirtualEngine(limits)
    for _ in range(10):
        engine.submit([1], reply=10)
    engine.step()
    assert engine.step() == pytest.approx(0.009)
    engine.submit(range(600), reply=1)
    assert engine.step() == pytest.approx(0.0346)


def test_a_long_prompt_is_computed_in_chunks_and_speaks_after_the_last() -> None:
    engine = VirtualEngine(make_limits(max_num_batched_tokens=16))
    seq = engine.submit(range(40), reply=1)
    engine.step()
    engine.step()
    assert (seq.computed_tokens, seq.emitted_tokens) == (32, 0)
    engine.step()
    assert (seq.emitted_tokens, seq.status) == (1, Status.FINISHED)


def test_running_sequences_are_served_before_waiting_ones() -> None:
    engine = VirtualEngine(make_limits(max_num_batched_tokens=8))
    first = engine.submit(range(8), reply=4)
    engine.step()
    second = engine.submit(range(20, 28), reply=4)
    engine.step()
    assert (first.emitted_tokens, second.computed_tokens) == (2, 7), "one token for the first, the rest for the second"


def test_without_blocks_the_last_one_served_is_preempted_and_resumes_without_repeating_itself() -> None:
    limits = make_limits(num_kv_blocks=16, enable_prefix_caching=False, max_num_batched_tokens=64)
    engine = VirtualEngine(limits)
    first, second = engine.submit(range(28), reply=12), engine.submit(range(100, 128), reply=12)
    engine.run()
    assert (first.preemptions, second.preemptions >= 1) == (0, True)
    assert [number for _, number in engine.tokens[second.seq_id]] == list(range(1, 13))
    assert engine.core.stats.preemptions == second.preemptions


def test_under_the_priority_policy_the_least_important_is_preempted_and_the_most_important_starts_first() -> None:
    limits = make_limits(num_kv_blocks=16, priority_scheduling=True, max_num_batched_tokens=64, max_num_seqs=2)
    engine = VirtualEngine(limits)
    low = engine.submit(range(28), reply=12, priority=5)
    high = engine.submit(range(100, 128), reply=12, priority=-5)
    engine.run()
    assert (high.preemptions, low.preemptions >= 1) == (0, True)
    assert engine.tokens[high.seq_id][-1][0] < engine.tokens[low.seq_id][-1][0]


def test_an_adapter_too_many_is_deferred_and_others_overtake_it() -> None:
    engine = VirtualEngine(make_limits(max_loras=1, max_cpu_loras=4))
    engine.submit([1], reply=6, adapter=1)
    cold = engine.submit([2], reply=1, adapter=2)
    same = engine.submit([3], reply=1, adapter=1)
    plain = engine.submit([4], reply=1)
    engine.step()
    assert (same.status, plain.status, cold.status) == (Status.FINISHED, Status.FINISHED, Status.WAITING)
    assert engine.core.scheduler.deferred_seqs == 1
    engine.run()
    assert cold.status is Status.FINISHED


def test_a_cache_too_small_for_one_sequence_is_refused_at_start() -> None:
    with pytest.raises(LimitsError, match="cannot hold one sequence"):
        make_limits(num_kv_blocks=15, block_size_tokens=4, max_model_len_tokens=64)


def test_a_host_cache_smaller_than_the_slots_is_refused_at_start() -> None:
    with pytest.raises(LimitsError, match="max_cpu_loras"):
        make_limits(max_loras=3, max_cpu_loras=2)
