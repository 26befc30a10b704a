"""What a token from host memory costs: by the engine's sums where there are any, else as declared."""

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


def test_nothing_is_reloaded_where_nothing_is_kept() -> None:
    """A pool that declares a rate and starts its engine without offloading must not charge for hits."""
    assert looks((0, 0), declared=SAID, has_host=False).ms_per_token(SAID) == 0.0


def test_until_something_is_known_a_figure_is_assumed() -> None:
    assert looks((0, 0)).ms_per_token(NOTHING_SAID) == ASSUMED_MS
    assert looks((0, 0), (0.1, 100)).ms_per_token(NOTHING_SAID) == pytest.approx(1.0), "the first measurement counts"


@pytest.mark.parametrize(
    "counted",
    [
        [(5.0, 1000.0), (0.0, 0.0)],  # another process of the engine
        [(5.0, 1000.0), (5.0, 1000.0)],  # nothing was reloaded
        [(5.0, 1000.0)],  # what was before we looked may have been another time of day
    ],
)
def test_what_teaches_nothing(counted: list[tuple[float, float]]) -> None:
    assert looks(*counted).learnt_ms is None


def test_seconds_that_are_counted_after_their_tokens_are_not_lost() -> None:
    """Tokens count when a request is scheduled, seconds when its copy is done, which may be at the next look."""
    assert looks((0, 0), (0, 1000)).learnt_ms is None
    assert looks((0, 0), (0, 1000), (0.02, 1000)).learnt_ms == pytest.approx(0.02)
    assert looks((0, 0), (0, 1000), (0.02, 2000)).learnt_ms == pytest.approx(0.01)


def test_a_rate_is_bounded() -> None:
    assert looks((0, 0), (1e9, 1)).learnt_ms == MAX_MS
