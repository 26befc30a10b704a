"""Token blocks of a replica in at most 64 KiB: a Bloom filter of words, sent whole every few seconds.

It serves fleets in which reporting every block's arrival and eviction would be too much: 64 KiB instead of eight bytes
a block, and no order of messages to preserve. It differs from `distribution.bloom` (digests on a disk, in a heartbeat),
because each request queries it once per replica and search step. So one name has all its bits in one 64-bit word, and
the words of all replicas at one index are adjacent. One query of all replicas is then one look-up.

    word = name mod words          bits = four of its 64, from the name's upper half

The number of words is a power of two, so a small filter can be repeated to the full size: filters of different sizes
are queried alike. Measured false positives (test_false_answers_are_as_rare_as_promised): 1 % at 40,000 names in 64 KiB.
If few replicas are left, a search checks a block and its parent together, so the error of a step is squared.

Worked example (test_size_follows_the_number_of_names): 1,000 names use 256 words = 2 KiB; 100,000 would use 32,768
words and get 8,192, the limit.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from functions.decisions.prefix.block_index import depths, slots_of

MAX_WORDS = 8192
MAX_BYTES = MAX_WORDS * 8
_MIN_WORDS = 16
_NAMES_PER_WORD = 5
_WORD = MAX_WORDS - 1  # mask for the bits of a name that select its word
_FIRST_COLUMNS = 8
_FEW = 8  # up to so many columns are searched one by one

Words = npt.NDArray[np.uint64]


def build(names: Iterable[int]) -> bytes:
    """Return the Bloom filter of these block names as little-endian 8-byte words."""
    keys = np.fromiter(names, dtype=np.uint64)
    words = _MIN_WORDS
    while words < MAX_WORDS and words * _NAMES_PER_WORD < len(keys):
        words *= 2
    table = np.zeros(words, dtype=np.uint64)
    np.bitwise_or.at(table, (keys & np.uint64(words - 1)).astype(np.intp), _bits(keys))
    return table.astype("<u8").tobytes()


class BloomTable:
    """Filters of one pool's replicas, one column each. Owned by one event loop."""

    def __init__(self) -> None:
        self._table: Words = np.zeros((MAX_WORDS, _FIRST_COLUMNS), dtype=np.uint64)
        self._cells = self._table.data  # reads Python integers at a third of numpy's cost for single cells
        self._free: list[int] = list(range(_FIRST_COLUMNS - 1, -1, -1))

    @classmethod
    def like(cls, other: "BloomTable") -> "BloomTable":
        """Return a table with the filters of `other` in the same columns. The copy does not know which columns are in
        use."""
        copy = cls()
        copy._table = other._table.copy()
        copy._cells = copy._table.data
        return copy

    @staticmethod
    def check(content: bytes) -> None:
        """Raise ValueError if `content` has no valid size for a filter."""
        words = len(content) // 8
        if len(content) % 8 or not _MIN_WORDS <= words <= MAX_WORDS or words & (words - 1):
            allowed = f"a power of two of 8-byte words, from {_MIN_WORDS} to {MAX_WORDS}"
            raise ValueError(f"a filter of {len(content)} bytes is invalid: it must hold {allowed}")

    def add_column(self) -> int:
        """Reserve an empty column and return its number; double the table if none is free."""
        if not self._free:
            width = self._widen()
            self._free = list(range(2 * width - 1, width - 1, -1))
        return self._free.pop()

    def put(self, column: int, content: bytes) -> None:
        """Replace the filter of a replica's column. Raise ValueError if `content` is not a filter."""
        self.check(content)
        while column >= self._table.shape[1]:
            self._widen()
        self._table[:, column] = np.tile(np.frombuffer(content, dtype="<u8"), MAX_WORDS * 8 // len(content))

    def retire(self, column: int) -> None:
        self.wipe(column)
        self._free.append(column)

    def wipe(self, column: int) -> None:
        if column < self._table.shape[1]:
            self._table[:, column] = 0

    def _widen(self) -> int:
        """Double the columns and return their former number."""
        width: int = self._table.shape[1]
        self._table = np.hstack([self._table, np.zeros_like(self._table)])
        self._cells = self._table.data
        return width

    def depths(self, names: Sequence[int], live: int) -> dict[int, int]:
        """Return by column the number of leading blocks of `names` that it seems to hold, for the columns in `live`
        (bits); those that hold none are left out."""
        candidates = self._holders(names[0]) & live if names else 0
        if candidates.bit_count() > _FEW:
            return depths(names, candidates, self._holders)
        return {column: self._depth(column, names) for column in slots_of(candidates)}

    def _holders(self, name: int, nobody: int = 0) -> int:
        """Return the columns that seem to hold a block, as bits; the default is ignored. One comparison: 5 us for 9 or
        500 replicas."""
        wanted = np.uint64(_bits_of(name))
        held = (self._table[name & _WORD] & wanted) == wanted
        return int.from_bytes(np.packbits(held, bitorder="little").tobytes(), "little")

    def _depth(self, column: int, names: Sequence[int]) -> int:
        """Return the number of leading blocks of `names` that a column seems to hold, which must hold the first. A
        search step costs 0.5 us."""
        low, high = 0, len(names)  # block `low` is held; block `high` is not held or does not exist
        middle = high - 1  # test the last block first: most holders of the first block hold all
        while high - low > 1:
            if self._has_pair(column, names[middle], names[middle - 1]):
                low = middle
            else:
                high = middle
            middle = (low + high) // 2
        return high

    def _has_pair(self, column: int, name: int, parent: int) -> bool:
        cells, wanted, before = self._cells, _bits_of(name), _bits_of(parent)
        return cells[name & _WORD, column] & wanted == wanted and cells[parent & _WORD, column] & before == before


def _bits(keys: Words) -> Words:
    bits = np.zeros(len(keys), dtype=np.uint64)
    for shift in (40, 46, 52, 58):  # as `_bits_of`
        bits |= np.uint64(1) << ((keys >> np.uint64(shift)) & np.uint64(63))
    return bits


def _bits_of(name: int) -> int:
    return 1 << (name >> 40 & 63) | 1 << (name >> 46 & 63) | 1 << (name >> 52 & 63) | 1 << (name >> 58 & 63)
