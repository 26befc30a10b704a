"""Engine hashes to names: what is stored has the name that its tokens have, and changes add up to what is held."""

from array import array
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.prefix.block_names import chain, scope_seed
from functions.replica.kv_events.engine_blocks import EngineBlocks
from functions.replica.kv_events.source import Cleared, Removed, Stored

SIZE = 2


def stored(hashes: list[int], tokens: list[int], parent: int | None = None, **more: Any) -> Stored:
    return Stored(hashes, tokens, SIZE, parent, **more)


def names(tokens: list[int], adapter: str = "", salt: str = "") -> set[int]:
    return set(chain(scope_seed(adapter, salt), array("q", tokens), SIZE))


def test_blocks_of_one_chain_in_several_events() -> None:
    blocks = EngineBlocks(100)
    blocks.take(stored([1, 2], [5, 6, 7, 8]))
    blocks.take(stored([3], [9, 10], parent=2))
    assert set(blocks.names) == names([5, 6, 7, 8, 9, 10])


def test_salt_and_adapter_are_told_apart() -> None:
    blocks = EngineBlocks(100)
    keys = [["bot", "s3cret"], ["bot"]]
    blocks.take(stored([1, 2], [5, 6, 7, 8], lora_name="bot", extra_keys=keys))
    assert set(blocks.names) == names([5, 6, 7, 8], "bot", "s3cret")
    blocks.take(stored([3, 4], [5, 6, 7, 8], extra_keys=[["s3cret"], None]))
    assert set(blocks.names) == names([5, 6, 7, 8], "bot", "s3cret") | names([5, 6, 7, 8], "", "s3cret")


def test_an_image_makes_a_name_that_no_tokens_have() -> None:
    blocks = EngineBlocks(100)
    blocks.take(stored([1, 2], [5, 6, 7, 8], extra_keys=[["s3cret", ["image-hash", 0]], None]))
    assert len(blocks) == 2
    assert not set(blocks.names) & names([5, 6, 7, 8], "", "s3cret")


def test_orphans_other_tiers_and_other_groups_are_left_out() -> None:
    blocks = EngineBlocks(100)
    blocks.take(stored([3], [9, 10], parent=2))
    assert (len(blocks), blocks.left_out_total) == (0, 1)
    blocks.take(stored([1], [5, 6], medium="CPU"))
    blocks.take(stored([1], [5, 6], group_idx=1))
    blocks.take(stored([1], [5, 6, 7]))  # gaps in the run: which tokens belong to which block nobody knows
    assert len(blocks) == 0
    blocks.take(stored([1], [5, 6], medium="GPU", group_idx=0))
    blocks.take(Removed([1], "CPU"))
    assert len(blocks) == 1


def test_memory_is_bounded() -> None:
    blocks = EngineBlocks(3)
    blocks.take(stored(list(range(10)), list(range(20))))
    assert (len(blocks), blocks.left_out_total) == (3, 7)
    blocks.take(Removed([0, 1, 2]))
    blocks.take(stored([1], [5, 6]))
    assert set(blocks.names) == names([5, 6])


def test_everything_cleared_begins_anew() -> None:
    blocks = EngineBlocks(100)
    blocks.take(stored([1, 2], [5, 6, 7, 8]))
    assert not blocks.take(Cleared())
    assert len(blocks) == 0
    assert blocks.take_changes() == (set(), set()), "a new generation says it"


Step = st.tuples(st.sampled_from(["store", "remove", "tell"]), st.integers(0, 7))


@given(st.lists(Step, max_size=60))
def test_what_was_told_adds_up_to_what_is_held(steps: list[tuple[str, int]]) -> None:
    """Two engine hashes may mean one name (another path of the same adapter): it is held until both are gone."""
    blocks = EngineBlocks(100)
    told: set[int] = set()
    for what, at in [*steps, ("tell", 0)]:
        if what == "store":
            blocks.take(stored([at], [at // 2, 0]))
        elif what == "remove":
            blocks.take(Removed([at]))
        else:
            added, removed = blocks.take_changes()
            assert not added & told and removed <= told
            told = (told | added) - removed
    assert told == set(blocks.names)
