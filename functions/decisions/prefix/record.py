"""Prefixes by this gateway's own requests: the replicas of a pool that received a prompt's text, and how much of it.

Each hash of a chain (`block_names`) is stored with the set of replicas that it was sent to, as the bits of an integer.
There are two parts, young and old. New blocks enter the young part. When it is full, it becomes the old part, and the
former old part is forgotten. So blocks used in the younger half of the capacity are kept, and the rest is forgotten as
a whole, without cost per block. The young part is full at the first of these limits:

    blocks:  half of `max_blocks`                     the gateway's memory: 110 bytes a block, measured
    bytes:   the size of a replica's cache, for the replica that was sent most: it must have evicted older blocks
    seconds: half of `ttl_s`

Worked example (test_worked_example_of_the_prologue): a replica holds 1,000 tokens at 4 bytes each, 4,000 bytes. It is
sent texts of four and of five blocks: 4,608 bytes, so both are old. Then four again (which are young now) and another
five: 4,608 bytes, which are old now; the first five are forgotten.

The limit is the whole cache, not half of it: blocks sent again are counted again, though they need no more room.
Compared with a true LRU cache of that size, over chats of 400 sessions: with half, nothing is wrongly predicted as
cached and 8.8 % of the prompt wrongly as not cached; with all, 2.8 % and 4.9 %; with twice as much, 10.8 % and 2.2 %.

Laws: a replica that has block i of a chain has all before it, since a chain is entered from its first block up to the
last in one step, and no part is forgotten within a step. So the depth of a chain is found by bisection
(test_agrees_with_a_list_of_everything_that_was_sent, against an oracle that walks). A replica is never predicted to
have more than twice its cache and two prompts (test_no_replica_is_taken_for_having_much_more_than_it_can_hold).

Measured: a match in a chain of 2 / 16 / 400 blocks needs 0.7 / 0.9 / 1.5 us, and entering 0.3 us for each new block.
Neighbours: `functions.gateway.prefix.index` has one record for each pool.
"""

from collections.abc import Mapping, Sequence
from math import inf
from types import MappingProxyType

from functions.api.ids import ReplicaId

NOTHING: Mapping[ReplicaId, int] = MappingProxyType({})
MOST_NAMED = 32  # replicas in one result: a prompt that all have is not worth a walk over all
_MOST_DEPTHS = 4  # different depths in one result, deepest first
_FREED_A_STEP = 4  # forgotten blocks freed for each new one: freeing a whole part stalls the loop


class PrefixRecord:
    """Prefixes sent to the replicas of one pool. Owned by one event loop; times are monotonic seconds."""

    __slots__ = (
        "_alive",
        "_capacity_bytes",
        "_forgotten",
        "_free_bits",
        "_members",
        "_old",
        "_replica_of",
        "_retired",
        "_rotate_at_s",
        "_sent_bytes",
        "_ttl_s",
        "_young",
        "max_blocks",
    )

    def __init__(self, max_blocks: int, ttl_s: float) -> None:
        self.max_blocks = max_blocks
        self._ttl_s = ttl_s
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self._forgotten: list[dict[int, int]] = []
        self._members: dict[ReplicaId, int] = {}  # bit of each replica, as an integer with one bit set
        self._replica_of: dict[int, ReplicaId] = {}  # inverse of `_members`
        self._alive = 0  # bits of all members
        self._sent_bytes: dict[int, int] = {}  # by bit: bytes in the young part
        self._capacity_bytes: dict[ReplicaId, int] = {}
        self._free_bits: list[int] = []
        self._retired: tuple[list[int], list[int]] = (
            [],
            [],
        )  # bits retired during the young part, and during the old one
        self._rotate_at_s = inf  # until the first entry

    def match(self, blocks: Sequence[int], now_s: float) -> Mapping[ReplicaId, int]:
        """Return how many blocks of a chain each replica has, from the first on. An absent replica has none.

        If more than MOST_NAMED have equally many, the chain's hash selects some of them.
        """
        if now_s >= self._rotate_at_s:
            self._rotate_by_time(now_s)
        if not blocks:
            return NOTHING
        sought = (self._young.get(blocks[0], 0) | self._old.get(blocks[0], 0)) & self._alive
        if not sought:
            return NOTHING
        found: dict[ReplicaId, int] = {}
        most = len(blocks)
        for _ in range(_MOST_DEPTHS):
            most, having = self._deepest(blocks, most, sought)
            self._name(found, having, most, blocks[-1])
            sought &= ~having
            if not sought or len(found) >= MOST_NAMED:
                break
        return found

    def record_sent(
        self, blocks: Sequence[int], replica: ReplicaId, text_bytes: int, block_bytes: int, now_s: float
    ) -> None:
        """Record that a replica has the blocks of a prompt sent to it. `text_bytes` is what it will cache, prompt and
        expected answer: at least what the blocks cover. If the young part is then full, it becomes the old one, and
        the former old part is forgotten."""
        if now_s >= self._rotate_at_s:
            self._rotate_by_time(now_s)
        elif self._rotate_at_s == inf:
            self._rotate_at_s = now_s + self._ttl_s / 2
        bit = self._members.get(replica) or self._join(replica)
        young = self._young
        new = 0
        for block in reversed(blocks):
            having = young.get(block, 0)
            if having & bit:
                break  # all earlier blocks are entered, too
            young[block] = having | bit if having else bit
            new += 1
        if self._forgotten:
            self._free(new * _FREED_A_STEP)
        tail_bytes = text_bytes - len(blocks) * block_bytes
        self._sent_bytes[bit] += new * block_bytes + tail_bytes
        capacity_bytes = self._capacity_bytes.get(replica, 0)
        if len(young) * 2 >= self.max_blocks or 0 < capacity_bytes <= self._sent_bytes[bit]:
            self._rotate(now_s)

    def set_capacity(self, replica: ReplicaId, capacity_bytes: int) -> None:
        """Set the size of the replica's cache in bytes of text; 0: unknown, no limit."""
        self._capacity_bytes[replica] = capacity_bytes

    def forget(self, replica: ReplicaId) -> None:
        """Forget a replica whose cache is gone. O(1): its bit is reused only after both parts are forgotten."""
        self._capacity_bytes.pop(replica, None)
        bit = self._members.pop(replica, 0)
        if bit:
            self._alive &= ~bit
            del self._replica_of[bit], self._sent_bytes[bit]
            self._retired[0].append(bit)

    def __len__(self) -> int:
        """Return the number of blocks in memory, some counted twice."""
        return len(self._young) + len(self._old) + sum(map(len, self._forgotten))

    def _deepest(self, blocks: Sequence[int], most: int, sought: int) -> tuple[int, int]:
        """Return the number of the last of the first `most` blocks that one of `sought` has, counted from 1, and the
        holders of that block among `sought`.

        All of `sought` must have the first block.
        """
        young, old = self._young, self._old
        having = (young.get(blocks[most - 1], 0) | old.get(blocks[most - 1], 0)) & sought
        if having:
            return most, having
        low, high = 0, most - 1  # at least one has block `low`, none has block `high`
        having = sought
        while high - low > 1:
            middle = (low + high) >> 1
            there = (young.get(blocks[middle], 0) | old.get(blocks[middle], 0)) & sought
            if there:
                low, having = middle, there
            else:
                high = middle
        return low + 1, having

    def _name(self, found: dict[ReplicaId, int], having: int, depth: int, choice: int) -> None:
        """Add the replicas in `having` to `found` with this depth, or as many as there is room for, starting at a bit
        derived from `choice`."""
        room = MOST_NAMED - len(found)
        if having.bit_count() > room:
            turn = choice % having.bit_length()
            later = having >> turn << turn
            room = self._add(found, later, depth, room)
            having ^= later
        self._add(found, having, depth, room)

    def _add(self, found: dict[ReplicaId, int], having: int, depth: int, room: int) -> int:
        while having and room:
            bit = having & -having
            found[self._replica_of[bit]] = depth
            having ^= bit
            room -= 1
        return room

    def _join(self, replica: ReplicaId) -> int:
        in_use = len(self._members) + len(self._retired[0]) + len(self._retired[1])
        bit = self._free_bits.pop() if self._free_bits else 1 << in_use
        self._members[replica] = bit
        self._replica_of[bit] = replica
        self._sent_bytes[bit] = 0
        self._alive |= bit
        return bit

    def _rotate_by_time(self, now_s: float) -> None:
        due_s = self._rotate_at_s
        self._rotate(due_s)
        if now_s >= due_s + self._ttl_s / 2:
            self._rotate(now_s)  # the young part is too old as well

    def _rotate(self, now_s: float) -> None:
        """Make the young part the old one, drop the former old part, and reset the bytes sent. A block not recorded
        again is forgotten at the next rotation."""
        if self._old:
            self._forgotten.append(self._old)
        self._old, self._young = self._young, {}
        self._free_bits += self._retired[1]
        self._retired = ([], self._retired[0])
        self._sent_bytes = dict.fromkeys(self._sent_bytes, 0)
        self._rotate_at_s = now_s + self._ttl_s / 2

    def _free(self, most: int) -> None:
        part = self._forgotten[-1]
        for _ in range(min(most, len(part))):
            part.popitem()
        if not part:
            self._forgotten.pop()
