"""Chunk sets as the bits of one int: bit i is chunk i of `Manifest.distinct_chunks()`.

Python's ints are the fastest bitmaps in the standard library: to intersect two of 4,000 bits needs well under a
microsecond. On the wire a bitmap is base64 of its little-endian bytes. `Rarity` stores how many peers hold each chunk,
as one bitmap per count. So "the rarest chunk that this peer has and I want" is a few intersections.
"""

import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

MAX_CHUNKS = 32_768  # the largest manifest; 4 KiB of bitmap


T = TypeVar("T")


class Rng(Protocol):
    """Random source for these decisions; `random.Random` implements it."""

    def randrange(self, stop: int, /) -> int: ...
    def choice(self, seq: Sequence[T], /) -> T: ...
    def sample(self, population: Sequence[T], k: int, /) -> list[T]: ...


def full(count: int) -> int:
    """Return the set of all `count` chunks as bits."""
    return (1 << count) - 1


def indexes(bits: int) -> Iterator[int]:
    """Yield the indexes of the chunks that are set in `bits`, ascending."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def pick(bits: int, count: int, rng: Rng) -> int:
    """Return a chunk of `bits`, which is not empty: the first one after a random index, with wrap-around.

    The choice is not uniform (a chunk after a gap is likelier), but it spreads nodes as well and needs no list.
    """
    start = rng.randrange(count)
    after = bits >> start
    if after:
        return start + (after & -after).bit_length() - 1
    return (bits & -bits).bit_length() - 1


def encode(bits: int, count: int) -> str:
    return base64.b64encode(bits.to_bytes((count + 7) // 8, "little")).decode("ascii")


def decode(text: str, count: int) -> int:
    """Return the bitmap of `count` chunks in the base64 `text`. Raise ValueError if it is not one."""
    size_bytes = (count + 7) // 8
    if not 0 <= count <= MAX_CHUNKS or len(text) != (size_bytes + 2) // 3 * 4:
        raise ValueError(f"a bitmap of {count} chunks is {size_bytes} bytes in base64, not {len(text)} characters")
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"a bitmap is not base64: {error}") from error
    bits = int.from_bytes(content, "little")
    if len(content) != size_bytes or bits > full(count):
        raise ValueError(f"a bitmap of {count} chunks has {size_bytes} bytes and no bits for further chunks")
    return bits


class Rarity:
    """Number of peers that hold each chunk, up to `max_holders`."""

    def __init__(self, count: int, max_holders: int) -> None:
        self._levels = [full(count)] + [0] * max_holders

    def gain(self, bits: int) -> None:
        """Count one more peer, up to the maximum, for each chunk that is set in `bits`."""
        for level in range(len(self._levels) - 2, -1, -1):
            if moved := self._levels[level] & bits:
                self._levels[level] ^= moved
                self._levels[level + 1] |= moved

    def lose(self, bits: int) -> None:
        """Count one peer less, down to 0, for each chunk that is set in `bits`."""
        for level in range(1, len(self._levels)):
            if moved := self._levels[level] & bits:
                self._levels[level] ^= moved
                self._levels[level - 1] |= moved

    def rarest(self, bits: int) -> int:
        """Return the chunks of `bits` that the fewest peers hold (no peer is the fewest); empty only if `bits` is."""
        for held in self._levels:
            if held & bits:
                return held & bits
        return 0
