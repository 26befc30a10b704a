"""A prompt's text as a chain of hashes, so that a common beginning of two prompts shows as equal first hashes.

    h[i] = xxh3_64(block i of the text, seed = h[i-1]),     h[-1] = seed of (cache salt, engine's name for the model)

Each hash thus stands for all of the text up to the end of its block. The seed keeps apart what no engine shares: two
tenants' equal prompts (unless both have the cache salt `shared`), and one prompt under two adapters.

Only whole blocks are hashed. There are at most 512 of them: a block has 512 bytes, and twice as many as often as it
takes until 512 blocks cover the text, so that the cost per prompt is bounded and no part of it goes unseen.
Worked example (test_worked_example_of_the_prologue): a text of 1,100 bytes has two blocks of 512; one of 300,000 bytes
has 292 blocks of 1,024. A conversation that grows past a doubling is once unknown to those who hash by text.

xxh3 is no cryptographic hash: whoever can choose prompts can make two of their own look alike, and is then routed to a
replica that lacks the prefix. Nothing else is decided by these hashes. Measured for 200 KB: 46 us; blake2b took 383.

Neighbours: `functions.gateway.prefix.prompt_text` makes the text; `prefix_record` remembers the hashes.
"""

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
