"""Tracker of one artifact's swarm: members, the peers named to each, and grants to read from the store.

Law: a chunk is read from the store by one node at a time. A node is granted chunks that no node useful to it has, and
that no node is reading. A grant ends in one of these cases: its node, or another node useful to it, has the chunk; its
node falls silent; several nodes report it useless; or after `lease_s` (then another node may read it as well: a stuck
reader must not stop the swarm). Time in which no node at all was heard does not count as silence: then the tracker
itself was stalled. The number of grants is

    granted = max(room, ceil(free / (4 * nodes)))     # guided self-scheduling: large shares first, small ones last

Worked example (test_worked_example): 1,000 free chunks, 10 nodes: the first to announce itself gets 25. A sole node
gets a quarter of the rest each time. If all is granted, a new node gets nothing and waits for the others' chunks.

Peers are a random sample, own zone first. If there are other zones, some peers are of those, or zones would drift
apart. Nodes announce themselves every `again_after_s = nodes / 200`, at least 1 s and at most 10. That limits the load
to 200 announcements a second, up to 2,000 nodes. Everything is bounded: nodes, sample, grants.
"""

from dataclasses import dataclass, field

from functions.decisions.distribution.chunk_bits import Rng, full, pick
from functions.decisions.distribution.peers import PeerFacts
from functions.decisions.distribution.swarm import PeerAnswer

_ACCUSERS = 2  # a single accuser may itself be at fault
_FAR_SHARE = 4  # one peer in so many of a sample is of another zone


@dataclass(frozen=True, slots=True)
class BoardPolicy:
    max_nodes: int = 4096
    sample: int = 32
    max_grants: int = 256  # per node
    expire_after_s: float = 15.0  # silence after which a node expires, at least three announcements. A lost one
    # costs a node 8 s (1 until it is due, 5 without an answer, 2 until the next): its grants must outlive that
    lease_s: float = 60.0  # one chunk of 64 MiB at 1 MB/s
    announcements_per_s: float = 200.0
    again_min_s: float = 1.0
    again_max_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Announcement:
    address: str
    zone: str
    have: int
    room: int = 0  # number of further chunks that it would read from the store
    avoid: tuple[str, ...] = ()  # peers that are useless to it


@dataclass(slots=True)
class _Member:
    address: str
    zone: str
    have: int
    heard_s: float
    avoid: tuple[str, ...] = ()
    grants: dict[int, float] = field(default_factory=dict)  # chunk to time of the grant


class BoardFull(Exception):
    """The swarm has its maximum of nodes: fetch from the store, or retry later."""


@dataclass(slots=True)
class Board:
    count: int
    policy: BoardPolicy = field(default_factory=BoardPolicy)
    heard_s: float = 0.0
    _members: dict[str, _Member] = field(default_factory=dict)
    _leased: int = 0

    @property
    def nodes(self) -> int:
        return len(self._members)

    def has_member(self, address: str) -> bool:
        return address in self._members

    @property
    def complete(self) -> int:
        return sum(member.have == full(self.count) for member in self._members.values())

    @property
    def leases(self) -> int:
        return sum(len(member.grants) for member in self._members.values())

    @property
    def again_after_s(self) -> float:
        wanted_s = len(self._members) / self.policy.announcements_per_s
        return min(self.policy.again_max_s, max(self.policy.again_min_s, wanted_s))

    def announce(self, announcement: Announcement, now_s: float, rng: Rng) -> PeerAnswer:
        """Update a node with what it announces and return a sample of peers and its grants. Nodes silent for long are
        removed. Raise BoardFull for a new node beyond the maximum."""
        self._excuse_silence(now_s)
        self.heard_s = now_s
        self.expire(now_s)
        member = self._members.get(announcement.address)
        if member is None:
            if len(self._members) >= self.policy.max_nodes:
                raise BoardFull(f"the swarm has {len(self._members)} nodes, the maximum for one artifact")
            member = self._members[announcement.address] = _Member(
                announcement.address, announcement.zone, announcement.have, now_s
            )
        member.zone, member.have, member.heard_s, member.avoid = (
            announcement.zone,
            announcement.have,
            now_s,
            announcement.avoid,
        )
        if member.grants or announcement.room > 0:
            held, is_accused = self._held_for(member), self._is_accused(member)
            self._settle(member, full(self.count) if is_accused else held, now_s)
            if not is_accused:
                self._grant(member, announcement.room, held, now_s, rng)
        grants = sum(1 << chunk for chunk in member.grants)
        return PeerAnswer(self._sample(member, announcement, rng), grants, self.again_after_s, len(self._members))

    def remove_member(self, address: str) -> None:
        """Remove a node and free its grants."""
        member = self._members.pop(address, None)
        if member is not None:
            self._release(member, list(member.grants))

    def expire(self, now_s: float) -> None:
        """Remove nodes that are silent for long while others are not; if no node was heard lately, none is removed."""
        after_s = self._silent_after_s
        if now_s - self.heard_s > after_s / 2:
            return
        for address in [one.address for one in self._members.values() if now_s - one.heard_s > after_s]:
            self.remove_member(address)

    @property
    def _silent_after_s(self) -> float:
        return max(self.policy.expire_after_s, 3 * self.again_after_s)

    def _excuse_silence(self, now_s: float) -> None:
        """Discount a long time in which no node was heard. Otherwise all nodes would expire with their chunks."""
        silent_s = now_s - self.heard_s
        if silent_s > self._silent_after_s / 2:
            for member in self._members.values():
                member.heard_s += silent_s

    def _settle(self, member: _Member, held: int, now_s: float) -> None:
        """End grants whose chunk is in `held`, and grants older than `lease_s`."""
        since_s = now_s - self.policy.lease_s
        self._release(member, [chunk for chunk, at_s in member.grants.items() if held >> chunk & 1 or at_s < since_s])

    def _release(self, member: _Member, chunks: list[int]) -> None:
        for chunk in chunks:
            del member.grants[chunk]
            self._leased &= ~(1 << chunk)

    def _held_for(self, member: _Member) -> int:
        """Return the chunks that a node has or can get from nodes that it does not avoid."""
        held = member.have
        for other in self._members.values():
            if other.address not in member.avoid:
                held |= other.have
        return held

    def _grant(self, member: _Member, room: int, held: int, now_s: float, rng: Rng) -> None:
        if room <= 0:
            return
        free = full(self.count) & ~held & ~self._leased
        share = -(-free.bit_count() // (4 * len(self._members)))
        for _ in range(min(max(room, share), self.policy.max_grants - len(member.grants))):
            if not free:
                return
            chunk = pick(free, self.count, rng)
            free &= ~(1 << chunk)
            self._leased |= 1 << chunk
            member.grants[chunk] = now_s

    def _is_accused(self, member: _Member) -> bool:
        """Return True if several nodes report this one useless. Other nodes would have to read its chunks again."""
        return sum(member.address in one.avoid for one in self._members.values()) >= _ACCUSERS

    def _sample(self, member: _Member, announcement: Announcement, rng: Rng) -> tuple[PeerFacts, ...]:
        """Return at most `sample` nodes that the member does not avoid: those with chunks that it lacks, most in its
        zone and some in others, filled up with the rest as a reserve."""
        wanted = full(self.count) & ~member.have
        avoid = {member.address, *announcement.avoid}
        others = [one for one in self._members.values() if one.address not in avoid]
        near = [one for one in others if one.have & wanted and one.zone == member.zone]
        far = [one for one in others if one.have & wanted and one.zone != member.zone]
        for_far = min(len(far), max(self.policy.sample // _FAR_SHARE, self.policy.sample - len(near)))
        chosen = rng.sample(near, min(len(near), self.policy.sample - for_far)) + rng.sample(far, for_far)
        idle = [one for one in others if not one.have & wanted]
        chosen += rng.sample(idle, min(len(idle), self.policy.sample - len(chosen)))
        return tuple(PeerFacts(one.address, one.zone, one.have) for one in chosen)
