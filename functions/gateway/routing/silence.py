"""Silence of replicas: for how long one with work of ours in hand has said nothing to anybody here.

A replica that is slow says something all the while, since its streams go on. One that is stopped, cut off or stuck says
nothing, and its agent takes seconds to find that out; those whose requests it has would wait as long. So a request that
has no first byte goes to a second replica as well (`functions.gateway.request.hedging`) once its replica has been quiet

    for MUTE_AFTER_S, and for as long as the first tokens of 19 in 20 such requests took     a stream
    for WHOLE_MUTE_AFTER_S, where streams are under way there that ought to speak            a whole answer

and until it speaks again it counts as slower, as one that is full does.
Worked example (test_worked_example_of_the_prologue): r0 streams to one client and has another's prompt since second 10.
It speaks last at 10.2: mute at 11.2. Had it gone on to speak to the first, the second one would go on waiting.

A stream whose client does not read is none that speaks. Neighbours: `router` owns one; `attempt` says what it hears.
"""

from collections.abc import Collection

from functions.api.ids import ReplicaId
from functions.decisions.routing.own_load import InFlightSlot

MUTE_AFTER_S = 1.0
WHOLE_MUTE_AFTER_S = 2.0
_NEVER_S = float("-inf")


class Silence:
    """Owned by one event loop. Times are monotonic seconds."""

    __slots__ = ("_heard_s", "_mute", "_speaking")

    def __init__(self) -> None:
        self._heard_s: dict[ReplicaId, float] = {}
        self._speaking: dict[ReplicaId, dict[int, float]] = {}  # streams that ought to, by slot, and since when
        self._mute: dict[ReplicaId, None] = {}  # in order

    def heard(self, replica_id: ReplicaId, now_s: float) -> None:
        """Bytes came from it, for whomever."""
        self._heard_s[replica_id] = now_s
        if self._mute:
            self._mute.pop(replica_id, None)

    def heard_s(self, replica_id: ReplicaId) -> float:
        """When bytes came from it last, of those with requests of ours."""
        return self._heard_s.get(replica_id, _NEVER_S)

    def speaks(self, slot: InFlightSlot, now_s: float) -> None:
        """A stream has begun, or its client reads on: it ought to go on."""
        self._speaking.setdefault(slot.replica_id, {})[id(slot)] = now_s

    def pauses(self, slot: InFlightSlot) -> None:
        """It is over, or not read: that nothing comes is not the replica's doing. Does nothing where that is known."""
        slots = self._speaking.get(slot.replica_id)
        if slots is not None and slots.pop(id(slot), None) is not None and not slots:
            del self._speaking[slot.replica_id]

    def quiet_s(self, replica_id: ReplicaId, since_s: float, now_s: float) -> float:
        """For how long, of the time since then, it has said nothing."""
        return now_s - max(since_s, self._heard_s.get(replica_id, _NEVER_S))

    def ought_to_speak(self, replica_id: ReplicaId) -> bool:
        return replica_id in self._speaking

    def found_mute(self, replica_id: ReplicaId) -> None:
        """A request was found to wait for it in vain; until it is heard."""
        self._mute[replica_id] = None

    def mute(self, in_flight: Collection[ReplicaId], now_s: float) -> list[ReplicaId]:
        """Those with requests in flight that say nothing; a few times a second, and forgets the others."""
        for replica_id in [each for each in self._heard_s if each not in in_flight]:
            del self._heard_s[replica_id]
        for replica_id, streams in self._speaking.items():
            if self.quiet_s(replica_id, min(streams.values()), now_s) >= MUTE_AFTER_S:
                self._mute[replica_id] = None
        self._mute = {each: None for each in self._mute if each in in_flight}
        return list(self._mute)
