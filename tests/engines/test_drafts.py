"""Speculative decoding of the simulated engine: counters as in vLLM, unchanged tokens, and the agent's readings."""

import json

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from functions.engines.metrics import parse_metrics
from functions.engines.sim.core import EngineStats
from functions.engines.sim.settings import read_settings
from tests.engines.servers import FrozenClock, assembled
from tests.engines.virtual import VirtualEngine, make_limits

CONFIG = json.dumps({"method": "eagle3", "model": "/models/speculator", "num_speculative_tokens": 3})


def played(at_once: int, ratio: float, replies: list[int]) -> EngineStats:
    engine = VirtualEngine(make_limits(draft_tokens=at_once, draft_acceptance_ratio=ratio))
    for reply in replies:
        engine.submit([1, 2, 3], reply)
    return engine.run().core.stats


@given(st.integers(1, 5), st.floats(0.0, 1.0), st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_each_token_is_an_accepted_draft_token_or_starts_a_draft(
    at_once: int, ratio: float, replies: list[int]
) -> None:
    stats = played(at_once, ratio, replies)
    accepted = stats.accepted_draft_tokens.total()
    assert stats.drafts + accepted == sum(replies) - len(replies) == stats.generation_tokens - len(replies)
    assert accepted <= stats.drafts * at_once
    places = [stats.accepted_draft_tokens[place] for place in range(at_once)]
    assert places == sorted(places, reverse=True), "a guess counts only where those before it were right"


def test_all_guesses_right_and_none() -> None:
    all_right = played(3, 1.0, [25])
    assert (all_right.drafts, all_right.accepted_draft_tokens.total()) == (6, 18)
    none_right = played(3, 0.0, [25])
    assert (none_right.drafts, none_right.accepted_draft_tokens.total()) == (24, 0)


def test_the_flag_is_vllms() -> None:
    limits = read_settings(["--speculative-config", CONFIG, "--sim-draft-acceptance-ratio", "0.5"], {}).limits
    assert (limits.draft_tokens, limits.draft_acceptance_ratio) == (3, 0.5)
    assert read_settings([], {}).limits.draft_tokens == 0


def page(*flags: str) -> str:
    parts = assembled(FrozenClock(), *flags)
    stats = parts.engine.core.stats
    stats.drafts = 100
    stats.accepted_draft_tokens.update({0: 80, 1: 50, 2: 10})
    return generate_latest(parts.registry).decode()


def test_agent_reads_proposed_and_accepted_drafts() -> None:
    """vLLM has several similar metric names: drafts, and tokens by position in a draft."""
    found = parse_metrics(page("--speculative-config", CONFIG))
    assert (found.draft_tokens_total, found.accepted_draft_tokens_total) == (300, 140)
    of_two = page("--speculative-config", CONFIG)
    of_two += 'vllm:spec_decode_num_draft_tokens_total{engine="1",model_name="sim"} 30\n'
    of_two += 'vllm:spec_decode_num_accepted_tokens_total{engine="1",model_name="sim"} 7\n'
    both = parse_metrics(of_two)
    assert (both.draft_tokens_total, both.accepted_draft_tokens_total) == (330, 147)


def test_engine_without_speculation_reports_no_drafts() -> None:
    plain = page()
    assert "spec_decode" not in plain
    found = parse_metrics(plain)
    assert (found.draft_tokens_total, found.accepted_draft_tokens_total) == (0, 0)
