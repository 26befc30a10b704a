"""A prompt's fingerprint, and the refusal of one that has failed two replicas.

The fingerprint is that of the whole request as an engine gets it: the hashes of its blocks would do for long prompts,
but two that begin alike must not be taken for each other. It is made only while somebody is suspected.
"""

from hashlib import blake2b
from math import ceil

from functions.api.ids import ReplicaId
from functions.decisions.quarantine import Quarantine
from functions.decisions.retry import Failure
from functions.gateway.errors import ErrorAnswer, Refused
from functions.gateway.intake import Admitted

# How a replica fails that a prompt has killed or broken.
_DEADLY = frozenset({Failure.RESET, Failure.REPLICA_LOST, Failure.ENGINE_ERROR})
_FINGERPRINT_BYTES = 16


class PromptQuarantine:
    """Owned by one event loop."""

    def __init__(self, after_replicas: int) -> None:
        """0: nothing is ever held."""
        self.refused_total = 0
        self._on = after_replicas > 0
        self._table = Quarantine(max(1, after_replicas))

    def failed(self, admitted: Admitted, replica: ReplicaId, failure: Failure, now_s: float) -> None:
        if self._on and failure in _DEADLY:
            self._table.struck(_fingerprint(admitted), replica, now_s)

    def answered(self, admitted: Admitted) -> None:
        if len(self._table):
            self._table.answered(_fingerprint(admitted))

    def holds(self, admitted: Admitted, now_s: float) -> bool:
        return len(self._table) > 0 and self._table.held_for_s(_fingerprint(admitted), now_s) > 0.0

    def check(self, admitted: Admitted, now_s: float) -> None:
        """Raises Refused (400) where the prompt is held."""
        if not len(self._table):
            return
        held_s = self._table.held_for_s(_fingerprint(admitted), now_s)
        if held_s > 0.0:
            self.refused_total += 1
            raise Refused(_held(held_s))

    def __len__(self) -> int:
        return len(self._table)


def _fingerprint(admitted: Admitted) -> bytes:
    return blake2b(admitted.upstream_body, digest_size=_FINGERPRINT_BYTES).digest()


def _held(held_s: float) -> ErrorAnswer:
    message = (
        "Replicas failed one after the other while they worked on this very request, so it is refused for another "
        f"{ceil(held_s)} s. Change the request, or report its x-request-id to the operator."
    )
    return ErrorAnswer(400, "invalid_request_error", "prompt_quarantined", message)
