"""Quarantine of prompts: their fingerprint, and the refusal of one that has failed two replicas.

The fingerprint is that of the whole request as an engine would get it from the pool that was asked: the hashes of its
blocks would do for long prompts, but two that begin alike must not be taken for each other. Wherever the request goes
then (another pool, a small model under judgement), it keeps the fingerprint with which it came.

It is taken before a stream lets go of its body, so of nearly every request: XXH3 takes 0.2 us for 1 KB. That hash alone
could be forged; its seed comes from the platform's pepper, so that no sender can write a prompt that is taken for
another's.
"""

from hashlib import blake2b
from math import ceil
from typing import Protocol

from xxhash import xxh3_128_digest

from functions.api.ids import ReplicaId
from functions.decisions.health.quarantine import Quarantine
from functions.decisions.routing.retry import Failure
from functions.gateway.errors import ErrorAnswer, Refused
from functions.gateway.request.request import Admitted, Ended

# How a replica fails that a prompt has killed or broken.
_DEADLY = frozenset({Failure.RESET, Failure.REPLICA_LOST, Failure.ENGINE_ERROR})


class SentRequest(Protocol):
    """A request that replicas have had in their hands."""

    def fingerprint(self) -> bytes: ...


class PromptQuarantine:
    """Owned by one event loop."""

    def __init__(self, after_replicas: int, secret: bytes) -> None:
        """0: nothing is ever held."""
        self.refused_total = 0
        self.on = after_replicas > 0
        self._seed = int.from_bytes(blake2b(b"quarantine\0" + secret, digest_size=8).digest())
        self._table = Quarantine(max(1, after_replicas))

    def fingerprint(self, admitted: Admitted) -> bytes:
        return xxh3_128_digest(admitted.upstream_body, self._seed)

    def failed(self, sent: SentRequest, replica: ReplicaId, failure: Failure, now_s: float) -> None:
        if self.on and failure in _DEADLY:
            self._table.struck(sent.fingerprint(), replica, now_s)

    def ended(self, ended: Ended) -> None:
        """A prompt that was answered whole is none that replicas fail by."""
        if ended.status == 200 and ended.prediction is not None and len(self._table):
            self._table.answered(ended.fingerprint())

    def holds(self, sent: SentRequest, now_s: float) -> bool:
        return len(self._table) > 0 and self._table.held_for_s(sent.fingerprint(), now_s) > 0.0

    def check(self, admitted: Admitted, now_s: float) -> None:
        """Raises Refused (400) where the prompt is held."""
        if not len(self._table):
            return
        held_s = self._table.held_for_s(self.fingerprint(admitted), now_s)
        if held_s > 0.0:
            self.refused_total += 1
            raise Refused(_held(held_s))

    def __len__(self) -> int:
        return len(self._table)


def _held(held_s: float) -> ErrorAnswer:
    message = (
        "Replicas failed one after the other while they worked on this very request, so it is refused for another "
        f"{ceil(held_s)} s. Change the request, or report its x-request-id to the operator."
    )
    return ErrorAnswer(400, "invalid_request_error", "prompt_quarantined", message)
