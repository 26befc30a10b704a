"""Block index: how much of a chain each replica holds, compared with a plain walk, and its bounds."""

from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.prefix.block_index import MAX_NAMED, BlockIndex

EVERYONE = (1 << 4096) - 1
CHAIN = range(1000, 1040)


def index_of(*held: int) -> BlockIndex:
    """Replica i holds the first held[i] blocks of CHAIN."""
    index = BlockIndex(10_000)
    for blocks in held:
        slot = index.add_slot()
        assert slot is not None
        index.add(slot, CHAIN[:blocks])
    return index


def test_depths_of_three_replicas() -> None:
    assert index_of(8, 3, 0).depths(CHAIN[:8], EVERYONE) == {0: 8, 1: 3}


@given(st.lists(st.integers(0, 40), max_size=20), st.integers(1, 40), st.integers(0, 2**20 - 1))
def test_search_equals_a_walk(held: list[int], blocks: int, live: int) -> None:
    expected = {slot: min(depth, blocks) for slot, depth in enumerate(held) if depth and live >> slot & 1}
    assert index_of(*held).depths(CHAIN[:blocks], live) == expected


def test_empty_chain_has_no_holders() -> None:
    assert index_of(3).depths([], EVERYONE) == {}


def test_blocks_with_many_holders_count_for_no_replica() -> None:
    crowd = [5] * (MAX_NAMED + 1)
    found = index_of(*crowd, 30, 12).depths(CHAIN, EVERYONE)
    assert found == {MAX_NAMED + 1: 25, MAX_NAMED + 2: 7}, "as far as they hold more than everybody"


def test_removing_a_block_ends_the_prefix_there() -> None:
    index = index_of(20, 20)
    index.remove(0, CHAIN[10:20])
    assert index.depths(CHAIN, EVERYONE) == {0: 10, 1: 20}
    index.remove(0, CHAIN[:10])
    index.remove(1, CHAIN[:20])
    assert len(index) == 0


def test_retired_slot_is_wiped_before_reuse() -> None:
    index = index_of(20, 7)
    index.retire(0)
    assert index.add_slot() == 2, "not the one that is in the entries still"
    while not index.is_clean:
        index.sweep(3)
    assert index.add_slot() == 0
    assert index.depths(CHAIN, EVERYONE) == {1: 7}
    assert len(index) == 7


def test_full_index_adds_no_new_block() -> None:
    index = BlockIndex(5)
    first, second = index.add_slot(), index.add_slot()
    assert first is not None and second is not None
    assert index.add(first, CHAIN[:8]) == 3
    assert index.add(second, CHAIN[:8]) == 3, "what is there already is shared"
    assert index.depths(CHAIN[:8], EVERYONE) == {first: 5, second: 5}
    assert len(index) == 5


Step = st.tuples(st.sampled_from(["add", "remove", "retire", "sweep"]), st.integers(0, 3), st.integers(0, 40))


@given(st.lists(Step, max_size=40))
def test_index_matches_plain_sets_after_any_changes(steps: list[tuple[str, int, int]]) -> None:
    index = BlockIndex(10_000)
    slots = [index.add_slot() for _ in range(4)]
    sets: list[set[int]] = [set() for _ in slots]
    for what, who, blocks in steps:
        slot = slots[who]
        assert slot is not None
        if what == "add":
            index.add(slot, CHAIN[:blocks])
            sets[who] |= set(CHAIN[:blocks])
        elif what == "remove":
            index.remove(slot, CHAIN[blocks:])
            sets[who] -= set(CHAIN[blocks:])
        elif what == "retire":
            index.retire(slot)
            slots[who], sets[who] = index.add_slot(), set()
        else:
            index.sweep(blocks)
    live = sum(1 << slot for slot in slots if slot is not None)
    found = index.depths(CHAIN, live)
    assert found == {slot: len(held) for slot, held in zip(slots, sets, strict=True) if held}
