"""Names of token blocks: equal for equal tokens after equal tokens in the same scope, and only for those."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.prefix.block_names import block_name, chain, scope_seed, with_extra

TOKENS = st.lists(st.integers(0, 2**53), min_size=1, max_size=60)


def test_the_same_tokens_make_the_same_chain() -> None:
    tokens = array("q", range(300))
    names = chain(scope_seed("", ""), tokens, 128)
    assert len(names) == 2, "44 tokens are no block"
    assert names == chain(scope_seed("", ""), array("q", range(300)), 128)


def test_adapter_and_salt_each_make_another_chain() -> None:
    scopes = [("", ""), ("a", ""), ("", "a"), ("a", "b"), ("b", "a"), ("ab", "")]
    firsts = {chain(scope_seed(*scope), array("q", range(16)), 16)[0] for scope in scopes}
    assert len(firsts) == len(scopes)


def test_block_with_an_image_differs_from_its_tokens_alone() -> None:
    seed, tokens = scope_seed("", ""), array("q", range(16)).tobytes()
    assert block_name(with_extra(seed, [["image", 0]]), tokens) != block_name(seed, tokens)


@given(TOKENS, st.integers(0, 59), st.sampled_from([1, 3, 16]))
def test_a_changed_token_changes_every_name_from_its_block_on(tokens: list[int], at: int, size: int) -> None:
    at %= len(tokens)
    before = chain(7, array("q", tokens), size)
    tokens[at] += 1
    after = chain(7, array("q", tokens), size)
    same = [one == other for one, other in zip(before, after, strict=True)]
    assert same == [index < at // size for index in range(len(before))]


@given(TOKENS, st.sampled_from([1, 3, 16]))
def test_chain_built_block_by_block_is_the_same(tokens: list[int], size: int) -> None:
    """The agent names blocks one by one, the gateway whole prompts."""
    parent, names = 7, []
    for start in range(0, len(tokens) - size + 1, size):
        parent = block_name(parent, array("q", tokens[start : start + size]).tobytes())
        names.append(parent)
    assert names == list(chain(7, array("q", tokens), size))
