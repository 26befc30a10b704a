"""Prefix figures: tokens that came from caches, and whether that was predicted."""

import pytest
from prometheus_client import CollectorRegistry

from functions.gateway.prefix.metrics import PrefixStats
from functions.gateway.request.answers import Usage
from tests.gateway.rig import POOL


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_worked_example_of_the_prologue(registry: CollectorRegistry) -> None:
    figures = PrefixStats(registry)
    figures.answered(POOL, 300, Usage(400, 10, 256), 0.0)
    figures.answered(POOL, 0, Usage(400, 10, 100), 0.0)
    assert registry.get_sample_value("shoal_prefix_predicted_tokens_total", {"pool": POOL}) == 300
    over, under = (
        registry.get_sample_value("shoal_prefix_misjudged_tokens_total", {"pool": POOL, "direction": direction})
        for direction in ("over", "under")
    )
    assert (over, under) == (44, 100)
    figures.scrape()
    assert registry.get_sample_value("shoal_prefix_hit_ratio", {"pool": POOL}) == pytest.approx(356 / 800)


def test_hit_ratio_covers_about_the_last_minute(registry: CollectorRegistry) -> None:
    figures = PrefixStats(registry)
    for second in range(600):
        figures.answered(POOL, 0, Usage(100, 1, 0), float(second))
    for second in range(600, 900):
        figures.answered(POOL, 0, Usage(100, 1, 80), float(second))
    figures.scrape()
    assert registry.get_sample_value("shoal_prefix_hit_ratio", {"pool": POOL}) == pytest.approx(0.8, abs=0.01)


def test_hit_ratio_without_prompts_is_zero(registry: CollectorRegistry) -> None:
    figures = PrefixStats(registry)
    figures.answered(POOL, 0, Usage(0, 0, 0), 5.0)
    figures.scrape()
    assert registry.get_sample_value("shoal_prefix_hit_ratio", {"pool": POOL}) == 0
