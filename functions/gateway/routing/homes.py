"""Session homes: the replica of each conversation's last turn, so that the next turn finds its KV cache from any
gateway.

Sources of a home, the best first:

    seen      this gateway sent the last turn there
    told      another gateway sent it there and published that
    assumed   nothing is known: a hash gives the same replica at all gateways (`functions.decisions.routing.homes`)

A gateway publishes only exceptions: conversations that went elsewhere because their assumed home was busy or gone for
a moment. It publishes within 0.2 s and again halfway through the session time. The latest report wins. Without the
bus each gateway uses what it has seen and what all assume. Unpublished homes are published later or counted as lost.
Worked example (test_only_homes_that_differ_from_the_hash_are_published): a conversation goes to its assumed home,
and nothing is published. At its next turn that replica is busy and it goes to B, which is published. At another
gateway the third turn goes to B.

When another replica becomes ready (or holds the adapter), the assumed home of some conversations changes, including
conversations at their former assumed home, which were never published. The gateways that have seen them publish them
before the new replica becomes the assumed home of any (`functions.decisions.routing.homes`). Worked example
(test_joining_replica_gets_no_running_conversation): C joins A and B. Of 40 conversations at A and B,
13 would be assumed at C, and are published as being at A or B.

A home is valid for the pool's session time (`session.ttl` of its RoutingPolicy) after the last turn. Routing decides
whether a turn goes home: it does not wait for a replica that is gone or has its share.

Memory is bounded, each tenant at its own cost (`SessionTable`). `router` queries and reports,
`functions.gateway.feeds` sends and receives batches, and `functions.fleet.session_homes` defines their format.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.decisions.routing.replicas import EVERY
from functions.decisions.routing.sessions import SessionTable
from functions.fleet.session_homes import (
    MAX_PLACES_PER_BATCH,
    MAX_SESSIONS_PER_BATCH,
    HomeBatch,
    SessionsAt,
    hashes_in,
    sessions_at,
)

MAX_HOMES = 100_000  # about 30 MB
MAX_UNPUBLISHED = 65_536  # limit while the bus is unreachable
_LOOKED_AT = 1_000  # conversations to recheck per call: 10 ms

_Key = tuple[PoolName, bytes]
# Common part of one batch entry, with the session time
_BatchKey = tuple[PoolName, ReplicaId, float]


@dataclass(slots=True)
class Home:
    replica_id: ReplicaId
    until_s: float
    since_s: float  # time of the last known request to it
    is_seen: bool  # seen by this gateway; else reported by another
    is_told: bool  # published to the other gateways, which then assume nothing
    told_s: float  # time of the last publication
    name: EngineName = EVERY  # adapter that answers it


class SessionHomes:
    """Homes of conversations at one gateway. Owned by one event loop; times are monotonic seconds unless named unix."""

    def __init__(self, clock: Callable[[], float], max_homes: int = MAX_HOMES) -> None:
        self._clock = clock
        self._homes: SessionTable[PoolName, Home] = SessionTable(max_homes)
        self._unpublished: OrderedDict[_Key, tuple[ReplicaId, float]] = OrderedDict()  # replica and session time
        self._to_recheck: deque[_Key] = deque()  # conversations whose assumed home may have changed
        self.told_total = 0  # number of conversations published
        self.heard_total = 0
        self.lost_total = 0  # never published, because the bus was unreachable for too long

    def home_of(self, pool: PoolName, conversation: bytes) -> Home | None:
        """Return the known home (replica) of a conversation in this pool, or None if it is unknown or expired."""
        home = self._homes.get((pool, conversation))
        return home if home is not None and self._clock() < home.until_s else None

    def record_sent(  # noqa: PLR0917  one conversation's place, for each request
        self,
        pool: PoolName,
        conversation: bytes,
        replica_id: ReplicaId,
        assumed: ReplicaId | None,
        ttl_s: float,
        name: EngineName = EVERY,
    ) -> None:
        """Record the replica of the last turn. `assumed` is the home that other gateways assume without a report."""
        if ttl_s <= 0.0:
            return
        now_s, key = self._clock(), (pool, conversation)
        held = self._homes.get(key)
        if held is not None and held.until_s <= now_s:
            held = None
        if held is None or held.replica_id != replica_id:
            was_told = held is not None and held.is_told
            held = Home(replica_id, 0.0, now_s, is_seen=True, is_told=was_told, told_s=float("-inf"))
        held.until_s, held.since_s, held.is_seen, held.name = now_s + ttl_s, now_s, True, name
        held.is_told = held.is_told or replica_id != assumed
        self._homes.put(key, held)
        if held.is_told and now_s - held.told_s >= ttl_s / 2:
            held.told_s = now_s
            self._publish_later(key, replica_id, ttl_s)

    def expire(self) -> None:
        """Forget expired homes. Called a few times a second."""
        now_s = self._clock()
        self._homes.expire(lambda held: held.until_s <= now_s)

    def recheck(self, pool: PoolName, names: Collection[EngineName]) -> None:
        """Mark the pool's conversations for `publish_moved`, because more replicas can answer these names."""
        known = set(self._to_recheck)
        for key, held in self._homes.items():
            is_meant = key[0] == pool and (held.name in names or EVERY in names)
            if is_meant and held.is_seen and not held.is_told and key not in known:
                self._to_recheck.append(key)

    def publish_moved(self, assumed: Callable[[PoolName, bytes, EngineName], ReplicaId | None]) -> None:
        """Check at most _LOOKED_AT marked conversations; queue for publishing those whose assumed home has changed."""
        now_s = self._clock()
        for _ in range(min(len(self._to_recheck), _LOOKED_AT)):
            pool, conversation = key = self._to_recheck.popleft()
            held = self.home_of(pool, conversation)
            if held is None or held.is_told or assumed(pool, conversation, held.name) == held.replica_id:
                continue
            held.is_told, held.told_s = True, now_s
            self._publish_later(key, held.replica_id, held.until_s - held.since_s)

    # batches to and from other gateways

    def to_publish(self) -> list[SessionsAt]:
        """Remove and return the content of the next batch; empty if nothing is unpublished."""
        alike: dict[_BatchKey, list[bytes]] = {}
        for _ in range(min(len(self._unpublished), MAX_SESSIONS_PER_BATCH)):
            (pool, conversation), (replica_id, ttl_s) = self._unpublished.popitem(last=False)
            place = (pool, replica_id, ttl_s)
            if place not in alike and len(alike) >= MAX_PLACES_PER_BATCH:
                self._unpublished[pool, conversation] = replica_id, ttl_s
                break
            alike.setdefault(place, []).append(conversation)
        return [sessions_at(pool, replica_id, ttl_s, hashes) for (pool, replica_id, ttl_s), hashes in alike.items()]

    def count_published(self, batch: Iterable[SessionsAt]) -> None:
        self.told_total += sum(len(hashes_in(homes)) for homes in batch)

    def publish_failed(self, batch: Iterable[SessionsAt]) -> None:
        """Queue again what the bus did not accept, unless a newer home of the same conversation is queued."""
        for homes in batch:
            for conversation in hashes_in(homes):
                key = (PoolName(homes.pool), conversation)
                if key not in self._unpublished:
                    self._publish_later(key, ReplicaId(homes.replica), homes.ttl_s)

    def receive_batch(self, batch: HomeBatch, now_unix_s: float) -> None:
        """Store a gateway's homes that have not expired; homes that were recorded later are kept.

        Raise HomesInvalid if they are malformed. Our own batches come back too. After a restart they are all that a
        gateway of the same name has.
        """
        now_s, age_s = self._clock(), max(0.0, now_unix_s - batch.sent_unix_s)
        for homes in batch.homes:
            left_s, pool, replica_id = homes.ttl_s - age_s, PoolName(homes.pool), ReplicaId(homes.replica)
            for conversation in hashes_in(homes) if left_s > 0.0 else ():
                key = (pool, conversation)
                held = self.home_of(pool, conversation)
                if held is not None and held.since_s > now_s - age_s:
                    continue
                is_seen = held is not None and held.is_seen and held.replica_id == replica_id
                told = Home(replica_id, now_s + left_s, now_s - age_s, is_seen, is_told=True, told_s=now_s)
                self._homes.put(key, told)
                self.heard_total += held is None or held.replica_id != replica_id

    def __len__(self) -> int:
        return len(self._homes)

    @property
    def unpublished(self) -> int:
        return len(self._unpublished)

    def _publish_later(self, key: _Key, replica_id: ReplicaId, ttl_s: float) -> None:
        self._unpublished[key] = replica_id, ttl_s
        if len(self._unpublished) > MAX_UNPUBLISHED:
            self._unpublished.popitem(last=False)
            self.lost_total += 1
