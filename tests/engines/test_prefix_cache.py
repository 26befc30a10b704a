"""Prefix cache: which requests may share KV blocks."""

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from functions.engines.sim.blocks import BlockPool, CacheScope, chain
from tests.engines.virtual import VirtualEngine, make_limits

PROMPT = range(20)


def cached_tokens(**second: object) -> int:
    """Return the tokens of PROMPT found in the cache after a request without adapter and with salt "x" computed it."""
    engine = VirtualEngine()
    engine.submit(PROMPT, salt="x")
    engine.run()
    again = engine.submit(PROMPT, **({"salt": "x"} | second))  # type: ignore[arg-type]
    engine.run()
    return again.cached_tokens


def test_a_prompt_seen_before_costs_only_its_last_block() -> None:
    assert cached_tokens() == 16, "five blocks of four, less the one with the last prompt token"


def test_another_salt_shares_nothing() -> None:
    assert cached_tokens(salt="y") == 0
    assert cached_tokens(salt=None) == 0


def test_an_adapter_shares_nothing_with_the_base() -> None:
    assert cached_tokens(adapter=1) == 0


def test_hits_and_queries_are_counted_in_tokens() -> None:
    engine = VirtualEngine()
    engine.submit(PROMPT)
    engine.run()
    engine.submit(PROMPT)
    stats = engine.run().core.stats
    assert (stats.prefix_queries_tokens, stats.prefix_hits_tokens) == (40, 16)
    assert (stats.prompt_tokens, stats.cached_prompt_tokens) == (40, 16)


def test_a_conversation_finds_its_own_replies_again() -> None:
    engine = VirtualEngine()
    engine.submit(PROMPT, reply=8)
    engine.run()
    follow_up = engine.submit([*PROMPT, *range(1000, 1008), 7, 7], reply=1)
    engine.run()
    assert follow_up.cached_tokens == 24, "prompt and reply, as far as whole blocks were computed"


def test_without_caching_nothing_is_found() -> None:
    engine = VirtualEngine(make_limits(enable_prefix_caching=False))
    engine.submit(PROMPT)
    engine.run()
    again = engine.submit(PROMPT)
    assert engine.run().core.stats.prefix_hits_tokens == again.cached_tokens == 0


def test_old_blocks_are_forgotten_when_their_room_is_needed() -> None:
    engine = VirtualEngine(make_limits(num_kv_blocks=16))
    engine.submit(PROMPT)
    engine.run()
    engine.submit(range(100, 163), reply=1)
    engine.run()
    again = engine.submit(PROMPT)
    engine.run()
    assert again.cached_tokens == 0


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=8, max_size=24), st.integers(0, 23))
def test_a_changed_token_changes_every_hash_from_its_block_on(tokens: list[int], at: int) -> None:
    at %= len(tokens)
    blocks = len(tokens) // 4
    before = chain(array("q", tokens), CacheScope(), block_size_tokens=4, blocks=blocks)
    tokens[at] += 10
    after = chain(array("q", tokens), CacheScope(), block_size_tokens=4, blocks=blocks)
    same = [one == other for one, other in zip(before, after, strict=True)]
    assert same == [index < at // 4 for index in range(blocks)]


def test_name_and_path_of_an_adapter_both_count() -> None:
    tokens = array("q", range(8))
    scopes = [CacheScope("a", "/1"), CacheScope("a", "/2"), CacheScope("b", "/1"), CacheScope(), CacheScope(salt="a")]
    first_blocks = {chain(tokens, scope, block_size_tokens=4, blocks=1)[0] for scope in scopes}
    assert len(first_blocks) == len(scopes)


@settings(deadline=None)
@given(st.lists(st.integers(1, 6), max_size=20), st.integers(4, 12))
def test_the_pool_gives_all_or_nothing(counts: list[int], size: int) -> None:
    pool = BlockPool(size)
    held: list[list[int]] = []
    for count in counts:
        free = pool.free_blocks
        taken = pool.allocate((), count)
        if taken is None:
            assert free < count and pool.free_blocks == free
            if held:
                pool.release(held.pop(0))
        else:
            held.append(taken)
        assert pool.free_blocks + sum(map(len, held)) == size
        assert pool.usage_ratio == 1 - pool.free_blocks / size


def test_a_shared_block_stays_held_until_its_last_holder_lets_go() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate((), 1) or []
    pool.remember(block, b"name")
    assert pool.allocate(pool.match([b"name"]), 0) == [block]
    pool.release([block])
    assert pool.free_blocks == 1
    pool.release([block])
    assert pool.free_blocks == 2
    assert pool.match([b"name"]) == [block], "freeing is also caching"


def test_withheld_blocks_count_as_used_and_are_not_allocated() -> None:
    pool = BlockPool(10)
    held = pool.allocate((), 3)
    pool.withheld_blocks = 5
    assert (pool.free_blocks, pool.usage_ratio) == (2, 0.8)
    assert pool.allocate((), 3) is None and pool.allocate((), 2) is not None
    pool.withheld_blocks = 9  # more than are free; held blocks stay with their holders
    assert pool.free_blocks == 0 and pool.usage_ratio == 1.0
    assert held is not None
    pool.release(held)
    pool.withheld_blocks = 0
    assert pool.free_blocks == 8


def test_a_pool_that_finds_nothing_has_forgotten_nothing() -> None:
    pool = BlockPool(4)
    pool.events = []
    (block,) = pool.allocate((), 1) or ()
    assert pool.remember(block, b"a")
    pool.finds_nothing = True
    assert pool.match([b"a"]) == [] and pool.pop_events() == [], "nobody is told: that is the fault"
    pool.finds_nothing = False
    assert pool.match([b"a"]) == [block]
