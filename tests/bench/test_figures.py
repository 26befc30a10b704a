"""`loadtests.bench.figures`, and the tables and pictures of `report` and `picture`."""

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from loadtests.bench.figures import CACHE_AWARE, GOALS, RR, Sample, Spread, added, by_figure, ratio, reached, spread
from loadtests.bench.picture import svg
from loadtests.bench.report import cell, show


def samples(figure: str, **by_contender: list[float]) -> list[Sample]:
    names = {"shoal": "shoal", "rr": RR, "cache_aware": CACHE_AWARE, "direct": "direct", "litellm": "litellm"}
    return [
        Sample(number, names[name], figure, value)
        for name, values in by_contender.items()
        for number, value in enumerate(values)
    ]


def test_a_ratio_is_taken_within_each_round() -> None:
    found = by_figure(samples("request_1k_us", shoal=[40, 40, 90], rr=[80, 100, 180]))
    assert ratio(found, "shoal", RR, "request_1k_us") == Spread(0.5, 0.4, 0.5)


def test_a_round_that_lacks_one_of_the_two_does_not_count() -> None:
    found = by_figure(samples("request_1k_us", shoal=[40, 50], rr=[80]))
    assert ratio(found, "shoal", RR, "request_1k_us") == Spread(0.5, 0.5, 0.5)
    assert ratio(found, "shoal", CACHE_AWARE, "request_1k_us") is None


def test_an_added_round_trip_is_over_direct_in_the_same_round() -> None:
    found = by_figure(samples("rtt_p50_us", shoal=[100, 140], direct=[30, 50]))
    assert added(found, "shoal", "rtt_p50_us") == Spread(80, 70, 90)


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=9))
def test_a_median_is_within_its_range(values: list[float]) -> None:
    found = spread(by_figure(samples("stream_kib", shoal=values)), "shoal", "stream_kib")
    assert found is not None
    assert min(values) == found.least <= found.middle <= found.most == max(values)


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.figure)
def test_every_goal_is_judged_by_its_own_measure(goal) -> None:  # type: ignore[no-untyped-def]
    rounds = [goal.at_most * 1000, goal.at_most * 1000]
    own = [value + 1 for value in rounds] if goal.kind == "added" else rounds
    base = [1000.0, 1000.0] if goal.kind == "ratio" else [1.0, 1.0]
    found = by_figure(samples(goal.figure, shoal=own, rr=base, cache_aware=base, direct=base))
    judged = reached(found, goal)
    assert judged is not None
    assert judged.middle == pytest.approx(goal.at_most * (1 if goal.kind == "ratio" else 1000))
    assert reached(by_figure([]), goal) is None


def test_goals_table_marks_missed_goal() -> None:
    console = Console(width=200)
    with console.capture() as captured:
        show(by_figure(samples("request_1k_us", shoal=[70, 72], rr=[90, 100])), ["shoal", RR], console)
    text = captured.get()
    assert "71.0 [70.0–72.0]" in text
    assert "0.75 [0.72–0.78]" in text
    assert "≤ 0.6 × sglang-router rr" in text
    assert " no " in text.splitlines()[-2]


def test_a_cell_without_a_range_is_one_number() -> None:
    assert cell(Spread(4.0, 4.0, 4.0), 2) == "4.00"
    assert cell(None, 2) == "–"


def test_picture_is_valid_xml_and_cuts_off_long_bars() -> None:
    found = by_figure(samples("request_1k_us", shoal=[40.0], rr=[80.0], litellm=[15_000.0]))
    root = ElementTree.fromstring(svg(found, ["direct", "shoal", RR, "litellm"], "2 < 3 CPUs"))
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "2 < 3 CPUs" in words
    assert "15,000.0" in words
    bars = [float(element.attrib["width"]) for element in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
    shoal, rr, litellm = bars
    assert shoal < rr < litellm <= 260
    assert rr == pytest.approx(2 * shoal, abs=0.2)
    assert "goal 48" in words
