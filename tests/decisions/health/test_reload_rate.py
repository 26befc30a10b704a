"""Time to reload a token from host memory: measured from the engine's counters, or else as declared."""

import pytest

from functions.decisions.health.reload_rate import (
    ASSUMED_MS,
    MAX_MS,
    DeclaredReload,
    ReloadCounters,
    ReloadRate,
    observe,
)

NOTHING_SAID = DeclaredReload()
SAID = DeclaredReload(131_072, 25e9, 2)


def looks(*counted: tuple[float, float], declared: DeclaredReload = NOTHING_SAID, has_host: bool = True) -> ReloadRate:
    rate = ReloadRate()
    for load_s, tokens in counted:
        rate = observe(rate, ReloadCounters(load_s, tokens), declared, has_host=has_host)
    return rate


def test_worked_example_from_the_prologue() -> None:
    assert looks((0, 0), declared=SAID).ms_per_token(SAID) == pytest.approx(0.00524, abs=1e-4)
    rate = looks((0, 0), (0.040, 2000), declared=SAID)
    assert rate.ms_per_token(SAID) == pytest.approx(0.0076, abs=1e-4)


def test_engine_without_host_memory_has_no_reload_cost() -> None:
    """A pool that declares a rate but starts its engine without offloading must not charge for hits."""
    assert looks((0, 0), declared=SAID, has_host=False).ms_per_token(SAID) == 0.0


def test_unknown_reload_rate_is_assumed() -> None:
    assert looks((0, 0)).ms_per_token(NOTHING_SAID) == ASSUMED_MS
    assert looks((0, 0), (0.1, 100)).ms_per_token(NOTHING_SAID) == pytest.approx(1.0), "the first measurement counts"


@pytest.mark.parametrize(
    "counted",
    [
        [(5.0, 1000.0), (0.0, 0.0)],  # the engine restarted
        [(5.0, 1000.0), (5.0, 1000.0)],  # nothing was reloaded
        [(5.0, 1000.0)],  # traffic before the first sample may be from another time of day
    ],
)
def test_uninformative_samples_are_ignored(counted: list[tuple[float, float]]) -> None:
    assert looks(*counted).learnt_ms is None


def test_late_seconds_count_with_earlier_tokens() -> None:
    """Tokens count when a request is scheduled; seconds count when its copy ends, perhaps in the next sample."""
    assert looks((0, 0), (0, 1000)).learnt_ms is None
    assert looks((0, 0), (0, 1000), (0.02, 1000)).learnt_ms == pytest.approx(0.02)
    assert looks((0, 0), (0, 1000), (0.02, 2000)).learnt_ms == pytest.approx(0.01)


def test_a_rate_is_bounded() -> None:
    assert looks((0, 0), (1e9, 1)).learnt_ms == MAX_MS
