"""Labels of the busiest models: bounded in number, and the right ones."""

from hypothesis import given
from hypothesis import strategies as st

from functions.gateway.metrics import OTHER, RANK_EVERY_S, Busiest


def count_requests(busiest: Busiest, **times: int) -> None:
    for name, count in times.items():
        for _ in range(count):
            busiest.label(name)


def test_busy_model_replaces_a_quiet_one() -> None:
    forgotten: list[str] = []
    busiest = Busiest(2, forgotten.append)
    busiest.rank(0.0)
    count_requests(busiest, a=5, b=40, c=100)
    busiest.rank(RANK_EVERY_S - 1)
    assert busiest.label("c") == OTHER
    busiest.rank(RANK_EVERY_S)
    assert forgotten == ["a"]
    assert [busiest.label(name) for name in ("a", "b", "c")] == [OTHER, "b", "c"]


def test_similarly_busy_model_replaces_none() -> None:
    forgotten: list[str] = []
    busiest = Busiest(1, forgotten.append)
    busiest.rank(0.0)
    for minute in range(1, 20):
        count_requests(busiest, a=10, b=15)
        busiest.rank(minute * RANK_EVERY_S)
    assert forgotten == []


@given(st.lists(st.integers(0, 300), max_size=2000), st.integers(1, 20))
def test_number_of_labels_is_bounded_for_any_requests(asked_for: list[int], most: int) -> None:
    """With a new adapter in each request, as tenants can make them, at most `most` series exist at a time."""
    series: set[str] = set()
    busiest = Busiest(most, series.discard)
    for second, model in enumerate(asked_for):
        series.add(busiest.label(f"acme/{model}"))
        busiest.rank(second * 7.0)
        assert len(series - {OTHER}) <= most
