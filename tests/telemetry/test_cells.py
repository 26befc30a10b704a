"""`cells`: the same text as prometheus_client's own counters and histograms."""

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from functions.telemetry import cells

BUCKETS = (0.01, 0.5, 1.0, 30.0)


def text(registry: CollectorRegistry) -> list[str]:
    """Return the exposition lines without the library's `_create_batch` lines, which nothing reads."""
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


@given(
    st.lists(st.tuples(st.sampled_from(["a", 'b"\n\\', "é"]), st.floats(0, 1000))),
    st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(BUCKETS) | st.floats(-1, 100))),
)
def test_cells_equal_the_library_output(counted: list[tuple[str, float]], observed: list[tuple[str, float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counters = (
        cells.CounterFamily("n", "Counted", ["kind"], registry=ours),
        prometheus_client.Counter("n", "Counted", ["kind"], registry=theirs),
    )
    histograms = (
        cells.HistogramFamily("h_seconds", "Seen", ["kind"], buckets=BUCKETS, registry=ours),
        prometheus_client.Histogram("h_seconds", "Seen", ["kind"], buckets=BUCKETS, registry=theirs),
    )
    for kind, amount in counted:
        for counter in counters:
            counter.labels(kind).inc(amount)
    for kind, value in observed:
        for histogram in histograms:
            histogram.labels(kind).observe(value)
    assert text(ours) == text(theirs)


def test_without_labels_there_is_a_zero_from_the_start() -> None:
    registry = CollectorRegistry()
    counter = cells.CounterFamily("n", "Counted", registry=registry)
    histogram = cells.HistogramFamily("h", "Seen", buckets=(1.0,), registry=registry)
    assert registry.get_sample_value("n_total") == 0
    assert registry.get_sample_value("h_count") == 0
    counter.inc(2)
    histogram.observe(0.5)
    assert registry.get_sample_value("n_total") == 2
    assert registry.get_sample_value("h_bucket", {"le": "1.0"}) == 1


def test_two_of_one_name_are_refused() -> None:
    registry = CollectorRegistry()
    cells.CounterFamily("n", "Counted", registry=registry)
    with pytest.raises(ValueError, match="Duplicated"):
        cells.CounterFamily("n", "Counted again", registry=registry)


def test_a_wrong_number_of_labels_is_refused() -> None:
    counter = cells.CounterFamily("n", "Counted", ["kind"], registry=CollectorRegistry())
    with pytest.raises(ValueError, match="kind"):
        counter.labels("a", "b")
