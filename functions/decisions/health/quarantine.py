"""Prompts that were in flight on replicas when these failed: after the second replica such a prompt is refused.

A prompt that crashes an engine would otherwise walk through its pool, by our retries or by its sender's. One failure
says nothing: the prompt may just have been there. Two replicas' do, and then it is held for `HOLD_S`. But a replica
that dies takes others' prompts with it, and those that two dead ones had in common cannot be told apart; so the more
prompts are suspected of one replica's end within a minute, the shorter each is held:

    held for HOLD_S / company

Worked example (test_worked_example_of_the_prologue): r0 dies with 8 prompts in flight, which are tried again; r1 dies
with 2 of them. Each of the two is held for 600 / 2 = 300 s, the other six not at all.

What is answered is no longer suspected: a prompt that kills engines never is, one that was only near soon is.

Bounded: at most `MAX_SUSPECTS` prompts by their fingerprints, the one struck longest ago forgotten first.
"""

from collections import OrderedDict
from dataclasses import dataclass

from functions.api.ids import ReplicaId

HOLD_S = 600.0
MAX_SUSPECTS = 1024
_TOGETHER_S = 60.0


@dataclass(slots=True)
class _Suspect:
    replicas: tuple[ReplicaId, ...]  # distinct, in order
    struck_s: float


class Quarantine:
    """Owned by one event loop. Times are monotonic seconds."""

    def __init__(self, after_replicas: int = 2) -> None:
        """Held after so many replicas."""
        self._after_replicas = after_replicas
        self._suspects: OrderedDict[bytes, _Suspect] = OrderedDict()

    def struck(self, fingerprint: bytes, replica: ReplicaId, now_s: float) -> None:
        """A replica failed with this prompt in flight."""
        known = self._suspects.pop(fingerprint, None)
        if known is None or now_s - known.struck_s >= HOLD_S:
            known = _Suspect((), now_s)
        if replica not in known.replicas:
            known.replicas = (*known.replicas, replica)[-self._after_replicas :]
        known.struck_s = now_s
        self._suspects[fingerprint] = known
        if len(self._suspects) > MAX_SUSPECTS:
            self._suspects.popitem(last=False)

    def answered(self, fingerprint: bytes) -> None:
        """A replica has survived it."""
        self._suspects.pop(fingerprint, None)

    def held_for_s(self, fingerprint: bytes, now_s: float) -> float:
        """How much longer the prompt is refused; 0: it is not."""
        suspect = self._suspects.get(fingerprint)
        if suspect is None or len(suspect.replicas) < self._after_replicas:
            return 0.0
        return max(0.0, suspect.struck_s + HOLD_S / self._company(suspect) - now_s)

    def __len__(self) -> int:
        return len(self._suspects)

    def _company(self, suspect: _Suspect) -> int:
        """How many prompts may have been the end of its last replica, itself included."""
        return sum(
            len(other.replicas) >= self._after_replicas
            and other.replicas[-1] == suspect.replicas[-1]
            and abs(other.struck_s - suspect.struck_s) <= _TOGETHER_S
            for other in self._suspects.values()
        )
