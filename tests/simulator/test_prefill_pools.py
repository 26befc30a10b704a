"""Prefill pools in virtual time, with the gateway's own decisions: where they pay, and that no request is lost."""

from functions.simulator.fleet.engine_profile import PROFILES
from functions.simulator.prefill_pools import PrefillExperiment

TRIAL = PrefillExperiment(profile=PROFILES["h100-8b"], requests=120)


def test_prefill_pool_steadies_streams() -> None:
    one, two = TRIAL.arm(4096, 0.45, 0), TRIAL.arm(4096, 0.45, 2)
    assert two.split_ratio > 0.8 and one.split_ratio == 0.0
    assert two.gap_p99_ms * 4 < one.gap_p99_ms, (one, two)
    assert two.ttft_p99_ms < 1.3 * one.ttft_p99_ms
    assert one.lost_ratio == two.lost_ratio == 0.0


def test_short_prompts_are_not_split() -> None:
    assert TRIAL.arm(200, 0.3, 1).split_ratio == 0.0


def test_a_slow_link_is_not_used() -> None:
    """A transfer without cost in the model would send every prompt over the link."""
    slow = PrefillExperiment(profile=PROFILES["h100-8b"], requests=60, kv_transfer_bytes_per_s=12.5e6)
    assert slow.arm(4096, 0.5, 2).split_ratio == 0.0
