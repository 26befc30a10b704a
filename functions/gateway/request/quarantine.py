"""Quarantine of requests: their fingerprint, and the rejection of a request on which two replicas failed.

The fingerprint covers the whole request as the requested pool's engine would receive it, including the route. The
same text is harmless as a chat and fatal with `echo` and `logprobs`. Hashes of prompt blocks would not do, because
two prompts with the same beginning must not be confused. A request keeps its first fingerprint when it moves to
another pool or to a small model under judgement.

The fingerprint is computed before a stream drops its body, so for nearly every request: XXH3 takes 0.2 us for 1 KB.
That hash alone could be forged. Its seed comes from the platform's pepper, so that no sender can construct a prompt
with another prompt's fingerprint.
"""

from hashlib import blake2b
from math import ceil
from typing import Protocol

from xxhash import xxh3_64_intdigest, xxh3_128_digest

from functions.api.ids import ReplicaId
from functions.decisions.health.quarantine import Quarantine
from functions.decisions.routing.retry import AttemptFailure
from functions.gateway import errors
from functions.gateway.errors import ErrorAnswer, RequestRejected
from functions.gateway.request.request import Admitted, Ended

# Failures of a replica that a prompt may have caused.
_DEADLY = frozenset({AttemptFailure.RESET, AttemptFailure.REPLICA_LOST, AttemptFailure.ENGINE_ERROR})


class SentRequest(Protocol):
    """A request that was sent to replicas."""

    def fingerprint(self) -> bytes: ...


class PromptQuarantine:
    """Fingerprints of requests on which replicas failed. Owned by one event loop."""

    def __init__(self, after_replicas: int, secret: bytes) -> None:
        """Start without suspects. A request is quarantined after failures on this many replicas; 0: never."""
        self.refused_total = 0
        self.on = after_replicas > 0
        self._seed = int.from_bytes(blake2b(b"quarantine\0" + secret, digest_size=8).digest())
        self._seeds: dict[bytes, int] = {}  # by upstream path
        self._table = Quarantine(max(1, after_replicas))

    def fingerprint(self, admitted: Admitted) -> bytes:
        path = admitted.route.upstream_path
        seed = self._seeds.get(path)
        if seed is None:
            seed = self._seeds[path] = xxh3_64_intdigest(path, self._seed)
        return xxh3_128_digest(admitted.upstream_body, seed)

    def failed(self, sent: SentRequest, replica: ReplicaId, failure: AttemptFailure, now_s: float) -> None:
        if self.on and failure in _DEADLY:
            self._table.record_failure(sent.fingerprint(), replica, now_s)

    def ended(self, ended: Ended) -> None:
        """Clear the prompt of a request that was answered completely; does nothing for other ends."""
        if self.on and ended.status == 200 and ended.prediction is not None:
            self._table.answered(ended.fingerprint(), ended.timeline.ended_s)

    def check(self, admitted: Admitted, now_s: float) -> None:
        """Raise RequestRejected (400), and count it, if the prompt is quarantined."""
        if not self._table.suspects:
            return
        held_s = self._table.held_for_s(self.fingerprint(admitted), now_s)
        if held_s > 0.0:
            self.refused_total += 1
            raise RequestRejected(_held(held_s))

    def after_failures(self, sent: SentRequest, now_s: float) -> ErrorAnswer | None:
        """Return the error for a request whose last replica has just failed, if it is quarantined from now on."""
        held_s = self._table.held_for_s(sent.fingerprint(), now_s) if self._table.suspects else 0.0
        if held_s <= 0.0:
            return None
        return errors.bad_gateway(
            "Replicas failed while processing this request, so it is not retried, and identical requests are "
            f"rejected for {ceil(held_s)} s. Change the request, or report its x-request-id to the operator."
        )

    def __len__(self) -> int:
        return len(self._table)


def _held(held_s: float) -> ErrorAnswer:
    message = (
        "Replicas failed while processing an identical request, so this request is rejected for another "
        f"{ceil(held_s)} s. Change the request, or report its x-request-id to the operator."
    )
    return ErrorAnswer(400, "invalid_request_error", "prompt_quarantined", message)
