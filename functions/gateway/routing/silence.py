"""Silence of replicas: how long a replica with requests of this gateway has sent nothing at all.

A slow replica still sends data, because its streams continue. A replica that is stopped, cut off or stuck sends
nothing, and its agent needs seconds to detect that. A request without a first byte therefore gets a second attempt
(`functions.gateway.request.hedging`) if its replica has been silent

    for MUTE_AFTER_S, and longer than 19 of 20 such requests took to their first token     a stream
    for WHOLE_MUTE_AFTER_S, if it has streams that should be sending                       a whole answer

Until it sends data again, the replica counts as slower, like one that is full. Worked example
(test_worked_example_of_the_prologue): r0 streams to one client and has another client's prompt since second 10. It
sends its last data at 10.2, so it is mute at 11.2. If the first stream had continued, the second request would keep
waiting.

A stream whose client does not read is not expected to send. `router` owns an instance; `attempt` reports what
arrives.
"""

from collections.abc import Collection

from functions.api.ids import ReplicaId
from functions.decisions.routing.own_load import InFlightSlot

MUTE_AFTER_S = 1.0
WHOLE_MUTE_AFTER_S = 2.0
_NEVER_S = float("-inf")


class Silence:
    """Time since the last data of each replica. Owned by one event loop; times are monotonic seconds."""

    __slots__ = ("_heard_s", "_mute", "_speaking")

    def __init__(self) -> None:
        self._heard_s: dict[ReplicaId, float] = {}
        # Streams that should be sending, by slot, and since when
        self._speaking: dict[ReplicaId, dict[int, float]] = {}
        self._mute: dict[ReplicaId, None] = {}  # ordered set

    def record_bytes(self, replica_id: ReplicaId, now_s: float) -> None:
        """Record that data came from the replica, for any request; it is then no longer mute."""
        self._heard_s[replica_id] = now_s
        if self._mute:
            self._mute.pop(replica_id, None)

    def last_bytes_s(self, replica_id: ReplicaId) -> float:
        """Return the monotonic time of the last data from a replica with requests here; -infinity if there is none."""
        return self._heard_s.get(replica_id, _NEVER_S)

    def expect_bytes(self, slot: InFlightSlot, now_s: float) -> None:
        """Expect data of a stream that has begun or whose client reads again."""
        self._speaking.setdefault(slot.replica_id, {})[id(slot)] = now_s

    def stop_expecting(self, slot: InFlightSlot) -> None:
        """Expect no more data of a stream that is over or not read. Does nothing if none is expected."""
        slots = self._speaking.get(slot.replica_id)
        if slots is not None and slots.pop(id(slot), None) is not None and not slots:
            del self._speaking[slot.replica_id]

    def quiet_s(self, replica_id: ReplicaId, since_s: float, now_s: float) -> float:
        """Return the seconds for which the replica has sent nothing, counted from `since_s` at the earliest."""
        return now_s - max(since_s, self._heard_s.get(replica_id, _NEVER_S))

    def expects_bytes(self, replica_id: ReplicaId) -> bool:
        return replica_id in self._speaking

    def mark_mute(self, replica_id: ReplicaId) -> None:
        """Mark a replica as mute until it sends data, because a request waited for it in vain."""
        self._mute[replica_id] = None

    def mute_replicas(self, in_flight: Collection[ReplicaId], now_s: float) -> list[ReplicaId]:
        """Return the mute replicas with requests in flight and forget all others. Called a few times a second.

        Those whose streams all brought nothing for MUTE_AFTER_S become mute.
        """
        for replica_id in [each for each in self._heard_s if each not in in_flight]:
            del self._heard_s[replica_id]
        for replica_id, streams in self._speaking.items():
            if self.quiet_s(replica_id, min(streams.values()), now_s) >= MUTE_AFTER_S:
                self._mute[replica_id] = None
        self._mute = {each: None for each in self._mute if each in in_flight}
        return list(self._mute)
