"""Replicas needed for a load, found by trying."""

from dataclasses import replace

import pytest

from functions.simulator.fleet.engine_profile import PROFILES
from functions.simulator.replicas_needed import Needed, OfferedLoad, Unreachable, replicas_needed

PROFILE = PROFILES["l40s-8b"]
LOAD = OfferedLoad(requests_per_s=3.0, prompt_tokens=150, output_tokens=50, ttft_slo_s=1.5)


def needed(load: OfferedLoad) -> Needed:
    return replicas_needed(PROFILE, load, 0, lambda _: None)


def test_replicas_needed_meet_the_slo_and_one_less_does_not() -> None:
    tried: list[str] = []
    found = replicas_needed(PROFILE, LOAD, 0, tried.append)
    assert found.ttft_p99_ms <= 1500
    assert found.replicas == found.simulated_replicas > 1
    assert any(text.startswith(f"{found.replicas - 1} replicas") for text in tried)


@pytest.mark.soak
def test_large_load_is_simulated_in_part_and_scaled_at_most_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than four replicas' work counts as large here; as shipped it is forty, and a trial takes ten seconds."""
    monkeypatch.setattr("functions.simulator.replicas_needed.SLICE_REPLICAS", 4)
    small = needed(LOAD)
    large = needed(replace(LOAD, requests_per_s=60.0))
    assert large.simulated_replicas < large.replicas
    assert 5 * small.replicas < large.replicas <= 22 * small.replicas


def test_slo_beyond_a_single_replica_is_unreachable() -> None:
    with pytest.raises(Unreachable, match="one in a hundred has"):
        needed(replace(LOAD, prompt_tokens=5000))
    with pytest.raises(Unreachable, match="ms a token"):
        needed(replace(LOAD, itl_slo_s=0.01))


@pytest.mark.soak
def test_slo_missed_by_the_longest_prompts_alone_is_reported() -> None:
    with pytest.raises(Unreachable, match="requests hardly ever overlap"):
        needed(replace(LOAD, ttft_slo_s=0.705))


@pytest.mark.soak
def test_shorter_gaps_take_more_replicas() -> None:
    assert needed(replace(LOAD, itl_slo_s=0.05)).replicas > needed(LOAD).replicas
