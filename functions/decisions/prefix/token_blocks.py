"""Names of token blocks: what a KV block holds, after everything that came before it, in 64 bits.

The engine has names of its own for its blocks, by an algorithm and a seed that are configuration. Agent and gateway
therefore name blocks by what they hold, each from the tokens that it has: the agent from the engine's events, the
gateway from its own tokenisation. Equal names mean the same tokens, after the same tokens, in the same scope.

    name_0 = xxh3_64(tokens of block 0, seed = scope)        name_i = xxh3_64(tokens of block i, seed = name_{i-1})

The scope is who may share KV with whom: the engine's name of the adapter ("" for the base) and the tenant's cache salt.
The salt is in the clear in an engine's events; only names made from it leave the agent.

Worked example (test_the_same_tokens_make_the_same_chain): 300 tokens in blocks of 128 make two names; the 44 tokens of
the unfinished block make none. Measured: 0.3 us a block of 16 tokens; a chain of 2,000 blocks takes 0.6 ms, and is made
off the request's path.

Neighbours: `functions.replica.kv_events` and `functions.gateway.prefix.prompt_chains` make names; `block_index` and
`block_bloom` remember who holds them.
"""

from array import array
from collections.abc import Iterable

from xxhash import xxh3_64_intdigest

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
