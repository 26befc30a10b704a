"""Session homes: where each conversation went last, so that its next turn finds its cache, at whichever gateway.

What is known of a conversation, the best first:

    seen      this gateway sent its last turn there
    told      another gateway did, and said so
    assumed   nobody said anything: where every gateway looks for it (`functions.decisions.routing.homes`)

A gateway tells the others only of what they would not assume: a conversation that went elsewhere (its home was busy, or
gone for a moment), within 0.2 s and again halfway through its time. The latest word counts. With the bus away each
gateway goes on with what it has seen and what all assume; what could not be told is told later, or counted as lost.
Worked example (test_only_exceptions_are_told): a conversation goes to its assumed home: nothing is told. Its next turn
finds that replica busy and goes to B: told; at another gateway the third turn goes to B.

Where one more replica is ready (or holds the adapter) all assume another home for some conversations, also for those
that went where all had assumed them to be, and of which nobody has said a word. So whoever has seen such a one tells of
it then, before the newcomer is assumed to be anybody's home (`functions.decisions.routing.homes`).
Worked example (test_a_replica_that_joins_takes_no_conversation_that_another_has): C joins A and B; of 40 conversations
at A and B, 13 would be assumed at C, and are told to be at A or B.

A home holds for the pool's session time (`session.ttl` of its RoutingPolicy) after the last turn. Whether a turn goes
home is routing's affair: a replica that is gone or has its share is not waited for.

Bounded, each tenant at its own cost (`SessionTable`). Neighbours: `router` asks and reports; `functions.gateway.feeds`
carries batches; `functions.fleet.session_homes` is their form on the bus.
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
MAX_UNPUBLISHED = 65_536  # while the bus is away
_LOOKED_AT = 1_000  # conversations at once of those that all may assume elsewhere now: 10 ms

_Key = tuple[PoolName, bytes]
_BatchKey = tuple[PoolName, ReplicaId, float]  # what one entry of a batch has in common, its time with it


@dataclass(slots=True)
class Home:
    replica_id: ReplicaId
    until_s: float
    since_s: float  # when it was sent there last, as far as is known
    is_seen: bool  # by this gateway; else another one said so
    is_told: bool  # the others were told of this conversation: they assume nothing any more
    told_s: float  # when they heard last
    name: EngineName = EVERY  # the adapter that answers it


class SessionHomes:
    """Owned by one event loop. Times are monotonic seconds unless they say unix."""

    def __init__(self, clock: Callable[[], float], max_homes: int = MAX_HOMES) -> None:
        self._clock = clock
        self._homes: SessionTable[PoolName, Home] = SessionTable(max_homes)
        self._unpublished: OrderedDict[_Key, tuple[ReplicaId, float]] = OrderedDict()  # with the session time
        self._to_recheck: deque[_Key] = deque()  # that all may assume elsewhere now
        self.told_total = 0  # conversations
        self.heard_total = 0
        self.lost_total = 0  # never told: the bus was away for too long

    def home_of(self, pool: PoolName, conversation: bytes) -> Home | None:
        """Where its last turn went, if that is known and still holds."""
        home = self._homes.get((pool, conversation))
        return home if home is not None and self._clock() < home.until_s else None

    def sent(  # noqa: PLR0917  one conversation's place, for each request
        self,
        pool: PoolName,
        conversation: bytes,
        replica_id: ReplicaId,
        assumed: ReplicaId | None,
        ttl_s: float,
        name: EngineName = EVERY,
    ) -> None:
        """Its next turn goes there; `assumed` is where the other gateways look for it if nobody tells them."""
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
        """Forget what has run out; called a few times a second."""
        now_s = self._clock()
        self._homes.expire(lambda held: held.until_s <= now_s)

    def recheck(self, pool: PoolName, names: Collection[EngineName]) -> None:
        """More replicas of the pool can answer these: `look_again` at their conversations."""
        known = set(self._to_recheck)
        for key, held in self._homes.items():
            is_meant = key[0] == pool and (held.name in names or EVERY in names)
            if is_meant and held.is_seen and not held.is_told and key not in known:
                self._to_recheck.append(key)

    def look_again(self, assumed: Callable[[PoolName, bytes, EngineName], ReplicaId | None]) -> None:
        """Tell of those to recheck that all would assume elsewhere; some of them at each call."""
        now_s = self._clock()
        for _ in range(min(len(self._to_recheck), _LOOKED_AT)):
            pool, conversation = key = self._to_recheck.popleft()
            held = self.home_of(pool, conversation)
            if held is None or held.is_told or assumed(pool, conversation, held.name) == held.replica_id:
                continue
            held.is_told, held.told_s = True, now_s
            self._publish_later(key, held.replica_id, held.until_s - held.since_s)

    # to and from the others

    def to_publish(self) -> list[SessionsAt]:
        """The next batch's content, taken from what is still to be told; empty where there is none."""
        alike: dict[_BatchKey, list[bytes]] = {}
        for _ in range(min(len(self._unpublished), MAX_SESSIONS_PER_BATCH)):
            (pool, conversation), (replica_id, ttl_s) = self._unpublished.popitem(last=False)
            place = (pool, replica_id, ttl_s)
            if place not in alike and len(alike) >= MAX_PLACES_PER_BATCH:
                self._unpublished[pool, conversation] = replica_id, ttl_s
                break
            alike.setdefault(place, []).append(conversation)
        return [sessions_at(pool, replica_id, ttl_s, hashes) for (pool, replica_id, ttl_s), hashes in alike.items()]

    def published(self, batch: Iterable[SessionsAt]) -> None:
        self.told_total += sum(len(hashes_in(homes)) for homes in batch)

    def publish_failed(self, batch: Iterable[SessionsAt]) -> None:
        """The bus did not take it: to be told later, unless there is later news of the same conversation."""
        for homes in batch:
            for conversation in hashes_in(homes):
                key = (PoolName(homes.pool), conversation)
                if key not in self._unpublished:
                    self._publish_later(key, ReplicaId(homes.replica), homes.ttl_s)

    def received(self, batch: HomeBatch, now_unix_s: float) -> None:
        """A gateway's homes; HomesInvalid where they are none. What we sent later than they did stays.

        Our own come back: a gateway that follows one of the same name, after a restart, has only these.
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
