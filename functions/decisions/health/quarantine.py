"""Requests that were in flight on replicas when these failed: after the second replica such a request is refused.

A request that crashes an engine would otherwise walk through its pool, by our retries or by its sender's. One failure
says nothing: the request may just have been there. Two replicas' do, and then it is held for `HOLD_S`. But a replica
that dies takes others' requests with it, and those that two dead ones had in common cannot be told apart; so the more
requests are suspected of one replica's end within a minute, the shorter each is held:

    held for HOLD_S / company

Worked example (test_worked_example_of_the_prologue): r0 dies with 8 requests in flight, which are tried again; r1 dies
with 2 of them. Each of the two is held for 600 / 2 = 300 s, the other six not at all.

What is answered is no longer suspected: a request that kills engines never is, one that was only near soon is. One that
was answered before (a health check, the same each ten seconds) speaks for itself: of the two replicas that fail with it
in flight it was hardly the end, and nobody is to wait for it for minutes after they are back. It is held only after
twice as many failures, and for `KNOWN_HOLD_S` (test_what_was_answered_before_is_held_later_and_not_for_long).

Bounded: at most `MAX_SUSPECTS` requests by their fingerprints, the one struck longest ago forgotten first, and
`AnsweredLately` in as many bits whatever comes.
"""

from collections import OrderedDict
from dataclasses import dataclass
from struct import Struct

from functions.api.ids import ReplicaId

_three_words = Struct("<III").unpack_from
HOLD_S = 600.0
KNOWN_HOLD_S = 15.0
MAX_SUSPECTS = 1024
_KNOWN_FAILURES_RATIO = 2  # of those that hold a request of which nothing is known
_TOGETHER_S = 60.0


@dataclass(slots=True)
class _Suspect:
    replicas: tuple[ReplicaId, ...]  # distinct, in order
    failures: int
    is_known: bool  # answered before
    struck_s: float


class Quarantine:
    """Owned by one event loop. Times are monotonic seconds."""

    def __init__(self, after_replicas: int = 2) -> None:
        """Held after so many replicas."""
        self._after_replicas = after_replicas
        self.suspects: OrderedDict[bytes, _Suspect] = OrderedDict()  # by fingerprint
        self._answered = AnsweredLately()

    def struck(self, fingerprint: bytes, replica: ReplicaId, now_s: float) -> None:
        """A replica failed with this request in flight."""
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
        """A replica has survived it."""
        self._answered.add(fingerprint, now_s)
        if self.suspects:
            self.suspects.pop(fingerprint, None)

    def held_for_s(self, fingerprint: bytes, now_s: float) -> float:
        """How much longer the request is refused; 0: it is not."""
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
        """How many requests may have been the end of its last replica, itself included."""
        return sum(
            self._is_held(other)
            and other.replicas[-1] == suspect.replicas[-1]
            and abs(other.struck_s - suspect.struck_s) <= _TOGETHER_S
            for other in self.suspects.values()
        )


class AnsweredLately:
    """Fingerprints of requests that were answered in the last `SPAN_S` to twice that: two Bloom filters, of which the
    older is thrown away each `SPAN_S`.

    A quarter of a megabyte each: 100,000 fingerprints in a span, and 1 in 50 of the unknown is taken for known, which
    costs that one a longer way into quarantine. A fingerprint is a hash already; its words are the places.
    """

    SPAN_S = 300.0
    _BYTES = 1 << 18
    _MASK = (_BYTES << 3) - 1

    def __init__(self) -> None:
        self._newer, self._older = bytearray(self._BYTES), bytearray(self._BYTES)
        self._since_s = float("-inf")

    def add(self, fingerprint: bytes, now_s: float) -> None:
        if now_s - self._since_s >= self.SPAN_S:
            self._turn(now_s)
        filter_, mask = self._newer, self._MASK
        for word in _three_words(fingerprint):
            place = word & mask
            filter_[place >> 3] |= 1 << (place & 7)

    def has(self, fingerprint: bytes, now_s: float) -> bool:
        if now_s - self._since_s >= self.SPAN_S:
            self._turn(now_s)
        places = [word & self._MASK for word in _three_words(fingerprint)]
        return any(
            all(filter_[place >> 3] & 1 << (place & 7) for place in places) for filter_ in (self._newer, self._older)
        )

    def _turn(self, now_s: float) -> None:
        is_fresh = now_s - self._since_s < 2 * self.SPAN_S
        self._older = self._newer if is_fresh else bytearray(self._BYTES)
        self._newer, self._since_s = bytearray(self._BYTES), now_s
