"""Index of token blocks: a name to the set of its holders, as the bits of one integer.

A holder is a slot, a bit number that is given out by `begin` and taken back by `retire`. Retiring costs nothing: the
bit no longer counts, and is wiped from the entries a few at a time (`sweep`) before it is given out again. So a replica
that starts anew gets a new slot and is filled again while the old one still answers, or at once does not.

Memory is bounded: beyond `max_entries` distinct names nothing new is remembered, which makes the answer smaller and
never wrong. Measured: 75 bytes a name, 110 where many share it; 1,000,000 names are about 100 MB.

What a holder keeps in host memory alone, it must fetch before it is of use (`add_to_host`): the same slots, in a second
table. A chain is held `anywhere` as far as each of its blocks is in one table or the other.

Which replicas hold how much of a chain is a search, not a walk. A block is stored after its parent and engines evict
the ends of chains first, so holding block i means, nearly always, holding all before it; where an engine has kept an
end without its beginning, the prediction is too good by that much, and nothing else.

    cost = number of different depths x log2(blocks) look-ups of 0.1 us

Worked example (test_depths_of_three_replicas): of a chain of 8 blocks, A holds 8, B the first 3, C none:
{A: 8, B: 3}. Where more than `MAX_NAMED` replicas share a depth, they are not named one by one, and the depths of the
others count from theirs: a prefix that everybody has distinguishes nobody (test_what_a_crowd_holds_counts_for_nobody).
"""

from collections.abc import Callable, Iterable, Sequence

MAX_NAMED = 64  # replicas of one answer
MAX_SLOTS = 40_000  # twice the replicas of a fleet view: each may be filled anew while its old slot is wiped


class BlockIndex:
    """Owned by one event loop."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._holders: dict[int, int] = {}
        self._in_host: dict[int, int] = {}
        self._free: list[int] = []
        self._slots = 0
        self._retired = 0  # bits that no longer count, but are in entries still
        self._wiping = 0  # of those, what the sweep under way takes out
        self._to_wipe: list[int] = []

    def __len__(self) -> int:
        return len(self._holders) + len(self._in_host)

    @property
    def has_host_blocks(self) -> bool:
        return bool(self._in_host)

    @property
    def is_clean(self) -> bool:
        return not self._retired and not self._wiping

    def begin(self) -> int | None:
        """A fresh slot that holds nothing; None where there are too many."""
        if self._free:
            return self._free.pop()
        if self._slots >= MAX_SLOTS:
            return None
        self._slots += 1
        return self._slots - 1

    def add(self, slot: int, names: Iterable[int]) -> int:
        """The slot holds these too; how many could not be remembered."""
        return self._add(self._holders, slot, names)

    def add_to_host(self, slot: int, names: Iterable[int]) -> int:
        """The slot holds these in host memory alone."""
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
        """Wipe retired slots from up to `entries` names."""
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
        """Slot to the number of leading blocks that it holds, of the slots in `live`."""
        return depths(names, live, self._holders.get)

    def depths_anywhere(self, names: Sequence[int], live: int) -> dict[int, int]:
        """The same of the blocks on the accelerator and in host memory together."""
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
    """The search of the prologue; `holders(name, 0)` are the slots that hold a block, as bits, 0 where none does."""
    groups: list[tuple[int, int]] = []  # (depth, slots), deeper ones later
    last = len(names) - 1
    at = 0
    candidates = holders(names[0], 0) & live if names else 0
    while candidates:
        low, high = at, last  # at `low` all candidates hold
        left = holders(names[last], 0) & candidates
        if left == candidates:
            groups.append((last + 1, candidates))
            break
        while high - low > 1:  # at `high` not all do
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
