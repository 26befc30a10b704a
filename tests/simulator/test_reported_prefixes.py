"""Reported prefixes match what caches hold, and the oracle's view of an engine matches what it does."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.simulator.events import Events
from functions.simulator.fleet.comparison import ModelledEngines
from functions.simulator.fleet.engine_profile import PROFILES
from functions.simulator.fleet.fluid_engine import FluidEngine, FluidSequence
from functions.simulator.fleet.prefix_cache import PrefixCache
from functions.simulator.fleet.replica import Replica
from functions.simulator.fleet.reported_prefixes import ReportedPrefixes
from functions.simulator.fleet.setting import POOL, PoolSetting, Setting, Zone
from functions.simulator.fleet.simulation import simulate
from functions.simulator.fleet.token_gaps import TokenGaps
from functions.simulator.router_port import Question
from functions.simulator.workload.synthetic import BLOCK_TOKENS, Traffic, synthetic
from studies.routers.simulated import ROUTERS

A, B = ReplicaId("a"), ReplicaId("b")
chains = st.lists(st.tuples(st.sampled_from([A, B]), st.integers(0, 4), st.integers(1, 6)), max_size=30)


@given(chains)
def test_reported_prefixes_match_each_cache(sent: list[tuple[ReplicaId, int, int]]) -> None:
    told = ReportedPrefixes()
    caches = {name: PrefixCache(8 * 16, 16, told.listener_of(name)) for name in (A, B)}
    for name, chain, length in sent:
        caches[name].enter([chain * 100 + place for place in range(length)])
    for chain in range(5):
        blocks = [chain * 100 + place for place in range(6)]
        held = {name: cache.peek(blocks, 1000) // 16 for name, cache in caches.items()}
        assert told.match(blocks).blocks == {name: count for name, count in held.items() if count}


def test_cleared_or_restarted_cache_is_forgotten() -> None:
    told = ReportedPrefixes()
    cache = PrefixCache(100 * 16, 16, told.listener_of(A))
    cache.enter((1, 2, 3))
    assert told.match((1, 2, 3, 4)).blocks == {A: 3}
    cache.clear()
    assert not told.match((1, 2, 3)).blocks
    cache.enter((1, 2))
    PrefixCache(100 * 16, 16, told.listener_of(A)).enter((1,))
    assert told.match((1, 2)).blocks == {A: 1}, "the former engine's cache went with it"


def test_cache_events_find_more_hits_than_round_robin() -> None:
    setting = Setting(replicas=4, profile=PROFILES["h100-8b"], block_tokens=BLOCK_TOKENS, admission=None)
    assert setting.routing.prefix_source == "events", "as policies have it where none was written"
    outcome = simulate(setting, synthetic(Traffic(requests_per_s=8.0, seconds=30.0), 1))
    plain = simulate(
        Setting(replicas=4, profile=PROFILES["h100-8b"], block_tokens=BLOCK_TOKENS, admission=None,
                router=ROUTERS["round-robin"]),
        synthetic(Traffic(requests_per_s=8.0, seconds=30.0), 1),
    )  # fmt: skip
    hits = [each.figures()["hit_ratio"] for each in (outcome, plain)]
    assert hits[0] > hits[1] + 0.1


@pytest.mark.parametrize("ahead", [(), (4_000,), (4_000, 9_000)])
def test_first_token_time_is_predicted_within_a_step(ahead: tuple[int, ...]) -> None:
    engine = FluidEngine(PROFILES["h100-8b"], TokenGaps())
    for number, tokens in enumerate(ahead):
        engine.add(FluidSequence(number, tokens, 300, None), 0.0)
    foretold_s = engine.first_token_s(3_000)
    engine.add(FluidSequence(99, 3_000, 5, None), 0.0)
    while all(work.number != 99 for work in engine.first):
        engine.advance(engine.next_s)
    assert engine.now_s == pytest.approx(foretold_s, rel=0.1)


def test_request_beyond_the_step_budget_counts_as_unscheduled() -> None:
    engine = FluidEngine(PROFILES["h100-8b"], TokenGaps())
    for number, tokens in enumerate((1_500, 1_500, 1_500)):
        engine.add(FluidSequence(number, tokens, 10, None), 0.0)
    assert (engine.running, engine.waiting, engine.unscheduled) == (3, 0, 1), "of 2,048 tokens two prompts have some"


def test_oracle_reads_the_present_state_without_side_effects() -> None:
    events = Events()
    pool = PoolSetting(name=POOL, profile=PROFILES["h100-8b"], replicas=1)
    replica = Replica(A, pool, Zone(""), block_tokens=16, gaps=TokenGaps(), adapters=None)
    engines = ModelledEngines({A: replica}, events)
    question = Question("r", PoolName("base"), EngineName("base"), (1, 2, 3), 16, 100, 10)
    assert engines.cached_tokens(A, question) == 0
    replica.engine.add(FluidSequence(1, 48, 400, None, blocks=(1, 2, 3)), 0.0)
    begun_s = engines.first_token_s(A, 10_000)
    events.at(0.015, partial(_check_prediction, engines, begun_s))
    events.at(0.016, lambda: None)
    events.run(lambda: events.now_s >= 0.016, 1.0)
    replica.engine.advance(1.0)
    assert engines.cached_tokens(A, question) == 48
    assert engines.engine(A).running == 1
    assert replica.engine.cache is not None
    assert replica.engine.cache.asked_tokens == 48, "to look is not to ask"


def _check_prediction(engines: ModelledEngines, begun_s: float) -> None:
    assert engines.first_token_s(A, 10_000) < begun_s, "some of what is ahead has been read since"
