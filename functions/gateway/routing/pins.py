"""Session pins: sessions that belong to a group of a rollout, this gateway's own and those that others published.

A pin holds for the pool's session time (`session.ttl` of its RoutingPolicy) after the session's last request. It is
told to the other gateways when it is made and again halfway through its time, as long as the session lives. Those of
the candidate too: no larger share takes a session back, but a gateway that sees no replica with the candidate would.

Bounded, each tenant at its own cost (`session_table`). A rollout that has ended loses its pins at once.
Worked example (test_a_pin_is_told_again_halfway_through_its_time): with 300 s, a session pinned at 0 s and seen at 100
and 160 s is told at 0 and at 160.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from functions.api.ids import RolloutId
from functions.decisions.rollout.split import Group
from functions.decisions.routing.sessions import SessionTable
from functions.fleet.session_pins import (
    MAX_ROLLOUTS_PER_BATCH,
    MAX_SESSIONS_PER_BATCH,
    PinBatch,
    RolloutPins,
    hashes_in,
    pins_of,
)

MAX_PINS = 100_000  # sessions; about 30 MB
MAX_UNPUBLISHED = 65_536  # while the bus is away

PinKey = tuple[RolloutId, bytes]
_Batch = tuple[RolloutId, Group, float]  # what one entry of a batch has in common


@dataclass(slots=True)
class _Pin:
    group: Group
    expires_s: float
    published_s: float  # when the others last heard of it


class SessionPins:
    """Owned by one event loop. Times are monotonic seconds unless they say unix."""

    def __init__(self, clock: Callable[[], float], max_pins: int = MAX_PINS) -> None:
        self._clock = clock
        self._pins: SessionTable[RolloutId, _Pin] = SessionTable(max_pins)
        self._unpublished: OrderedDict[PinKey, tuple[Group, float]] = OrderedDict()  # with the session time
        self.lost_total = 0  # never told: the bus was away for too long

    def group_of(self, rollout: RolloutId, session: bytes) -> Group | None:
        """What this session was pinned to, if that still holds."""
        pin = self._pins.get((rollout, session))
        return pin.group if pin is not None and self._clock() < pin.expires_s else None

    def hold(self, rollout: RolloutId, session: bytes, group: Group, ttl_s: float) -> None:
        """The session sent a request and belongs to this group for another `ttl_s`."""
        if ttl_s <= 0.0:
            return
        now_s, key = self._clock(), (rollout, session)
        pin = self._pins.get(key)
        if pin is None or pin.group != group:
            pin = _Pin(group, now_s + ttl_s, published_s=float("-inf"))
        pin.expires_s = now_s + ttl_s
        self._pins.put(key, pin)
        if now_s - pin.published_s >= ttl_s / 2:
            pin.published_s = now_s
            self._publish_later(key, group, ttl_s)

    def drop_rollouts(self, ended: Collection[RolloutId]) -> None:
        """These have ended: their sessions belong to nothing any more."""
        if ended:
            self._pins.drop(ended)
            for key in [key for key in self._unpublished if key[0] in ended]:
                del self._unpublished[key]

    def expire(self) -> None:
        """Forget what has run out; called a few times a second."""
        now_s = self._clock()
        self._pins.expire(lambda pin: pin.expires_s <= now_s)

    # to and from the others

    def to_publish(self) -> list[RolloutPins]:
        """The next batch's content, taken from what is still to be told; empty where there is none."""
        alike: dict[_Batch, list[bytes]] = {}
        for _ in range(min(len(self._unpublished), MAX_SESSIONS_PER_BATCH)):
            (rollout, session), (group, ttl_s) = self._unpublished.popitem(last=False)
            if (rollout, group, ttl_s) not in alike and len(alike) >= MAX_ROLLOUTS_PER_BATCH:
                self._unpublished[rollout, session] = group, ttl_s
                break
            alike.setdefault((rollout, group, ttl_s), []).append(session)
        return [pins_of(rollout, ttl_s, sessions, group) for (rollout, group, ttl_s), sessions in alike.items()]

    def publish_failed(self, batch: Iterable[RolloutPins]) -> None:
        """The bus did not take it: to be told later."""
        for pins in batch:
            for session in hashes_in(pins):
                self._publish_later((pins.rollout, session), pins.group, pins.ttl_s)

    def received(self, batch: PinBatch, now_unix_s: float) -> None:
        """Another gateway's pins (or our own, come back); BatchInvalid where they are none. What we know stays."""
        now_s, age_s = self._clock(), max(0.0, now_unix_s - batch.sent_unix_s)
        for pins in batch.pins:
            left_s = pins.ttl_s - age_s
            for session in hashes_in(pins) if left_s > 0.0 else ():
                key = (pins.rollout, session)
                known = self._pins.get(key)
                if known is None:
                    self._pins.put(key, _Pin(pins.group, now_s + left_s, published_s=now_s))
                elif known.group == pins.group:
                    known.expires_s, known.published_s = max(known.expires_s, now_s + left_s), now_s
                    self._pins.put(key, known)

    def __len__(self) -> int:
        return len(self._pins)

    @property
    def unpublished(self) -> int:
        return len(self._unpublished)

    def _publish_later(self, key: PinKey, group: Group, ttl_s: float) -> None:
        self._unpublished[key] = group, ttl_s
        if len(self._unpublished) > MAX_UNPUBLISHED:
            self._unpublished.popitem(last=False)
            self.lost_total += 1
