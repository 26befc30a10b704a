"""Map engine hashes to block names: names follow from tokens, and reported changes add up to the held blocks."""

from array import array
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.prefix.block_names import chain, scope_seed
from functions.replica.kv_events.engine_blocks import BlockNameChanges, EngineBlocks
from functions.replica.kv_events.source import AllBlocksCleared, BlocksRemoved, BlocksStored

SIZE = 2


def stored(hashes: list[int], tokens: list[int], parent: int | None = None, **more: Any) -> BlocksStored:
    return BlocksStored(hashes, tokens, SIZE, parent, **more)


def names(tokens: list[int], adapter: str = "", salt: str = "") -> set[int]:
    return set(chain(scope_seed(adapter, salt), array("q", tokens), SIZE))


def test_blocks_of_one_chain_in_several_events() -> None:
    blocks = EngineBlocks(100)
    blocks.apply_event(stored([1, 2], [5, 6, 7, 8]))
    blocks.apply_event(stored([3], [9, 10], parent=2))
    assert set(blocks.names) == names([5, 6, 7, 8, 9, 10])


def test_salt_and_adapter_are_told_apart() -> None:
    blocks = EngineBlocks(100)
    keys = [["bot", "s3cret"], ["bot"]]
    blocks.apply_event(stored([1, 2], [5, 6, 7, 8], lora_name="bot", extra_keys=keys))
    assert set(blocks.names) == names([5, 6, 7, 8], "bot", "s3cret")
    blocks.apply_event(stored([3, 4], [5, 6, 7, 8], extra_keys=[["s3cret"], None]))
    assert set(blocks.names) == names([5, 6, 7, 8], "bot", "s3cret") | names([5, 6, 7, 8], "", "s3cret")


def test_an_image_makes_a_name_that_no_tokens_have() -> None:
    blocks = EngineBlocks(100)
    blocks.apply_event(stored([1, 2], [5, 6, 7, 8], extra_keys=[["s3cret", ["image-hash", 0]], None]))
    assert len(blocks) == 2
    assert not set(blocks.names) & names([5, 6, 7, 8], "", "s3cret")


def test_orphans_other_tiers_and_other_groups_are_ignored() -> None:
    blocks = EngineBlocks(100)
    blocks.apply_event(stored([3], [9, 10], parent=2))
    assert (len(blocks), blocks.left_out_total) == (0, 1)
    blocks.apply_event(stored([1], [5, 6], medium="CPU"))
    blocks.apply_event(stored([1], [5, 6], group_idx=1))
    blocks.apply_event(stored([1], [5, 6, 7]))  # the run has gaps, so tokens cannot be assigned to blocks
    assert len(blocks) == 0
    blocks.apply_event(stored([1], [5, 6], medium="GPU", group_idx=0))
    blocks.apply_event(BlocksRemoved([1], "CPU"))
    assert len(blocks) == 1


def test_memory_is_bounded() -> None:
    blocks = EngineBlocks(3)
    blocks.apply_event(stored(list(range(10)), list(range(20))))
    assert (len(blocks), blocks.left_out_total) == (3, 7)
    blocks.apply_event(BlocksRemoved([0, 1, 2]))
    blocks.apply_event(stored([1], [5, 6]))
    assert set(blocks.names) == names([5, 6])


def test_everything_cleared_begins_anew() -> None:
    blocks = EngineBlocks(100)
    blocks.apply_event(stored([1, 2], [5, 6, 7, 8]))
    assert not blocks.apply_event(AllBlocksCleared())
    assert len(blocks) == 0
    assert blocks.pop_changes() == (BlockNameChanges(), BlockNameChanges()), "a new generation says it"


def copied(hashes: list[int]) -> BlocksStored:
    """Return the event that vLLM sends for host memory: hashes without tokens."""
    return BlocksStored(hashes, [], 0, medium="CPU")


def test_a_block_that_moves_to_host_memory() -> None:
    """The prologue's example. Reported as gone, a block would be recomputed; as held, its reload would look free."""
    blocks = EngineBlocks(100)
    blocks.apply_event(stored([1, 2], [5, 6, 7, 8]))
    first, second = chain(scope_seed("", ""), array("q", [5, 6, 7, 8]), SIZE)
    blocks.pop_changes()
    blocks.apply_event(copied([2]))
    assert blocks.pop_changes() == (BlockNameChanges(), BlockNameChanges()), "it is on the accelerator still"
    blocks.apply_event(BlocksRemoved([2]))
    assert blocks.pop_changes() == (BlockNameChanges(removed={second}), BlockNameChanges({second}))
    assert (set(blocks.names), set(blocks.host_names)) == ({first}, {second})
    blocks.apply_event(stored([2], [7, 8], parent=1))
    assert blocks.pop_changes() == (BlockNameChanges({second}), BlockNameChanges(removed={second})), "reloaded"
    blocks.apply_event(BlocksRemoved([2]))
    blocks.apply_event(BlocksRemoved([2], "CPU"))
    assert blocks.pop_changes() == (BlockNameChanges(removed={second}), BlockNameChanges())
    assert not blocks.host_names


def test_host_copy_reported_after_accelerator_eviction() -> None:
    """Within one step, vLLM sends the accelerator's events first."""
    blocks = EngineBlocks(100)
    blocks.apply_event(stored([1], [5, 6], extra_keys=[["s3cret"]]))
    blocks.apply_event(BlocksRemoved([1]))
    blocks.apply_event(copied([1]))
    assert set(blocks.host_names) == names([5, 6], "", "s3cret")


def test_chain_continues_after_blocks_in_host_memory() -> None:
    blocks = EngineBlocks(100)
    blocks.apply_event(stored([1], [5, 6]))
    blocks.apply_event(copied([1]))
    blocks.apply_event(BlocksRemoved([1]))
    blocks.apply_event(stored([2], [7, 8], parent=1))
    assert set(blocks.names) | set(blocks.host_names) == names([5, 6, 7, 8])


def test_self_described_host_events_name_no_blocks() -> None:
    """Host-memory events have no salt, so naming blocks by tokens would mix up tenants' blocks."""
    blocks = EngineBlocks(100)
    blocks.apply_event(stored([1], [5, 6], medium="CPU"))
    assert (blocks.host_names, blocks.left_out_total) == ((), 1)
    blocks.apply_event(stored([2], [5, 6], medium="STORAGE"))
    assert not len(blocks) and not blocks.host_names


def test_memory_of_host_blocks_is_bounded() -> None:
    blocks = EngineBlocks(10)
    blocks.max_host_blocks = 2
    blocks.apply_event(stored(list(range(5)), list(range(10))))
    blocks.apply_event(copied(list(range(5))))
    blocks.apply_event(BlocksRemoved(list(range(5))))
    assert (len(blocks.host_names), blocks.left_out_total) == (2, 3)


Step = st.tuples(st.sampled_from(["store", "remove", "copy", "drop", "tell"]), st.integers(0, 7))


@given(st.lists(Step, max_size=60))
def test_reported_changes_add_up_to_held_blocks(steps: list[tuple[str, int]]) -> None:
    """Two engine hashes may have one name (another path of the same adapter); it is held until both are removed."""
    blocks = EngineBlocks(100)
    told: list[set[int]] = [set(), set()]
    for what, at in [*steps, ("tell", 0)]:
        if what == "store":
            blocks.apply_event(stored([at], [at // 2, 0]))
        elif what == "remove":
            blocks.apply_event(BlocksRemoved([at]))
        elif what == "copy":
            blocks.apply_event(copied([at]))
        elif what == "drop":
            blocks.apply_event(BlocksRemoved([at], "CPU"))
        else:
            for place, changes in enumerate(blocks.pop_changes()):
                assert not changes.added & told[place] and changes.removed <= told[place]
                told[place] = (told[place] | changes.added) - changes.removed
    assert told == [set(blocks.names), set(blocks.host_names)]
    assert not told[0] & told[1], "in host memory alone"
