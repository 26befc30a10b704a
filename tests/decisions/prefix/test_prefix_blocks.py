"""prefix_blocks: prompts with a common beginning, and only those, have equal first hashes."""

from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.prefix.block_names import BLOCK_BYTES, MAX_BLOCKS, block_bytes_for, seed_of, text_blocks

SEED = seed_of("salt", "acme/bot@sha256:0123456789abcdef")
TEXTS = st.binary(max_size=3000)


def test_worked_example_of_the_prologue() -> None:
    assert block_bytes_for(1100) == 512
    assert len(text_blocks(b"x" * 1100, SEED, 512)) == 2
    assert block_bytes_for(300_000) == 1024
    assert len(text_blocks(b"x" * 300_000, SEED, 1024)) == 292


@given(common=TEXTS, one=TEXTS, other=TEXTS)
def test_equal_first_hashes_match_equal_whole_blocks(common: bytes, one: bytes, other: bytes) -> None:
    first, second = common + one, common + other
    mine, theirs = text_blocks(first, SEED, BLOCK_BYTES), text_blocks(second, SEED, BLOCK_BYTES)
    assert len(mine) == len(first) // BLOCK_BYTES
    for index, (a, b) in enumerate(zip(mine, theirs, strict=False)):
        end = (index + 1) * BLOCK_BYTES
        assert (a == b) == (first[:end] == second[:end])


@given(text=st.binary(min_size=BLOCK_BYTES, max_size=2000))
def test_equal_prompts_of_two_tenants_or_two_adapters_share_nothing(text: bytes) -> None:
    chains = [
        text_blocks(text, seed_of(salt, name), BLOCK_BYTES)
        for salt, name in (("s1", "base"), ("s2", "base"), ("s1", "bot"), ("", "base"), ("base", ""))
    ]
    for index, chain in enumerate(chains):
        assert all(set(chain).isdisjoint(other) for other in chains[index + 1 :])


def test_prompts_with_equal_seed_and_beginning_share_hashes() -> None:
    assert text_blocks(b"y" * 600, seed_of("", "base"), 512) == text_blocks(b"y" * 700, seed_of("", "base"), 512)


@given(st.integers(0, 64 * 1024 * 1024))
def test_the_whole_text_is_covered_by_few_blocks(text_bytes: int) -> None:
    block_bytes = block_bytes_for(text_bytes)
    assert text_bytes // block_bytes <= MAX_BLOCKS
    assert text_bytes % block_bytes < block_bytes
    assert block_bytes == BLOCK_BYTES or text_bytes // (block_bytes // 2) > MAX_BLOCKS, "no larger than it must be"
