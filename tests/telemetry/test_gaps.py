"""Gaps between pieces of a stream, converted to gaps between tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.quantile_sketch import bucket_of
from functions.decisions.rollout.evidence import STREAM_SHARES, GroupStats
from functions.telemetry.gap_histogram import MIDDLES_S, GapCounts, Gaps


def gaps_of(*gaps_s: float) -> Gaps:
    gaps = Gaps()
    for gap_s in gaps_s:
        gaps.add(gap_s)
    return gaps


def above(counts: GapCounts, seconds: float) -> int:
    return sum(times for gap, times in counts if MIDDLES_S[gap] > seconds)


def total(counts: GapCounts) -> int:
    return sum(times for _, times in counts)


def test_gaps_of_pieces_become_gaps_of_tokens() -> None:
    steady = gaps_of(*[0.1] * 50).between_tokens(501)
    assert total(steady) == 500
    assert [MIDDLES_S[gap] for gap, _ in steady] == [pytest.approx(0.01, rel=0.2)]
    stalled = gaps_of(*[0.1] * 49, 5.1).between_tokens(501)
    assert (total(stalled), above(stalled, 4.0), above(stalled, 0.03)) == (500, 1, 1)


@given(st.integers(1, 16), st.integers(20, 500), st.floats(0.005, 0.05))
def test_stall_is_seen_for_any_piece_size(tokens: int, pieces: int, gap_s: float) -> None:
    """Callers choose `stream_interval`: it must neither hide a stall nor create one."""
    counts = gaps_of(*[gap_s * tokens] * pieces, 5.0).between_tokens(tokens * (pieces + 1) + 1)
    assert above(counts, 2.0) == 1
    assert above(counts, 3.0 * gap_s) <= 1 + pieces * (gap_s * tokens > 5.0)


def test_pieces_that_came_together_are_as_they_came() -> None:
    gaps = gaps_of(0.01, 0.01, 0.04)
    assert gaps.between_tokens(4) == gaps.between_tokens(2)
    assert Gaps().between_tokens(9) == ()


def test_a_stall_in_a_stream_is_a_share_of_it() -> None:
    group = GroupStats()
    group.add_gaps([(bucket_of(10.0), 499), (bucket_of(5000.0), 1)])
    assert (group.inter_token_ms.count, group.inter_token_ms.count_above(1000)) == (STREAM_SHARES, 2)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=96))
def test_every_stream_has_all_its_shares(counts: list[int]) -> None:
    group = GroupStats()
    group.add_gaps(list(enumerate(counts)))
    assert group.inter_token_ms.count == STREAM_SHARES
    assert all(count > 0 for count in group.inter_token_ms.buckets().values())
