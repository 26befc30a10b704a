"""One simulated node: the real `Swarm` decides, and this class replaces the sockets in virtual time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from functions.decisions.distribution.peers import PeerFailure
from functions.decisions.distribution.swarm import PeerRequest, Swarm
from functions.decisions.distribution.tracker import Announcement

if TYPE_CHECKING:
    from studies.fan_out.simulation import Simulation


# A link as a token bucket: reserved bytes pass one after the other, at the link's rate, as in the real node's
# `Bandwidth`. Worked example (test_link_serves_transfers_in_sequence): two transfers of two slices of 1 MB on a link
# of 1 MB/s, started together, alternate and end after 3 and 4 s.


@dataclass(slots=True)
class Link:
    bytes_per_s: float
    free_at_s: float = 0.0

    def reserve(self, size_bytes: float, now_s: float) -> float:
        """Reserve the bytes. Return when they will have passed."""
        self.free_at_s = max(self.free_at_s, now_s) + size_bytes / self.bytes_per_s
        return self.free_at_s


_EARLY_S = 0.25  # as in the real node: an idle node announces itself early
_REFUSED_AFTER_S = 0.01  # connection refused by a dead node


@dataclass(slots=True)
class SimNode:
    simulation: Simulation
    index: int
    address: str
    zone: str
    began_s: float
    swarm: Swarm
    rng: Random
    up: Link
    down: Link
    corrupt: bool = False
    alive: bool = True
    uploads: int = 0
    finished_s: float | None = None
    failures: Counter[str] = field(default_factory=Counter)
    from_peers_bytes: int = 0
    _running: dict[int, PeerRequest] = field(default_factory=dict)
    _announced_s: float = -1.0
    _announcing: int = 0  # number of the next announcement; earlier ones are void

    def start(self) -> None:
        if self.simulation.assumptions.swarm:
            self._announce(0)
        else:
            self.swarm.has_no_tracker()
        self._tick()

    def kill(self) -> None:
        self.alive = False

    def pump(self) -> None:
        """Send all requests that are allowed now."""
        events = self.simulation.events
        for ask in self.swarm.next(events.now_s, self.rng):
            self._running[ask.number] = ask
            if ask.peer is None:
                events.after(self.simulation.assumptions.store_latency_s, partial(self._reach_store, ask))
            else:
                events.after(self.simulation.assumptions.latency_s, partial(self._reach_peer, ask))
        if not self._running and self.simulation.assumptions.swarm:
            self._announce_by(max(events.now_s, self._announced_s + _EARLY_S))

    def _tick(self) -> None:
        if self.alive and self.finished_s is None:
            self.pump()
            self.simulation.events.after(self.simulation.assumptions.tick_s, self._tick)

    def _reach_store(self, ask: PeerRequest) -> None:
        down = self.simulation.assumptions.store_down
        if down is not None and down[0] <= self.simulation.events.now_s < down[1]:
            self._failed(ask, PeerFailure.BROKEN)
        else:
            self._slice(ask, None, self.simulation.store, self.simulation.assumptions.slices)

    def _reach_peer(self, ask: PeerRequest) -> None:
        peer = self.simulation.nodes_by_address[ask.peer or ""]
        latency_s = self.simulation.assumptions.latency_s
        if not peer.alive:
            self.simulation.events.after(_REFUSED_AFTER_S, partial(self._failed, ask, PeerFailure.BROKEN))
        elif not peer.swarm.have >> ask.chunk & 1:
            self.simulation.events.after(latency_s, partial(self._failed, ask, PeerFailure.LACKS))
        elif peer.uploads >= self.simulation.assumptions.max_uploads:
            after_s = min(2.0, max(0.05, 2 * self.simulation.assumptions.chunk_bytes / peer.up.bytes_per_s))
            self.simulation.events.after(latency_s, partial(self._failed, ask, PeerFailure.BUSY, after_s))
        else:
            peer.uploads += 1
            self.swarm.peers.add_chunks(peer.address, peer.swarm.have)
            self._slice(ask, peer, peer.up, self.simulation.assumptions.slices)

    def _slice(self, ask: PeerRequest, peer: SimNode | None, source: Link, left: int) -> None:
        """Send one slice of the chunk through both links, then the next."""
        now_s = self.simulation.events.now_s
        wanted = self.alive and ask.number in self._running
        if left == 0 or not wanted or (peer is not None and not peer.alive):
            if peer is not None:
                peer.uploads -= 1
            if wanted:
                self._ended(ask, peer, whole=left == 0)
            return
        size_bytes = self.simulation.size_of(ask.chunk) / self.simulation.assumptions.slices
        if peer is None:
            self.simulation.store_bytes += size_bytes
        through_s = max(source.reserve(size_bytes, now_s), self.down.reserve(size_bytes, now_s))
        self.simulation.events.at(through_s, partial(self._slice, ask, peer, source, left - 1))

    def _ended(self, ask: PeerRequest, peer: SimNode | None, *, whole: bool) -> None:
        if not whole:
            self._failed(ask, PeerFailure.BROKEN)
        elif peer is not None and peer.corrupt:
            self._failed(ask, PeerFailure.CORRUPT)
        else:
            self._arrived(ask)

    def _arrived(self, ask: PeerRequest) -> None:
        del self._running[ask.number]
        for useless in self.swarm.record_chunk(ask, self.simulation.events.now_s):
            del self._running[useless.number]
            self.swarm.cancel_request(useless)
        if ask.peer is not None:
            self.from_peers_bytes += self.simulation.size_of(ask.chunk)
        if self.swarm.missing:
            self.pump()
            return
        hashing_s = self.simulation.assumptions.size_bytes / self.simulation.assumptions.hash_bytes_per_s
        self.finished_s = self.simulation.events.now_s + hashing_s
        self.simulation.on_finished(self)

    def _failed(self, ask: PeerRequest, failure: PeerFailure, after_s: float = 0.0) -> None:
        if not self.alive or ask.number not in self._running:
            return
        del self._running[ask.number]
        self.failures[failure.value] += 1
        after_s *= 0.5 + self.rng.random()
        self.swarm.record_failure(ask, failure, self.simulation.events.now_s, after_s=after_s)
        self.pump()

    def _announce(self, number: int) -> None:
        """Make a round trip to the tracker; finished nodes stay as seeds."""
        if not self.alive or number != self._announcing:
            return
        events, latency_s = self.simulation.events, self.simulation.assumptions.latency_s
        self._announced_s = events.now_s
        room = max(0, 2 * self.swarm.policy.origin_requests - self.swarm.grants.bit_count())
        avoid = self.swarm.avoided(events.now_s)
        news = Announcement(self.address, self.zone, self.swarm.have, room if self.swarm.missing else 0, avoid)
        answer = self.simulation.announce(news)
        self._announce_by(events.now_s + answer.again_after_s)

        def receive_answer() -> None:
            if self.alive and self.finished_s is None:
                self.swarm.apply_tracker_answer(answer, events.now_s)
                self.pump()

        events.after(2 * latency_s, receive_answer)

    def _announce_by(self, when_s: float) -> None:
        self._announcing += 1
        self.simulation.events.at(when_s, partial(self._announce, self._announcing))
