"""Quarantine of requests that were in flight when replicas failed: after the second replica they are rejected.

A request that crashes an engine would otherwise crash one replica after another, by shoal's retries or its client's.
One failure proves nothing; after two replicas the request is held for `HOLD_S`. But a dead replica takes other
requests with it, and those that two dead replicas had in common cannot be distinguished. So the more requests are
suspected of the same replica's failure within a minute, the shorter each is held:

    held for HOLD_S / company

Worked example (test_worked_example_of_the_prologue): r0 dies with 8 requests in flight, which are retried; r1 dies
with 2 of them. Each of the two is held for 600 / 2 = 300 s, the other six not at all.

An answered request is no longer suspected: a request that kills engines is never answered. A request that was
answered before (a health check, the same every ten seconds) is an unlikely cause, and should not be rejected for
minutes. It is held only after twice as many failures, and for `KNOWN_HOLD_S`
(test_previously_answered_prompt_is_held_later_and_briefly).

Memory is bounded: at most `MAX_SUSPECTS` requests by fingerprint, the oldest failure forgotten first, and
`AnsweredLately` with a fixed number of bits.
"""

from collections import OrderedDict
from dataclasses import dataclass
from struct import Struct

from functions.api.ids import ReplicaId

_three_words = Struct("<III").unpack_from
HOLD_S = 600.0
KNOWN_HOLD_S = 15.0
MAX_SUSPECTS = 1024
_KNOWN_FAILURES_RATIO = 2  # failures that hold a known request, relative to an unknown one
_TOGETHER_S = 60.0


@dataclass(slots=True)
class _Suspect:
    replicas: tuple[ReplicaId, ...]  # distinct, in order of failure
    failures: int
    is_known: bool  # answered before
    struck_s: float


class Quarantine:
    """Suspects of one event loop. Times are monotonic seconds."""

    def __init__(self, after_replicas: int = 2) -> None:
        """Hold a request after failures of this many different replicas."""
        self._after_replicas = after_replicas
        self.suspects: OrderedDict[bytes, _Suspect] = OrderedDict()  # by fingerprint
        self._answered = AnsweredLately()

    def record_failure(self, fingerprint: bytes, replica: ReplicaId, now_s: float) -> None:
        """Record that a replica failed with this request in flight. Its failures are forgotten HOLD_S after the last
        one."""
        known = self.suspects.pop(fingerprint, None)
        if known is None or now_s - known.struck_s >= HOLD_S:
            known = _Suspect((), 0, self._answered.has(fingerprint, now_s), now_s)
        if replica not in known.replicas:
            known.replicas = (*known.replicas, replica)[-self._after_replicas :]
        known.failures += 1
        known.struck_s = now_s
        self.suspects[fingerprint] = known
        if len(self.suspects) > MAX_SUSPECTS:
            self.suspects.popitem(last=False)

    def answered(self, fingerprint: bytes, now_s: float) -> None:
        """Record that a replica answered this request, which is then no suspect."""
        self._answered.add(fingerprint, now_s)
        if self.suspects:
            self.suspects.pop(fingerprint, None)

    def held_for_s(self, fingerprint: bytes, now_s: float) -> float:
        """Return how many more seconds the request is rejected; 0 if it is not."""
        suspect = self.suspects.get(fingerprint)
        if suspect is None or not self._is_held(suspect):
            return 0.0
        hold_s = KNOWN_HOLD_S if suspect.is_known else HOLD_S
        return max(0.0, suspect.struck_s + hold_s / self._company(suspect) - now_s)

    def __len__(self) -> int:
        return len(self.suspects)

    def _is_held(self, suspect: _Suspect) -> bool:
        enough = self._after_replicas * (_KNOWN_FAILURES_RATIO if suspect.is_known else 1)
        return len(suspect.replicas) >= self._after_replicas and suspect.failures >= enough

    def _company(self, suspect: _Suspect) -> int:
        """Return how many held requests may have caused the failure of its last replica, including itself."""
        return sum(
            self._is_held(other)
            and other.replicas[-1] == suspect.replicas[-1]
            and abs(other.struck_s - suspect.struck_s) <= _TOGETHER_S
            for other in self.suspects.values()
        )


class AnsweredLately:
    """Fingerprints of requests answered in the last `SPAN_S` to twice that: two Bloom filters, replaced in turn.

    Each has a quarter of a megabyte: with 100,000 fingerprints in a span, 1 in 50 unknown requests counts as known,
    which only delays its quarantine. A fingerprint is a hash already; its 32-bit words are the bit positions.
    """

    SPAN_S = 300.0
    _BYTES = 1 << 18
    _MASK = (_BYTES << 3) - 1

    def __init__(self) -> None:
        self._newer, self._older = bytearray(self._BYTES), bytearray(self._BYTES)
        self._since_s = float("-inf")

    def add(self, fingerprint: bytes, now_s: float) -> None:
        if now_s - self._since_s >= self.SPAN_S:
            self._rotate(now_s)
        filter_, mask = self._newer, self._MASK
        for word in _three_words(fingerprint):
            place = word & mask
            filter_[place >> 3] |= 1 << (place & 7)

    def has(self, fingerprint: bytes, now_s: float) -> bool:
        if now_s - self._since_s >= self.SPAN_S:
            self._rotate(now_s)
        places = [word & self._MASK for word in _three_words(fingerprint)]
        return any(
            all(filter_[place >> 3] & 1 << (place & 7) for place in places) for filter_ in (self._newer, self._older)
        )

    def _rotate(self, now_s: float) -> None:
        is_fresh = now_s - self._since_s < 2 * self.SPAN_S
        self._older = self._newer if is_fresh else bytearray(self._BYTES)
        self._newer, self._since_s = bytearray(self._BYTES), now_s
