"""Results in parts: each line appears once, however many gateways processed it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.batch.parts import Done, LineResult, PartCorrupt, decode, encode
from functions.decisions.batch.record import Tally

RESULTS = st.builds(
    LineResult,
    st.integers(0, 60),
    st.booleans(),
    st.binary(max_size=20).map(lambda text: text.replace(b"\n", b" ")),
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 9),
)


@given(st.lists(RESULTS, min_size=1, max_size=20))
def test_part_round_trips(results: list[LineResult]) -> None:
    assert decode(encode(results)) == results


@pytest.mark.parametrize(
    "broken", [b"", b"{\n", b"[[1,1]]\nx\n", b"[[0,1,0,0,0]]\n", b"\xff\n", b"[[0,1,0,0,0]]\nx\ny\n"]
)
def test_invalid_part_is_refused(broken: bytes) -> None:
    with pytest.raises(PartCorrupt):
        decode(broken)


@given(st.lists(st.lists(RESULTS, max_size=12), max_size=12))
def test_each_line_is_in_the_output_once(parts: list[list[LineResult]]) -> None:
    done = Done()
    kept = [result for part in parts for result in done.add_new(part)]
    first: dict[int, LineResult] = {}
    for result in (result for part in parts for result in part):
        first.setdefault(result.ordinal, result)
    assert kept == list(first.values()), "of two answers the first counts"
    assert all(ordinal in done for ordinal in first)
    assert done.tally.done == len(first)
    assert done.tally == sum((one.tally for one in first.values()), start=_Sum()).tally


class _Sum:
    """A sum of tallies for the tests."""

    def __init__(self, tally: Tally | None = None) -> None:
        self.tally = tally or Tally()

    def __add__(self, other: Tally) -> "_Sum":
        return _Sum(self.tally.plus(other))


def test_line_without_result_is_not_done() -> None:
    done = Done()
    list(done.add_new([LineResult(8, True, b"x")]))
    assert 8 in done and 7 not in done and 9 not in done and 49_999 not in done
