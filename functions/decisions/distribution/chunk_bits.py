"""Which chunks somebody has, as the bits of one int: bit i is chunk i of `Manifest.distinct_chunks()`.

Python's ints are the fastest bitmaps that the standard library has: to intersect two of 4,000 bits takes well under a
microsecond. On the wire a bitmap is base64 of its little-endian bytes. `Rarity` keeps, for every chunk, how many peers
hold it, as one bitmap per count, so that "the rarest that this peer has and I want" is a few intersections.
Neighbours: swarm_peers, swarm, swarm_board.
"""

import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

MAX_CHUNKS = 32_768  # the largest manifest; 4 KiB of bitmap


T = TypeVar("T")


class Rng(Protocol):
    """What these decisions ask of chance; `random.Random` has it."""

    def randrange(self, stop: int, /) -> int: ...
    def choice(self, seq: Sequence[T], /) -> T: ...
    def sample(self, population: Sequence[T], k: int, /) -> list[T]: ...


def full(count: int) -> int:
    """All of `count` chunks."""
    return (1 << count) - 1


def indexes(bits: int) -> Iterator[int]:
    """The chunks in it, ascending."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def pick(bits: int, count: int, rng: Rng) -> int:
    """One of the chunks in `bits`, which is not empty: the first from a random place on, around the end.

    Not quite uniform (a chunk behind a gap is likelier), which spreads nodes as well and costs no list.
    """
    start = rng.randrange(count)
    after = bits >> start
    if after:
        return start + (after & -after).bit_length() - 1
    return (bits & -bits).bit_length() - 1


def encode(bits: int, count: int) -> str:
    return base64.b64encode(bits.to_bytes((count + 7) // 8, "little")).decode("ascii")


def decode(text: str, count: int) -> int:
    """The bitmap of `count` chunks in `text`; ValueError where it is none."""
    size_bytes = (count + 7) // 8
    if not 0 <= count <= MAX_CHUNKS or len(text) != (size_bytes + 2) // 3 * 4:
        raise ValueError(f"a bitmap of {count} chunks is {size_bytes} bytes in base64, not {len(text)} characters")
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"a bitmap is not base64: {error}") from error
    bits = int.from_bytes(content, "little")
    if len(content) != size_bytes or bits > full(count):
        raise ValueError(f"a bitmap of {count} chunks is {size_bytes} bytes and names none beyond")
    return bits


class Rarity:
    """How many of at most `max_holders` peers hold each chunk."""

    def __init__(self, count: int, max_holders: int) -> None:
        self._levels = [full(count)] + [0] * max_holders

    def gain(self, bits: int) -> None:
        """One more peer holds these."""
        for level in range(len(self._levels) - 2, -1, -1):
            if moved := self._levels[level] & bits:
                self._levels[level] ^= moved
                self._levels[level + 1] |= moved

    def lose(self, bits: int) -> None:
        """One peer less holds these."""
        for level in range(1, len(self._levels)):
            if moved := self._levels[level] & bits:
                self._levels[level] ^= moved
                self._levels[level - 1] |= moved

    def rarest(self, bits: int) -> int:
        """Those of `bits` that the fewest peers hold; empty only where `bits` is."""
        for held in self._levels:
            if held & bits:
                return held & bits
        return 0
