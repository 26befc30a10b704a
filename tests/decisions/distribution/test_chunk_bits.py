"""Bitmaps of chunks: encoding and counting."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.distribution.chunk_bits import MAX_CHUNKS, Rarity, decode, encode, full, indexes, pick

counts = st.integers(1, 200)


@given(counts, st.data())
def test_bitmap_round_trips(count: int, data: st.DataObject) -> None:
    bits = data.draw(st.integers(0, full(count)))
    assert decode(encode(bits, count), count) == bits


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 1),
        ("AA==", 9),  # too short
        ("AAAA", 3),  # too long
        ("/w==", 7),  # has a bit beyond the last chunk
        ("\u00e9A==", 8),
        ("A-==", 8),
        (encode(0, MAX_CHUNKS) + "AAAA", MAX_CHUNKS + 24),
    ],
)
def test_invalid_bitmap_is_refused(text: str, count: int) -> None:
    with pytest.raises(ValueError, match="bitmap"):
        decode(text, count)


@given(st.sets(st.integers(0, 300), min_size=1), st.integers(0, 2**32))
def test_pick_is_one_of_the_chunks(chunks: set[int], seed: int) -> None:
    bits = sum(1 << chunk for chunk in chunks)
    assert list(indexes(bits)) == sorted(chunks)
    assert pick(bits, 301, Random(seed)) in chunks


def test_picks_are_spread_over_all_chunks() -> None:
    rng = Random(1)
    assert {pick(full(16), 16, rng) for _ in range(400)} == set(range(16))


@given(st.lists(st.integers(0, full(12)), max_size=8), st.integers(0, full(12)))
def test_rarest_chunk_has_the_fewest_holders(holders: list[int], wanted: int) -> None:
    rarity = Rarity(12, 8)
    for bits in holders:
        rarity.gain(bits)
    held = {chunk: sum(bits >> chunk & 1 for bits in holders) for chunk in indexes(wanted)}
    fewest = [chunk for chunk in held if held[chunk] == min(held.values())]
    assert list(indexes(rarity.rarest(wanted))) == fewest
    for bits in holders:
        rarity.lose(bits)
    assert rarity.rarest(full(12)) == full(12)
