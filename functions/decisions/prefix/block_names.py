"""Names of prompt blocks, by text and by token: chained hashes, so that equal prefixes have equal names.

    h[i] = xxh3_64(block i of the text, seed = h[i-1]),     h[-1] = seed of (cache salt, engine's name for the model)

Each hash thus stands for all of the text up to the end of its block. The seed separates what engines do not share:
equal prompts of two tenants (unless both have the cache salt `shared`), and one prompt under two adapters.

Only whole blocks are hashed, at most 512 of them. A block has 512 bytes, doubled until 512 blocks cover the text. So
the cost per prompt is bounded and no part of it is ignored.
Worked example (test_worked_example_of_the_prologue): a text of 1,100 bytes has two blocks of 512; one of 300,000 bytes
has 292 blocks of 1,024. When a conversation grows past a doubling, its text hashes are unknown once.

xxh3 is no cryptographic hash: clients can construct two prompts of their own with equal hashes, and are then routed to
a replica that lacks the prefix. These hashes decide nothing else. Measured for 200 KB: 46 us; blake2b needed 383.

Neighbours: `functions.gateway.prefix.prompt_text` makes the text; `record` stores the hashes.
"""

from array import array
from collections.abc import Iterable

from xxhash import xxh3_64_intdigest

BLOCK_BYTES = 512  # about 128 tokens: one block of vLLM on CPU, eight on GPU
MAX_BLOCKS = 512


def seed_of(cache_salt: str, engine_name: str) -> int:
    """Return the seed of a chain. Names and salts contain no NUL, so different pairs give different texts."""
    return xxh3_64_intdigest(f"{cache_salt}\0{engine_name}".encode())


def block_bytes_for(text_bytes: int) -> int:
    """Return the block size in bytes for a text: BLOCK_BYTES, doubled until MAX_BLOCKS blocks cover the text."""
    block_bytes = BLOCK_BYTES
    while text_bytes >= block_bytes * (MAX_BLOCKS + 1):
        block_bytes *= 2
    return block_bytes


def text_blocks(text: bytes, seed: int, block_bytes: int) -> tuple[int, ...]:
    """Return the hashes of the text's whole blocks, each chained to the one before; the rest of the text has none."""
    chained = seed
    last = len(text) - block_bytes
    return tuple(
        [
            chained := xxh3_64_intdigest(text[start : start + block_bytes], chained)
            for start in range(0, last + 1, block_bytes)
        ]
    )


# Names of token blocks: the content of a KV block and of all before it, in 64 bits.
#
# The engine's own block names depend on a configured algorithm and seed. Agent and gateway therefore name blocks by
# content: the agent from the tokens in the engine's events, the gateway from its own tokenisation. Equal names mean the
# same tokens, after the same tokens, in the same scope.
#
#     name_0 = xxh3_64(tokens of block 0, seed = scope)        name_i = xxh3_64(tokens of block i, seed = name_{i-1})
#
# The scope limits the sharing of KV blocks: the engine's name of the adapter ("" for the base) and the tenant's cache
# salt. An engine's events contain the salt in plain text; only names made from it leave the agent.
#
# Worked example (test_the_same_tokens_make_the_same_chain): 300 tokens in blocks of 128 make two names; the unfinished
# block of 44 tokens makes none. Measured: 0.3 us a block of 16 tokens; a chain of 2,000 blocks needs 0.6 ms, and is
# computed outside the request's path.


TOKEN_BYTES = 8
"""Size of a token id: a signed 64-bit integer in the machine's byte order (little-endian)."""


def scope_seed(adapter: str, salt: str) -> int:
    """Return the seed of the first block of a chain; `adapter` is the engine's name for it, "" for the base."""
    return xxh3_64_intdigest(f"{adapter}\0{salt}".encode("utf-8", "surrogatepass"))


def block_name(parent: int, tokens: bytes) -> int:
    """Return the name of the block that holds `tokens`, after the block (or the scope) `parent`."""
    return xxh3_64_intdigest(tokens, parent)


def chain(seed: int, tokens: "array[int]", block_tokens: int) -> "array[int]":
    """Return the names of all whole blocks of `block_tokens` tokens, in order; the rest of the tokens has none."""
    names = array("Q")
    content, size = tokens.tobytes(), block_tokens * TOKEN_BYTES
    for start in range(0, len(content) - size + 1, size):
        seed = xxh3_64_intdigest(content[start : start + size], seed)
        names.append(seed)
    return names


def with_extra(parent: int, extra: Iterable[object]) -> int:
    """Return `parent` for a block with an image or embedding (`extra`), so that its tokens alone do not match it."""
    return xxh3_64_intdigest(repr(tuple(extra)).encode("utf-8", "replace"), parent)
