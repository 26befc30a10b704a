"""Peers of a node for one artifact: their chunks, and which of them may be used now.

Law: after each kind of failure a peer is used again, but later each time.
Busy: after the time that it requested (doubling that made nodes slower in the simulator and saved hardly any requests).
If it returns nothing but busy for two minutes, it is useless: chunks that it alone claims would otherwise never be read
from another source. Broken, slow, or without a chunk that it should have: doubling from 0.5 s to 30 s. Sender of bytes
that do not hash to their name: not for ten minutes, and the evidence is stored, since either its disk or its claim is
bad. Peers are identified by the address that they listen on. The book is bounded: the peer that was reported least
recently is dropped first. Times are monotonic seconds, passed as arguments.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum

from functions.decisions.distribution.chunk_bits import Rarity
from functions.decisions.health.backoff import BackoffPolicy, delay_s

MAX_BANS = 256
_USELESS_AFTER = 3
_REFUSED_FOR_S = 120.0  # by then, an honest peer has sent its rarest chunks to others, so none is read twice
PEER_BACKOFF = BackoffPolicy(base_s=0.5, cap_s=30.0)


class PeerFailure(Enum):
    """Reason why a request to a peer ended without its chunk."""

    BUSY = "busy"  # the peer serves as many requests as it may
    LACKS = "lacks"  # the peer does not have the chunk after all
    SLOW = "slow"  # the peer sends too slowly
    BROKEN = "broken"  # refused, reset, silent, no HTTP
    CORRUPT = "corrupt"  # the bytes do not hash to the chunk's name


@dataclass(frozen=True, slots=True)
class PeerFacts:
    """Facts about a peer, reported by the tracker or by the peer itself."""

    address: str  # host:port
    zone: str
    have: int


@dataclass(frozen=True, slots=True)
class Ban:
    """Ban of a peer: the evidence, and the end of the ban."""

    address: str
    chunk: int
    found: str  # description of the bytes that came instead
    until_s: float


@dataclass(slots=True)
class Peer:
    address: str
    zone: str
    have: int = 0
    in_flight: int = 0
    failures: int = 0  # consecutive
    lacked: int = 0  # chunks that it claimed to have and lacked
    not_before_s: float = 0.0
    refused_since_s: float | None = None  # first busy response since its last chunk
    refuses: bool = False

    @property
    def is_useless(self) -> bool:
        """True if the peer fails repeatedly, lacks chunks that it claims, or is always busy."""
        return self.refuses or max(self.failures, self.lacked) >= _USELESS_AFTER


@dataclass(slots=True)
class PeerBook:
    me: str
    count: int  # chunks of the artifact
    max_peers: int
    ban_s: float
    bans: dict[str, Ban] = field(default_factory=dict)
    rarity: Rarity = field(init=False)
    _peers: OrderedDict[str, Peer] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.rarity = Rarity(self.count, self.max_peers + 1)  # one more, for the moment before a peer is dropped

    def __len__(self) -> int:
        return len(self._peers)

    def get(self, address: str) -> Peer | None:
        return self._peers.get(address)

    def all(self) -> list[Peer]:
        return list(self._peers.values())

    def add_peer(self, facts: PeerFacts, now_s: float) -> None:
        """Add or refresh a peer, unless it is this node or banned; beyond `max_peers`, forget those refreshed longest
        ago. A peer's set of chunks only grows, except when it turns out to lack one."""
        if facts.address == self.me or self.is_banned(facts.address, now_s):
            return
        peer = self._peers.get(facts.address)
        if peer is None:
            peer = self._peers[facts.address] = Peer(facts.address, facts.zone)
        self._peers.move_to_end(peer.address)
        self._gain(peer, facts.have)
        while len(self._peers) > self.max_peers:
            idle = (peer.address for peer in self._peers.values() if peer.in_flight == 0)
            self._forget(next(idle, next(iter(self._peers))))

    def add_chunks(self, address: str, have: int) -> None:
        """Add chunks that the peer itself claims to have; an unknown peer is ignored."""
        if (peer := self._peers.get(address)) is not None:
            self._gain(peer, have)

    def usable(self, max_per_peer: int, now_s: float) -> list[Peer]:
        """Return the peers that may serve one more chunk now: fewer than `max_per_peer` are in flight, and no pause
        after a failure is left."""
        return [peer for peer in self._peers.values() if peer.in_flight < max_per_peer and peer.not_before_s <= now_s]

    def record_success(self, address: str) -> None:
        if (peer := self._peers.get(address)) is not None:
            peer.failures, peer.refused_since_s, peer.refuses = 0, None, False

    def record_failure(
        self, address: str, chunk: int, failure: PeerFailure, now_s: float, *, after_s: float, found: str
    ) -> None:
        """Record a failure: a corrupt chunk bans the peer, a busy one is used again in `after_s`, and after any other
        failure it is used later. One that lacks the chunk no longer counts as its holder."""
        peer = self._peers.get(address)
        if failure is PeerFailure.CORRUPT:
            self._ban(Ban(address, chunk, found, now_s + self.ban_s), now_s)
        elif peer is None:
            return
        elif failure is PeerFailure.BUSY:
            peer.not_before_s = now_s + after_s
            since_s = peer.refused_since_s = now_s if peer.refused_since_s is None else peer.refused_since_s
            peer.refuses = now_s - since_s >= _REFUSED_FOR_S
        else:
            if failure is PeerFailure.LACKS:
                self.rarity.lose(peer.have & 1 << chunk)
                peer.have &= ~(1 << chunk)
                peer.lacked += 1
            peer.failures += 1
            peer.not_before_s = now_s + delay_s(peer.failures, PEER_BACKOFF)

    def is_banned(self, address: str, now_s: float) -> bool:
        ban = self.bans.get(address)
        return ban is not None and ban.until_s > now_s

    def _gain(self, peer: Peer, have: int) -> None:
        new = have & ~peer.have
        if new:
            peer.have |= new
            self.rarity.gain(new)

    def _ban(self, ban: Ban, now_s: float) -> None:
        self._forget(ban.address)
        for address in [address for address, old in self.bans.items() if old.until_s <= now_s]:
            del self.bans[address]
        if len(self.bans) >= MAX_BANS:
            del self.bans[min(self.bans, key=lambda address: self.bans[address].until_s)]
        self.bans[ban.address] = ban

    def _forget(self, address: str) -> None:
        peer = self._peers.pop(address, None)
        if peer is not None:
            self.rarity.lose(peer.have)
