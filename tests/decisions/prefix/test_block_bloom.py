"""Bloom filter of a replica's blocks: no false negatives, few false positives, bounded, and the same search as the
index.
"""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.prefix.block_bloom import MAX_BYTES, BloomTable, build

EVERYONE = (1 << 64) - 1


def names_of(seed: int, number: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.getrandbits(64) for _ in range(number)]


def table_of(*held: list[int]) -> BloomTable:
    table = BloomTable()
    for names in held:
        table.put(table.add_column(), build(names))
    return table


def test_size_follows_the_number_of_names() -> None:
    assert len(build(names_of(1, 1000))) == 2048
    assert len(build(names_of(1, 100_000))) == MAX_BYTES == 64 * 1024
    assert len(build([])) == 128


def test_false_answers_are_as_rare_as_promised() -> None:
    table = table_of(names_of(1, 40_000))
    false = sum(table.depths([name], EVERYONE) != {} for name in names_of(2, 20_000))
    assert false / 20_000 < 0.02


@given(st.lists(st.integers(0, 60), min_size=1, max_size=30), st.integers(1, 60))
def test_filter_never_underestimates_a_replicas_depth(depths: list[int], blocks: int) -> None:
    chain = names_of(3, 60)
    table = table_of(*([*chain[:depth], *names_of(at, 50)] for at, depth in enumerate(depths)))
    found = table.depths(chain[:blocks], EVERYONE)
    for column, depth in enumerate(depths):
        assert found.get(column, 0) >= min(depth, blocks)


@pytest.mark.parametrize("replicas", [3, 40])
def test_depths_of_few_and_many_replicas(replicas: int) -> None:
    """Few candidates are queried one by one, many at once."""
    chain = names_of(4, 500)
    table = table_of(*(chain[: 1 + at * 10] for at in range(replicas)))
    assert table.depths(chain, EVERYONE) == {at: 1 + at * 10 for at in range(replicas)}


def test_a_retired_column_holds_nothing() -> None:
    chain = names_of(5, 20)
    table = table_of(chain, chain)
    table.retire(0)
    assert table.depths(chain, EVERYONE) == {1: 20}
    assert table.add_column() == 0
    assert table.depths(chain, EVERYONE) == {1: 20}


@pytest.mark.parametrize("size", [0, 7, 8, 120, 136, MAX_BYTES * 2])
def test_filter_of_invalid_size_is_refused(size: int) -> None:
    table = BloomTable()
    with pytest.raises(ValueError, match="filter of"):
        table.put(table.add_column(), bytes(size))
