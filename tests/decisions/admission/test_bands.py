import pytest

from functions.api.snapshot import AdmissionEntry, BandEntry
from functions.decisions.admission import bands
from functions.decisions.admission.ticket import BANDS
from functions.decisions.catalogue_policies import DEFAULT_ADMISSION

RULES = bands.rules_of(DEFAULT_ADMISSION)
ALL, NOBODY = [True] * 3, [False] * 3


def order(
    waiting: list[bool], uses: list[float], *, starved: list[bool] = NOBODY, overloaded: bool = False
) -> list[int]:
    return bands.order(waiting, starved, uses, RULES, total_ratio=sum(uses), overloaded=overloaded)


def test_worked_example_of_lending() -> None:
    assert bands.may_dispatch(bands.BATCH, [0.0, 0.0, 0.66], 0.66, RULES, overloaded=False)
    assert not bands.may_dispatch(bands.BATCH, [0.0, 0.0, 0.68], 0.68, RULES, overloaded=False)


def test_interactive_may_take_nearly_all_of_an_idle_pool() -> None:
    assert bands.may_dispatch(0, [0.96, 0.0, 0.0], 0.96, RULES, overloaded=False)
    # 3 % are reserved for the next band
    assert not bands.may_dispatch(0, [0.98, 0.0, 0.0], 0.98, RULES, overloaded=False)


def test_bands_below_their_share_go_before_borrowers_and_urgent_ones_first() -> None:
    assert order(ALL, [0.1, 0.1, 0.02]) == [0, 1, 2]
    assert order(ALL, [0.65, 0.1, 0.02]) == [1, 2, 0]
    assert order([True, False, True], [0.65, 0.1, 0.02]) == [2, 0]


def test_batch_borrows_only_below_its_mark() -> None:
    assert order([False, False, True], [0.4, 0.1, 0.15]) == [2]
    assert order([False, False, True], [0.5, 0.1, 0.15]) == []


def test_under_overload_batch_falls_back_to_its_floor() -> None:
    assert order([False, False, True], [0.9, 0.0, 0.04], overloaded=True) == [2]
    assert order([False, False, True], [0.9, 0.0, 0.06], overloaded=True) == []
    assert order([False, False, True], [0.9, 0.0, 0.06], overloaded=False) == [2]  # its share is 10 %


def test_starved_band_goes_first() -> None:
    assert order(ALL, [0.1, 0.1, 0.9], starved=[False, False, True]) == [2, 0, 1]


def test_max_wait_is_half_of_the_slo_or_long_without_one() -> None:
    policy = AdmissionEntry(
        "p", ("*",), (BandEntry("interactive", 0.5, ttft_slo_ms=500), BandEntry("near-real-time", 0.5))
    )
    interactive, near_real_time, batch = bands.rules_of(policy)
    assert (interactive.slo_s, interactive.max_wait_s) == (0.5, 0.25)
    assert near_real_time.max_wait_s == 30.0
    assert (batch.share_ratio, batch.slo_s) == (bands.BATCH_FLOOR_RATIO, None)


def test_policy_sets_max_wait_of_a_class() -> None:
    policy = AdmissionEntry("p", ("*",), (BandEntry("interactive", 0.5, ttft_slo_ms=500, max_wait_ms=4000),))
    assert bands.rules_of(policy)[0].max_wait_s == 4.0


@pytest.mark.parametrize(
    ("band", "waiting", "part"),
    [(0, [True, False, False], 1.0), (0, ALL, 0.6), (1, ALL, 0.3), (1, [False, True, True], 0.9), (2, ALL, 0.1)],
)
def test_drain_share_of_a_band(band: int, waiting: list[bool], part: float) -> None:
    assert bands.drain_share_ratio(band, waiting, RULES, overloaded=False) == pytest.approx(part)


def test_engine_priority_grows_with_waiting_time() -> None:
    now_ms = 1_800_000_000_000
    urgent = [bands.engine_priority(band, now_ms) for band in BANDS]
    assert urgent == sorted(set(urgent))
    assert bands.engine_priority("batch", now_ms) < bands.engine_priority(
        "interactive", now_ms + 120_000
    )  # batch does not starve there
