"""The peers that one node knows for one artifact: who has what, who may be asked now, who may not and why.

Law: a peer is asked again after each kind of failure, but later each time. Busy: after the time it said (doubling that
made nodes slower in the simulator, and hardly any requests fewer); one that says nothing else for two minutes is of no
use, or what it alone claims to have would never be read elsewhere. Broken, slow, or without the chunk that it was said
to have: doubling from 0.5 s to 30 s. A sender of bytes that do not hash to their name: not for ten minutes, with the
evidence kept, since either its disk or its word is bad. Peers are known by the address that they listen on. The book
is bounded: the least recently heard of goes first. Times are monotonic seconds, given as arguments.
Neighbours: swarm (which chunk from whom), swarm_board (the tracker that names peers).
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum

from functions.decisions.distribution.chunk_bits import Rarity
from functions.decisions.health.backoff import BackoffPolicy, delay_s

MAX_BANS = 256
_USELESS_AFTER = 3
_REFUSED_FOR_S = 120.0  # an honest one has given its rarest chunks to others by then: nothing is read twice for it
PEER_BACKOFF = BackoffPolicy(base_s=0.5, cap_s=30.0)


class Failure(Enum):
    """How a request to a peer ended without its chunk."""

    BUSY = "busy"  # it serves as many as it may
    LACKS = "lacks"  # it does not have the chunk after all
    SLOW = "slow"  # it drips
    BROKEN = "broken"  # refused, reset, silent, no HTTP
    CORRUPT = "corrupt"  # the bytes are others than the chunk's name says


@dataclass(frozen=True, slots=True)
class PeerFacts:
    """A peer as the tracker or the peer itself tells of it."""

    address: str  # host:port
    zone: str
    have: int


@dataclass(frozen=True, slots=True)
class Ban:
    """Why a peer is not asked, and until when."""

    address: str
    chunk: int
    found: str  # what came instead, in words
    until_s: float


@dataclass(slots=True)
class Peer:
    address: str
    zone: str
    have: int = 0
    in_flight: int = 0
    failures: int = 0  # in a row
    lacked: int = 0  # chunks that it said to have and had not
    not_before_s: float = 0.0
    refused_since_s: float | None = None  # busy ever since it last gave something
    refuses: bool = False

    @property
    def is_useless(self) -> bool:
        """It fails again and again, does not have what it says, or is never free."""
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
        self.rarity = Rarity(self.count, self.max_peers + 1)  # one too many for the moment before one is forgotten

    def __len__(self) -> int:
        return len(self._peers)

    def get(self, address: str) -> Peer | None:
        return self._peers.get(address)

    def all(self) -> list[Peer]:
        return list(self._peers.values())

    def learn(self, facts: PeerFacts, now_s: float) -> None:
        """Someone has told of this peer; what it has only grows, unless it turned out to lack something."""
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

    def gossip(self, address: str, have: int) -> None:
        """The peer itself says what it has."""
        if (peer := self._peers.get(address)) is not None:
            self._gain(peer, have)

    def usable(self, max_per_peer: int, now_s: float) -> list[Peer]:
        """Who may be asked for one more chunk now."""
        return [peer for peer in self._peers.values() if peer.in_flight < max_per_peer and peer.not_before_s <= now_s]

    def succeeded(self, address: str) -> None:
        if (peer := self._peers.get(address)) is not None:
            peer.failures, peer.refused_since_s, peer.refuses = 0, None, False

    def failed(self, address: str, chunk: int, failure: Failure, now_s: float, *, after_s: float, found: str) -> None:
        """Ask it again later, or not for this chunk, or not at all."""
        peer = self._peers.get(address)
        if failure is Failure.CORRUPT:
            self._ban(Ban(address, chunk, found, now_s + self.ban_s), now_s)
        elif peer is None:
            return
        elif failure is Failure.BUSY:
            peer.not_before_s = now_s + after_s
            since_s = peer.refused_since_s = now_s if peer.refused_since_s is None else peer.refused_since_s
            peer.refuses = now_s - since_s >= _REFUSED_FOR_S
        else:
            if failure is Failure.LACKS:
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
