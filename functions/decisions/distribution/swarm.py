"""One node's part in a swarm: the next chunk, and the peer to fetch it from. No I/O.

    1 origin   chunks that the tracker granted to this node are read from the store (S3): all other nodes wait for them
    2 peers    chunks that usable peers have: own zone before others, rarest first, ties at random; among the holders,
               the one with the fewest requests from us
    3 the end  one of the last few chunks that has been in flight for long is requested from a second peer

Without a tracker (`tracker_silent_s`), chunks that no known peer has get a reader by rendezvous hash over the peers
that are of use. The n-th node of that order reads if it has made no progress for n * `takeover_s`. Without peers, the
node reads everything from the store immediately. A tracker that never answered is given up sooner, but not after one
lost answer: an overloaded tracker loses many, and each node without a tracker reads the whole artifact from the store.

Worked example (test_worked_example): 4 chunks, peer A has 0 and 1, peer B has 1. Chunk 0 is rarer, so it is requested
from A first; then 1 from B, since A has a request in flight already. 2 and 3 wait for a grant.

The shell (artifacts/swarm, or the simulator) calls `next` after each end of a request and each tick, executes the
requests, and reports how each ended. A returned `PeerRequest` is in flight until then. Times are monotonic seconds.
"""

import hashlib
from dataclasses import dataclass, field
from itertools import islice

from functions.decisions.distribution.chunk_bits import Rng, full, indexes, pick
from functions.decisions.distribution.peers import Peer, PeerBook, PeerFacts, PeerFailure
from functions.decisions.health.backoff import BackoffPolicy, delay_s

ORIGIN_BACKOFF = BackoffPolicy(base_s=0.5, cap_s=8.0)  # a store failure of ten seconds costs at most eight more
_DESIGNATE_AT_ONCE = 256  # chunks; with 48 peers 9 ms of hashing, at most once a second
_DESIGNATE_EVERY_S = 1.0
_TRACKER_TRIES = 3  # failures of a tracker that never answered: 4 s if it refuses, `tracker_silent_s` if it is silent


@dataclass(frozen=True, slots=True)
class SwarmPolicy:
    max_requests: int = 4  # chunks in flight from peers; more than a node uploads concurrently would be refused
    max_per_peer: int = 2  # the next chunk of a peer is requested while the last one is in flight
    origin_requests: int = 2
    max_peers: int = 48  # known peers; random graphs of far lower degree are connected
    endgame_chunks: int = 4  # at most so many chunks are requested twice
    endgame_after_s: float = 2.0
    ban_s: float = 600.0
    tracker_silent_s: float = 15.0
    takeover_s: float = 5.0


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """Request of `chunk` from `peer` (None: the store). `number` distinguishes two requests for one chunk."""

    chunk: int
    peer: str | None
    number: int


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """Answer of the tracker: a sample of peers, and the chunks that this node should read from the store."""

    peers: tuple[PeerFacts, ...]
    grants: int
    again_after_s: float
    nodes: int


@dataclass(slots=True)
class Swarm:
    me: str
    zone: str
    count: int
    have: int
    began_s: float
    policy: SwarmPolicy = field(default_factory=SwarmPolicy)
    grants: int = 0
    peers: PeerBook = field(init=False)
    _asks: dict[int, dict[int, tuple[PeerRequest, float]]] = field(
        default_factory=dict
    )  # requests in flight by chunk and number, with their start
    _flying: int = 0
    _from_peers: int = 0
    _from_origin: int = 0
    _asked: int = 0
    _origin_failures: int = 0
    _origin_not_before_s: float = 0.0
    _tracker_heard_s: float = field(init=False)
    _progress_s: float = field(init=False)
    _designated_s: float = -_DESIGNATE_EVERY_S
    _tracker_answered: bool = False
    _tracker_failures: int = 0
    _without_tracker: bool = False

    def __post_init__(self) -> None:
        self.peers = PeerBook(self.me, self.count, self.policy.max_peers, self.policy.ban_s)
        self._tracker_heard_s = self._progress_s = self.began_s

    @property
    def missing(self) -> int:
        return full(self.count) & ~self.have

    @property
    def waits(self) -> int:
        """Chunks (as bits) that are missing and not in flight."""
        return self.missing & ~self._flying

    @property
    def in_flight(self) -> int:
        return self._from_peers + self._from_origin

    def is_alone(self, now_s: float) -> bool:
        """Return True if the tracker has been silent for `tracker_silent_s`, so that this node continues without it."""
        return now_s - self._tracker_heard_s >= self.policy.tracker_silent_s

    def avoided(self, now_s: float) -> tuple[str, ...]:
        """Return the addresses of peers that are useless to this node (banned, failing, lying). The tracker plans
        without them."""
        banned = [address for address in self.peers.bans if self.peers.is_banned(address, now_s)]
        return (*banned, *(peer.address for peer in self.peers.all() if peer.is_useless))

    def apply_tracker_answer(self, answer: PeerAnswer, now_s: float) -> None:
        """Apply an answer of the tracker: add its peers. Its grants of chunks to read from the store replace the
        earlier ones."""
        self._tracker_heard_s, self._tracker_answered, self._without_tracker = now_s, True, False
        self.grants = answer.grants & self.missing
        for facts in answer.peers:
            self.peers.add_peer(facts, now_s)

    def tracker_failed(self) -> None:
        """Record a failed announcement. A tracker that never answered is given up after _TRACKER_TRIES, until it
        answers."""
        self._tracker_failures += 1
        if not self._tracker_answered and self._tracker_failures >= _TRACKER_TRIES:
            self._without_tracker = True

    def has_no_tracker(self) -> None:
        self._without_tracker = True

    def next(self, now_s: float, rng: Rng) -> list[PeerRequest]:
        """Return the requests to make now, to peers and to the store. Each is in flight from here on."""
        if self.is_alone(now_s) or self._without_tracker:
            self._designate(now_s, rng)
        asks: list[PeerRequest] = []
        while (
            ask := self._from_store(now_s, rng) or self._from_a_peer(now_s, rng) or self._duplicate_request(now_s)
        ) is not None:
            asks.append(ask)
        return asks

    def record_chunk(self, ask: PeerRequest, now_s: float) -> list[PeerRequest]:
        """Record a verified chunk. Return the other requests for it that are in flight, which are now useless."""
        self._end_request(ask)
        self.have |= 1 << ask.chunk
        self.grants &= self.have ^ full(self.count)
        self._progress_s = now_s
        if ask.peer is None:
            self._origin_failures = 0
        else:
            self.peers.record_success(ask.peer)
        return [other for other, _ in self._asks.get(ask.chunk, {}).values()]

    def record_failure(
        self, ask: PeerRequest, failure: PeerFailure, now_s: float, *, after_s: float = 0.0, found: str = ""
    ) -> None:
        """Record a failed request to a peer or to the store, which is then used later. After BUSY, the peer may be used
        again in `after_s`; `found` describes the bytes of a corrupt chunk."""
        self._end_request(ask)
        if ask.peer is not None:
            self.peers.record_failure(ask.peer, ask.chunk, failure, now_s, after_s=after_s, found=found)
            return
        self._origin_failures += 1
        self._origin_not_before_s = now_s + delay_s(self._origin_failures, ORIGIN_BACKOFF)

    def cancel_request(self, ask: PeerRequest) -> None:
        """Record that this node itself cancelled the request, which is no failure of the peer."""
        self._end_request(ask)

    def _from_store(self, now_s: float, rng: Rng) -> PeerRequest | None:
        ready = self.grants & self.waits
        if not ready or self._from_origin >= self.policy.origin_requests or self._origin_not_before_s > now_s:
            return None
        return self._start_request(pick(ready, self.count, rng), None, now_s)

    def _from_a_peer(self, now_s: float, rng: Rng) -> PeerRequest | None:
        waits = self.waits
        if not waits or self._from_peers >= self.policy.max_requests:
            return None
        usable = [peer for peer in self.peers.usable(self.policy.max_per_peer, now_s) if peer.have & waits]
        for group in ([peer for peer in usable if peer.zone == self.zone], usable):
            offered = 0
            for peer in group:
                offered |= peer.have
            if offered & waits:
                chunk = pick(self.peers.rarity.rarest(offered & waits), self.count, rng)
                return self._start_request(chunk, _least_asked(group, chunk, rng), now_s)
        return None

    def _duplicate_request(self, now_s: float) -> PeerRequest | None:
        """Start a second request, from another peer, for a chunk that has been in flight for `endgame_after_s`, if only
        a few chunks are left and all are in flight. Return it, or None."""
        if self.waits or not 0 < len(self._asks) <= self.policy.endgame_chunks:
            return None
        usable = self.peers.usable(self.policy.max_per_peer, now_s)
        for chunk, asks in self._asks.items():
            (first, since_s), *others = asks.values()
            if others or now_s - since_s < self.policy.endgame_after_s:
                continue
            holders = [peer for peer in usable if peer.have >> chunk & 1 and peer.address != first.peer]
            if holders:
                return self._start_request(chunk, min(holders, key=lambda peer: peer.in_flight), now_s)
        return None

    def _designate(self, now_s: float, rng: Rng) -> None:
        """Grant this node some chunks that no useful peer has and that it is the next to read from the store, at most
        once per _DESIGNATE_EVERY_S."""
        if now_s - self._designated_s < _DESIGNATE_EVERY_S:
            return
        self._designated_s = now_s
        hopeful = [peer for peer in self.peers.all() if not peer.is_useless]
        idle_s = now_s - max(self._progress_s, self.began_s)
        offered = 0
        for peer in hopeful:
            offered |= peer.have
        wanted = self.waits & ~offered
        if not wanted:
            return
        start = pick(wanted, self.count, rng)
        around = [*indexes(wanted >> start << start), *indexes(wanted & full(start))]
        for chunk in islice(around, _DESIGNATE_AT_ONCE):
            if idle_s >= reader_rank(self.me, [peer.address for peer in hopeful], chunk) * self.policy.takeover_s:
                self.grants |= 1 << chunk

    def _start_request(self, chunk: int, peer: Peer | None, now_s: float) -> PeerRequest:
        self._asked += 1
        ask = PeerRequest(chunk, None if peer is None else peer.address, self._asked)
        self._asks.setdefault(chunk, {})[ask.number] = (ask, now_s)
        self._flying |= 1 << chunk
        if peer is None:
            self._from_origin += 1
        else:
            self._from_peers += 1
            peer.in_flight += 1
        return ask

    def _end_request(self, ask: PeerRequest) -> None:
        asks = self._asks[ask.chunk]  # KeyError: the shell reported a request that is not in flight
        del asks[ask.number]
        if not asks:
            del self._asks[ask.chunk]
            self._flying &= ~(1 << ask.chunk)
        if ask.peer is None:
            self._from_origin -= 1
            return
        self._from_peers -= 1
        if (peer := self.peers.get(ask.peer)) is not None:
            peer.in_flight = max(0, peer.in_flight - 1)  # the peer may have been dropped and added again meanwhile


def reader_rank(me: str, others: list[str], chunk: int) -> int:
    """Return this node's rank (0: it reads first) among the nodes that may read a chunk from the store, by rendezvous
    hash.

    Nodes that know the same peers agree on the order. A node that is not known to all shifts only its own chunks.
    Worked example (test_every_chunk_has_one_first_reader): of 3 nodes exactly one has rank 0 for each chunk, and each
    has it for about a third of them.
    """
    mine = _weight(me, chunk)
    return sum(_weight(other, chunk) > mine for other in others)


def _weight(address: str, chunk: int) -> bytes:
    return hashlib.blake2b(f"{address}|{chunk}".encode(), digest_size=8).digest()


def _least_asked(peers: list[Peer], chunk: int, rng: Rng) -> Peer:
    holders = [peer for peer in peers if peer.have >> chunk & 1]
    fewest = min(peer.in_flight for peer in holders)
    return rng.choice([peer for peer in holders if peer.in_flight == fewest])
