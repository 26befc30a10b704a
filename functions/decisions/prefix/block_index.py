"""Index of token blocks: maps a name to the set of its holders, as the bits of one integer.

A holder is a slot: a bit number that `add_slot` reserves and `retire` releases. Retiring costs nothing: the bit no
longer counts, and `sweep` wipes it from a few entries at a time before it is reused. So a restarted replica gets a
new slot and fills it, whether its old slot still answers meanwhile or not.

Memory is bounded: beyond `max_entries` distinct names no new one is stored. Results then become smaller, never wrong.
Measured: 75 bytes a name, 110 if many replicas share it; 1,000,000 names are about 100 MB.

Blocks that a holder has in host memory only must be reloaded before use. They are in a second table with the same slots
(`add_to_host`). A chain is held `anywhere` up to the first block that is in neither table.

A search, not a walk, finds the number of blocks that each replica holds of a chain. A block is stored after its parent,
and engines evict the ends of chains first. So a holder of block i nearly always holds all before it. If an engine has
kept an end without its beginning, the prediction is too good by that much, and nothing else happens.

    cost = number of different depths x log2(blocks) look-ups of 0.1 us

Worked example (test_depths_of_three_replicas): of a chain of 8 blocks, A holds 8, B the first 3, C none:
{A: 8, B: 3}. If more than `MAX_NAMED` replicas share a depth, they are not listed, and the depths of the others count
from theirs: a prefix that all replicas have distinguishes none (test_blocks_with_many_holders_count_for_no_replica).
"""

from collections.abc import Callable, Iterable, Sequence

MAX_NAMED = 64  # replicas in one result
MAX_SLOTS = 40_000  # twice the replicas of a fleet view: each may fill a new slot while its old one is wiped


class BlockIndex:
    """Index from block names to holders. Owned by one event loop."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._holders: dict[int, int] = {}
        self._in_host: dict[int, int] = {}
        self._free: list[int] = []
        self._slots = 0
        self._retired = 0  # retired bits that are still in entries
        self._wiping = 0  # retired bits that the current sweep wipes
        self._to_wipe: list[int] = []

    def __len__(self) -> int:
        return len(self._holders) + len(self._in_host)

    @property
    def has_host_blocks(self) -> bool:
        return bool(self._in_host)

    @property
    def is_clean(self) -> bool:
        return not self._retired and not self._wiping

    def add_slot(self) -> int | None:
        """Reserve an empty slot for a replica and return its number; None if all MAX_SLOTS are in use."""
        if self._free:
            return self._free.pop()
        if self._slots >= MAX_SLOTS:
            return None
        self._slots += 1
        return self._slots - 1

    def add(self, slot: int, names: Iterable[int]) -> int:
        """Add blocks that the slot holds on the accelerator; return how many could not be stored."""
        return self._add(self._holders, slot, names)

    def add_to_host(self, slot: int, names: Iterable[int]) -> int:
        """Add blocks that the slot holds in host memory only; return how many could not be stored."""
        return self._add(self._in_host, slot, names)

    def _add(self, holders: dict[int, int], slot: int, names: Iterable[int]) -> int:
        bit, left_out = 1 << slot, 0
        room = self._max_entries - len(self)
        for name in names:
            held = holders.get(name)
            if held is not None:
                holders[name] = held | bit
            elif room > 0:
                holders[name] = bit
                room -= 1
            else:
                left_out += 1
        return left_out

    def remove(self, slot: int, names: Iterable[int]) -> None:
        _wipe(self._holders, names, ~(1 << slot))

    def remove_from_host(self, slot: int, names: Iterable[int]) -> None:
        _wipe(self._in_host, names, ~(1 << slot))

    def retire(self, slot: int) -> None:
        self._retired |= 1 << slot

    def sweep(self, entries: int) -> None:
        """Wipe retired slots from up to `entries` names; slots wiped from all names are free again."""
        if not self._wiping:
            if not self._retired:
                return
            self._wiping, self._retired = self._retired, 0
            self._to_wipe = [*self._holders, *self._in_host]
        names = [self._to_wipe.pop() for _ in range(min(entries, len(self._to_wipe)))]
        for holders in (self._holders, self._in_host):
            _wipe(holders, names, ~self._wiping)
        if not self._to_wipe:
            self._free.extend(slots_of(self._wiping))
            self._wiping = 0

    def depths(self, names: Sequence[int], live: int) -> dict[int, int]:
        """Return by slot the number of leading blocks of `names` that it holds on the accelerator, for the slots in
        `live` (bits), as the function `depths` does."""
        return depths(names, live, self._holders.get)

    def depths_anywhere(self, names: Sequence[int], live: int) -> dict[int, int]:
        """Return by slot the number of leading blocks of `names` that it holds on the accelerator or in host memory,
        for the slots in `live` (bits), as the function `depths` does."""
        holders, in_host = self._holders, self._in_host
        return depths(names, live, lambda name, nobody: holders.get(name, nobody) | in_host.get(name, nobody))


def _wipe(holders: dict[int, int], names: Iterable[int], keep: int) -> None:
    for name in names:
        held = holders.get(name)
        if held is None:
            continue
        left = held & keep
        if left:
            holders[name] = left
        else:
            del holders[name]


def depths(names: Sequence[int], live: int, holders: Callable[[int, int], int]) -> dict[int, int]:
    """Return by slot the number of leading blocks of `names` that it holds, for the slots in `live` (bits) that hold
    any. If they are more than MAX_NAMED, only the deepest are named, by how much deeper they are than the first one
    left out.

    `holders(name, 0)` returns the slots that hold a block, as bits.
    """
    groups: list[tuple[int, int]] = []  # (depth, slots), deeper ones later
    last = len(names) - 1
    at = 0
    candidates = holders(names[0], 0) & live if names else 0
    while candidates:
        low, high = at, last  # all candidates hold block `low`
        left = holders(names[last], 0) & candidates
        if left == candidates:
            groups.append((last + 1, candidates))
            break
        while high - low > 1:  # not all hold block `high`
            middle = (low + high) >> 1
            held = holders(names[middle], 0) & candidates
            if held == candidates:
                low = middle
            else:
                high, left = middle, held
        groups.append((high, candidates & ~left))
        candidates, at = left, high
    return _named(groups)


def slots_of(bits: int) -> list[int]:
    found: list[int] = []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return found


def _named(groups: list[tuple[int, int]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for at in range(len(groups) - 1, -1, -1):
        depth, slots = groups[at]
        if len(found) + slots.bit_count() > MAX_NAMED:
            return {slot: deeper - depth for slot, deeper in found.items()}
        for slot in slots_of(slots):
            found[slot] = depth
    return found
