"""Session pins: sessions that belong to a group of a rollout, of this gateway and published by others.

A pin is valid for the pool's session time (`session.ttl` of its RoutingPolicy) after the session's last request. It
is published when it is made and again halfway through that time, while the session is active. Pins to the candidate
are published too: a growing share moves no session back to control, but a gateway that sees no replica with the
candidate would.

Memory is bounded, each tenant at its own cost (`functions.decisions.routing.sessions`). A rollout that ends loses its
pins immediately.
Worked example (test_pin_is_republished_halfway_through_its_ttl): with 300 s, a session pinned at 0 s and seen at
100 and 160 s is published at 0 and 160 s.
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
MAX_UNPUBLISHED = 65_536  # limit while the bus is unreachable

PinKey = tuple[RolloutId, bytes]
_Batch = tuple[RolloutId, Group, float]  # common part of one batch entry


@dataclass(slots=True)
class _Pin:
    group: Group
    expires_s: float
    published_s: float  # time of the last publication


class SessionPins:
    """Pins of sessions to rollout groups. Owned by one event loop; times are monotonic seconds unless named unix."""

    def __init__(self, clock: Callable[[], float], max_pins: int = MAX_PINS) -> None:
        self._clock = clock
        self._pins: SessionTable[RolloutId, _Pin] = SessionTable(max_pins)
        self._unpublished: OrderedDict[PinKey, tuple[Group, float]] = OrderedDict()  # group and session time
        self.lost_total = 0  # never published, because the bus was unreachable for too long

    def group_of(self, rollout: RolloutId, session: bytes) -> Group | None:
        """Return the group that the session is pinned to, or None without a valid pin."""
        pin = self._pins.get((rollout, session))
        return pin.group if pin is not None and self._clock() < pin.expires_s else None

    def pin(self, rollout: RolloutId, session: bytes, group: Group, ttl_s: float) -> None:
        """Pin the session to this group for `ttl_s` from now because it sent a request; 0 pins nothing.

        The pin is queued for publishing if it is new or half of `ttl_s` has passed since the last time.
        """
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
        """Drop the pins of these ended rollouts, also those that wait to be published."""
        if ended:
            self._pins.drop(ended)
            for key in [key for key in self._unpublished if key[0] in ended]:
                del self._unpublished[key]

    def expire(self) -> None:
        """Forget expired pins. Called a few times a second."""
        now_s = self._clock()
        self._pins.expire(lambda pin: pin.expires_s <= now_s)

    # batches to and from other gateways

    def to_publish(self) -> list[RolloutPins]:
        """Remove and return the content of the next batch; empty if nothing is unpublished."""
        alike: dict[_Batch, list[bytes]] = {}
        for _ in range(min(len(self._unpublished), MAX_SESSIONS_PER_BATCH)):
            (rollout, session), (group, ttl_s) = self._unpublished.popitem(last=False)
            if (rollout, group, ttl_s) not in alike and len(alike) >= MAX_ROLLOUTS_PER_BATCH:
                self._unpublished[rollout, session] = group, ttl_s
                break
            alike.setdefault((rollout, group, ttl_s), []).append(session)
        return [pins_of(rollout, ttl_s, sessions, group) for (rollout, group, ttl_s), sessions in alike.items()]

    def publish_failed(self, batch: Iterable[RolloutPins]) -> None:
        """Queue again for publishing what the bus did not accept."""
        for pins in batch:
            for session in hashes_in(pins):
                self._publish_later((pins.rollout, session), pins.group, pins.ttl_s)

    def receive_batch(self, batch: PinBatch, now_unix_s: float) -> None:
        """Add a gateway's pins, possibly our own; a session's known group is kept. Raise BatchInvalid if malformed."""
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
