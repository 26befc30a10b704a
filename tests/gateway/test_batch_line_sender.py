"""What a batch reads in the answers to its lines."""

import pytest

from functions.gateway.batch.line_sender import seconds_of
from functions.gateway.quota.refusals import duration


@pytest.mark.parametrize("microseconds", [0, 1_000, 10_000, 999_000, 1_000_000, 6_500_000, 62_000_000, 3_723_000_000])
def test_a_duration_is_read_as_it_was_written(microseconds: int) -> None:
    assert seconds_of(duration(microseconds)) == pytest.approx(microseconds / 1e6, abs=1.0)
    assert seconds_of(duration(10_000)) == pytest.approx(0.01)
