"""Text blocks to token blocks: the deepest known chain, within the bound."""

from array import array

from functions.gateway.prefix.prompt_chains import Learnt, PromptChains


def learnt(text_blocks: tuple[int, ...], names: int = 8) -> Learnt:
    return Learnt(text_blocks, 16, array("Q", range(names)), tuple(range(len(text_blocks))))


def test_next_turn_matches_the_previous_one() -> None:
    chains = PromptChains()
    first = learnt((1, 2, 3))
    chains.put(first)
    assert chains.deepest((1, 2, 3, 4, 5)) == (first, 3)
    assert chains.deepest((1, 2, 9)) == (first, 2)
    assert chains.deepest((9, 2, 3)) is None
    assert chains.deepest(()) is None


def test_common_beginning_matches_the_latest_prompt() -> None:
    chains = PromptChains()
    one, other = learnt((1, 2, 3)), learnt((1, 2, 7, 8))
    chains.put(one)
    chains.put(other)
    assert chains.deepest((1, 2, 3)) == (one, 3)
    assert chains.deepest((1, 2, 5)) == (other, 2)


def test_least_recently_used_chains_are_evicted() -> None:
    chains = PromptChains(max_cells=24)
    first, second, third = learnt((1, 2)), learnt((3, 4)), learnt((5, 6))
    chains.put(first)
    chains.put(second)
    assert chains.deepest((1,)) is not None
    chains.put(third)
    assert chains.deepest((3, 4)) is None
    assert chains.deepest((1, 2)) == (first, 2) and chains.deepest((5, 6)) == (third, 2)
    assert len(chains) == 2


def test_prompt_above_the_bound_is_not_stored() -> None:
    chains = PromptChains(max_cells=5)
    chains.put(learnt((1, 2)))
    assert len(chains) == 0


def test_evicting_a_chain_keeps_blocks_shared_with_others() -> None:
    chains = PromptChains(max_cells=22)
    one, other = learnt((1, 2)), learnt((1, 2, 3))
    chains.put(one)
    chains.put(other)
    chains.put(learnt((7,), names=2))
    assert chains.deepest((1, 2, 3)) == (other, 3)
