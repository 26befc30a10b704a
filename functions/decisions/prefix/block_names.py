"""Names of prompt blocks, by text and by token: chained hashes, so that equal beginnings have equal names.

    h[i] = xxh3_64(block i of the text, seed = h[i-1]),     h[-1] = seed of (cache salt, engine's name for the model)

Each hash thus stands for all of the text up to the end of its block. The seed keeps apart what no engine shares: two
tenants' equal prompts (unless both have the cache salt `shared`), and one prompt under two adapters.

Only whole blocks are hashed. There are at most 512 of them: a block has 512 bytes, and twice as many as often as it
takes until 512 blocks cover the text, so that the cost per prompt is bounded and no part of it goes unseen.
Worked example (test_worked_example_of_the_prologue): a text of 1,100 bytes has two blocks of 512; one of 300,000 bytes
has 292 blocks of 1,024. A conversation that grows past a doubling is once unknown to those who hash by text.

xxh3 is no cryptographic hash: whoever can choose prompts can make two of their own look alike, and is then routed to a
replica that lacks the prefix. Nothing else is decided by these hashes. Measured for 200 KB: 46 us; blake2b took 383.

Neighbours: `functions.gateway.prefix.prompt_text` makes the text; `record` remembers the hashes.
"""

from array import array
from collections.abc import Iterable

from xxhash import xxh3_64_intdigest

BLOCK_BYTES = 512  # about 128 tokens, which is the block of vLLM on CPU and eight of those on GPU
MAX_BLOCKS = 512


def seed_of(cache_salt: str, engine_name: str) -> int:
    """Where the chain begins; names and salts have no NUL, so no two pairs are the same text."""
    return xxh3_64_intdigest(f"{cache_salt}\0{engine_name}".encode())


def block_bytes_for(text_bytes: int) -> int:
    """The smallest block, doubled until MAX_BLOCKS of them cover the text."""
    block_bytes = BLOCK_BYTES
    while text_bytes >= block_bytes * (MAX_BLOCKS + 1):
        block_bytes *= 2
    return block_bytes


def text_blocks(text: bytes, seed: int, block_bytes: int) -> tuple[int, ...]:
    """The chained hashes of the whole blocks."""
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
# The engine has names of its own for its blocks, by an algorithm and a seed that are configuration. Agent and gateway
# therefore name blocks by what they hold, each from the tokens that it has: the agent from the engine's events, the
# gateway from its own tokenisation. Equal names mean the same tokens, after the same tokens, in the same scope.
#
#     name_0 = xxh3_64(tokens of block 0, seed = scope)        name_i = xxh3_64(tokens of block i, seed = name_{i-1})
#
# The scope is who may share KV with whom: the engine's name of the adapter ("" for the base) and the tenant's cache
# salt. The salt is in the clear in an engine's events; only names made from it leave the agent.
#
# Worked example (test_the_same_tokens_make_the_same_chain): 300 tokens in blocks of 128 make two names; the 44 tokens
# of the unfinished block make none. Measured: 0.3 us a block of 16 tokens; a chain of 2,000 blocks takes 0.6 ms, and is
# made off the request's path.


TOKEN_BYTES = 8
"""A token id is a signed 64-bit integer here, little-endian as the machine has it."""


def scope_seed(adapter: str, salt: str) -> int:
    """What the first block of a chain starts from; `adapter` is the engine's name for it, "" for the base."""
    return xxh3_64_intdigest(f"{adapter}\0{salt}".encode("utf-8", "surrogatepass"))


def block_name(parent: int, tokens: bytes) -> int:
    """The name of the block that holds `tokens`, after the block (or the scope) `parent`."""
    return xxh3_64_intdigest(tokens, parent)


def chain(seed: int, tokens: "array[int]", block_tokens: int) -> "array[int]":
    """The names of all whole blocks of `tokens`, in order."""
    names = array("Q")
    content, size = tokens.tobytes(), block_tokens * TOKEN_BYTES
    for start in range(0, len(content) - size + 1, size):
        seed = xxh3_64_intdigest(content[start : start + size], seed)
        names.append(seed)
    return names


def with_extra(parent: int, extra: Iterable[object]) -> int:
    """`parent` for a block that holds more than tokens (an image, an embedding): tokens alone do not find it."""
    return xxh3_64_intdigest(repr(tuple(extra)).encode("utf-8", "replace"), parent)
