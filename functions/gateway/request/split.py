"""Split of one request: a prefill pool computes the prompt, and the requested pool generates the answer.

    consider -> prefill (max_tokens 1, do_remote_decode) -> handed over: kv_transfer_params for decoding -> answer
           |            |_ refused, failed, slow, no parameters            |_ transfer failed or slow, replica lost
           |_ does not pay
    each of these leads to: one engine does all

`decisions.routing.disaggregation` decides. This object owns the prefill's attempt, which is not streamed and passes
nothing on. Until the decoding replica's first event the request can start again, which happens at most once. A failed
handover costs no retry, because the split was the gateway's choice, and the tenant does not pay for it: the prefill
counts as lost work. The handed-over blocks are used once, because later they belong to other requests. An engine that
cannot reach the other one waits for up to half a minute before it computes the prompt itself (measured, vLLM 0.32). A
stream that does not begin within the policy's `giveUpAfter` is therefore started again without a split.

The tenant pays for the prompt once, as the decoding engine counts it (vLLM passes on what the prefill had cached). It
pays for the accelerator time of both replicas, each at its pool's price (`spend`).

The prefill pool has no admission queue and no request names it. Prompts that arrive, wait or are rejected there are
counted here for autoscaling (`admission.pool_stats`).

Each of the two requests is a copy of the body: it counts among large bodies and is dropped after its last use. If
there is no room for a copy, one engine does all.

`exchange` starts the split and receives `split_over`; `attempt` is the prefill on the wire; `settlement` and
`usage.sums` count.
"""

from typing import Any, Protocol

import msgspec
import orjson

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.decisions.catalogue import Catalogue, ResolvedModel
from functions.decisions.quota.dimensions import gpu_seconds, kv_token_seconds
from functions.decisions.routing.choice import NoReplica, Prediction
from functions.decisions.routing.disaggregation import SplitWhy, Weighed, compare_split, reason_to_skip, same_weights
from functions.decisions.routing.retry import EVIDENCE, REFUSALS, AttemptFailure
from functions.gateway.errors import ErrorAnswer, RequestRejected
from functions.gateway.http.held_bytes import Hold
from functions.gateway.intake.features import for_other_model
from functions.gateway.intake.routes import CHAT, COMPLETIONS
from functions.gateway.request.answers import Renaming, Usage, WholeAnswer
from functions.gateway.request.attempt import Attempt
from functions.gateway.request.request import Admitted, PrefillSpend, Spent
from functions.gateway.routing.wake_wait import NOBODY_SERVES
from functions.gateway.services import Services

_REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_PARAMS_MAX_BYTES = 1024 * 1024  # enough for the block ids of a prompt of a million tokens
_NOT_FOR_ONE_TOKEN = (
    "max_tokens", "max_completion_tokens", "min_tokens", "stream", "stream_options", "logprobs", "top_logprobs",
    "n", "best_of", "stop", "stop_token_ids",
)  # fmt: skip
_NEEDS_ALL_OF_THE_PROMPT = ("prompt_logprobs", "echo", "use_beam_search")
_PATHS = (CHAT.path, COMPLETIONS.path)
_NEVER_S = float("inf")


class Splitting(Protocol):
    """The part of an exchange that its split calls."""

    def split_over(self) -> None:
        """Continue after the prefill with the answer, with or without its KV blocks."""


class PrefillSplit:
    __slots__ = (
        "_attempt", "_catalogue", "_exchange", "_give_up_s", "_handed", "_hold", "_model", "_params", "_services",
        "prefill", "usage", "weighed", "why",
    )  # fmt: skip

    def __init__(self, services: Services, exchange: Splitting, catalogue: Catalogue) -> None:
        self._services = services
        self._exchange: Splitting | None = exchange  # None once the request has ended
        self._catalogue = catalogue
        self._model: tuple[PoolName, EngineName] | None = None  # model whose blocks the prefill replica computes
        self._hold: Hold | None = None  # memory reserved for the current copy of the body
        self._attempt: Attempt | None = None  # the prefill's attempt, running or over
        self._give_up_s = _NEVER_S  # monotonic
        self._params = b""  # kv_transfer_params that the prefill replica returned
        self._handed: Attempt | None = None  # the attempt that decodes with the handed-over blocks
        self.prefill: Prediction | None = None  # the routing decision that chose the prefill replica
        self.usage: Usage | None = None  # usage of the prefill
        self.weighed: Weighed | None = None
        self.why: SplitWhy = "short"

    # deciding on the split

    def start_prefill(self, admitted: Admitted, decode: Prediction) -> bool:
        """Start the prefill and return True if that pays, else record why not and return False.

        `split_over` is called at the prefill's end, unless it is dropped.
        """
        routing, tokens = admitted.routing, admitted.features.prompt_tokens
        at_once_why = reason_to_skip(tokens, decode.cached_tokens, routing.prefill_min_prompt_tokens)
        if at_once_why is not None:
            return self._use_one_engine(at_once_why)
        parsed = _splittable(admitted)
        if parsed is None:
            return self._use_one_engine("unsuited")
        asking = _for_prefill(admitted, parsed, self._catalogue.for_prefill(admitted.model, decode.replica.weights))
        found = self._services.router.decide(asking, ())
        weighed = self.weighed = compare_split(tokens, decode, found, self._catalogue.prefill_of[admitted.model.pool])
        why: SplitWhy = "no_room" if weighed.pays and not self._has_room_for(asking) else weighed.why
        if weighed.is_demand:
            self._count_prefill_demand(asking, found, weighed, is_read=why == "pays")
        if why != "pays" or isinstance(found, NoReplica):
            return self._use_one_engine(why)
        self.why, self.prefill, self._model = "pays", found, _model_of(admitted)
        self._give_up_s = self._services.clock() + routing.prefill_give_up_after_s
        name = asking.model.engine_name
        self._attempt = Attempt(self._services, self, asking, found, Renaming(name, name))
        self._attempt.start()
        return True

    # during the prefill

    @property
    def is_prefilling(self) -> bool:
        return self._attempt is not None and not self._attempt.over

    @property
    def due_s(self) -> float:
        """Monotonic time before which neither `check` nor `give_up_slow_transfer` does anything."""
        handed = self._handed
        if self.is_prefilling or (handed is not None and self.why == "pays" and not (handed.begun or handed.over)):
            return self._give_up_s
        return _NEVER_S

    def give_up_slow_transfer(self, now_s: float) -> Attempt | None:
        """Drop the attempt of a stream that has not begun in time with the handed-over blocks, and return it."""
        handed = self._handed
        if now_s < self.due_s or handed is None or not handed.admitted.stream:
            return None
        handed.drop()
        self._services.usage.count_lost_attempt(handed, now_s)
        self._discard_prefill("transfer_slow")
        return handed

    def check(self, now_s: float) -> None:
        attempt = self._attempt
        if attempt is not None and not attempt.over and now_s >= self._give_up_s:
            attempt.drop()
            self._record_lost_prefill(attempt, "prefill_slow")

    def replica_lost(self, replica_id: ReplicaId) -> None:
        attempt = self._attempt
        if attempt is not None and not attempt.over and attempt.replica.id == replica_id:
            attempt.fail(AttemptFailure.REPLICA_LOST, "the fleet reports it dead or hung")

    def drop(self) -> None:
        """End the prefill without a report, because the request ends or moves elsewhere."""
        if self._attempt is not None and not self._attempt.over:
            self._attempt.drop()
        self.let_go_of_body()

    def let_go_of_body(self) -> None:
        """Drop the copies of the body and their memory hold: it is not sent again."""
        for attempt in (self._attempt, self._handed):
            if attempt is not None:
                attempt.admitted.let_go_of_body()
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.end()

    def release(self) -> None:
        """Release the attempts and the exchange after the request has ended: they refer to each other in a cycle."""
        self.let_go_of_body()
        self._attempt = self._handed = self._exchange = None

    # reports of the prefill's attempt, which is not streamed: the split is its Owner

    def attempt_began(self, attempt: Attempt, first: bytes) -> None:
        raise AssertionError("a prefill is not streamed")

    attempt_streamed = attempt_began

    def attempt_finished(self, attempt: Attempt) -> None:
        raise AssertionError("a prefill is not streamed")

    def attempt_broke(self, attempt: Attempt, answer: ErrorAnswer, failure: AttemptFailure, detail: str) -> None:
        raise AssertionError("a prefill is not streamed")

    def attempt_answered(self, attempt: Attempt, answer: WholeAnswer) -> None:
        services = self._services
        services.admission.pools.prompt_read(attempt.admitted, services.clock() - attempt.sent_s)
        self._params, self.usage = _params_in(answer.body), answer.usage
        if self._params:
            self._over()
        else:
            self._record_lost_prefill(attempt, "no_params")

    def attempt_refused(self, attempt: Attempt, answer: ErrorAnswer) -> None:
        self._record_lost_prefill(attempt, "prefill_refused")

    def attempt_failed(self, attempt: Attempt, failure: AttemptFailure, detail: str) -> None:
        services = self._services
        services.metrics.attempt_failed(failure)
        services.router.record_failure(
            attempt.replica.id, failure, attempt.retry_after_s, is_evidence=failure in EVIDENCE
        )
        if failure is AttemptFailure.ADAPTER_MISSING:
            services.fleet.retract_adapter(attempt.replica.id, attempt.admitted.model.engine_name)
        self._record_lost_prefill(attempt, "prefill_refused" if failure in REFUSALS else "prefill_failed", failure)

    # after the prefill

    def handover_request(self, admitted: Admitted, decode: Prediction) -> tuple[Admitted, Prediction] | None:
        """Return the decoding replica's request and decision, or None if that replica computes the prompt too."""
        if not self._params or self._handed is not None or self.prefill is None or self.weighed is None:
            return None
        if self._model != _model_of(admitted):  # now another version of a rollout, or another pool's model
            self._discard_prefill("other_model")
            return None
        if not same_weights(decode, self.prefill):
            self._discard_prefill("other_weights")
            return None
        body = admitted.upstream_body[:-1] + b',"kv_transfer_params":' + self._params + b"}"
        handed = msgspec.structs.replace(admitted, upstream_body=body)
        if not self._has_room_for(handed):
            self._discard_prefill("no_room")
            return None
        tokens = admitted.features.prompt_tokens
        there = msgspec.structs.replace(decode, prefill_ms=self.weighed.transfer_ms, cached_tokens=tokens)
        return handed, there

    def record_handover(self, attempt: Attempt) -> None:
        self._handed = attempt
        give_up_after_s = attempt.admitted.routing.prefill_give_up_after_s
        self._give_up_s = self._services.clock() + give_up_after_s if attempt.admitted.stream else _NEVER_S

    def is_handed(self, attempt: Attempt | None) -> bool:
        """Return True if the attempt decodes with the prefill replica's blocks."""
        return attempt is not None and attempt is self._handed

    def decode_failed(self, attempt: Attempt, failure: AttemptFailure) -> bool:
        """Return True, and discard the prefill, if the failed attempt used the handover.

        Then one engine does all, without a retry charged.
        """
        if not self.is_handed(attempt) or self.why != "pays":
            return False
        self._discard_prefill(
            "decode_lost" if failure in EVIDENCE or failure is AttemptFailure.REPLICA_LOST else "transfer_failed"
        )
        return True

    # the end of the request

    @property
    def has_split(self) -> bool:
        """True if the answer is generated with a handover of the prefill's KV blocks, which was not given up."""
        return self.why == "pays" and self._handed is not None

    def is_at_work(self) -> bool:
        """Return True if a prefill replica has received the prompt and its work was not given up."""
        attempt = self._attempt
        return self.why == "pays" and attempt is not None and attempt.connected_s > 0.0

    def spend(self, now_s: float) -> PrefillSpend | None:
        """Return the cost of the prefill until `now_s`, estimated without a usage, or None if it came to nothing."""
        attempt = self._attempt
        if attempt is None or not self.is_at_work():
            return None
        model, replica, usage = attempt.admitted.model, attempt.replica, self.usage
        tokens = attempt.admitted.features.prompt_tokens
        uncached = tokens - attempt.prediction.cached_tokens
        if usage is not None:
            tokens, uncached = usage.prompt_tokens, usage.prompt_tokens - usage.cached_tokens
        worked_s = max(0.0, now_s - attempt.connected_s)
        ms_per_token = replica.prefill_ms_per_token
        if usage is None and uncached > 0:  # the time elapsed bounds the number of computed tokens
            ms_per_token = min(ms_per_token, worked_s * 1000.0 / uncached)
        busy_s = gpu_seconds(uncached, ms_per_token, 0.0, 1.0, model.accelerators_per_replica)
        held = kv_token_seconds(tokens, 0, max(0, uncached) * ms_per_token / 1000.0, 0.0)
        return PrefillSpend(model, Spent(held, busy_s))

    def notes(self) -> dict[str, Any]:
        """Return details for the trace: path (split or one), reason, prefill replica and predicted times in ms."""
        found: dict[str, Any] = {"path": "split" if self.has_split else "one", "why": self.why}
        if self.prefill is not None:
            found["replica"] = self.prefill.replica.id
        weighed = self.weighed
        if weighed is not None and weighed.one_ms:
            found |= {
                "one_ms": round(weighed.one_ms, 1),
                "split_ms": round(weighed.split_ms, 1),
                "prefill_ms": round(weighed.prefill_ms, 1),
                "transfer_ms": round(weighed.transfer_ms, 1),
            }
        return found

    def header(self) -> tuple[bytes, bytes]:
        if self.has_split and self.prefill is not None:
            return b"x-shoal-prefill", b"path=split;replica=" + self.prefill.replica.id.encode()
        return b"x-shoal-prefill", b"path=one;why=" + self.why.encode()

    # internals

    def _count_prefill_demand(
        self, asking: Admitted, found: Prediction | NoReplica, weighed: Weighed, *, is_read: bool
    ) -> None:  # fmt: skip
        """Count the prompt as demand of the prefill pool, and start that pool if it is at zero, without waiting for
        it."""
        services = self._services
        services.admission.pools.prompt_arrived(asking, weighed.wait_ms / 1000, is_read=is_read)
        if isinstance(found, NoReplica) and found.reason in NOBODY_SERVES:
            services.pool_wakes.request_pool(self._catalogue, asking.model.pool)

    def _use_one_engine(self, why: SplitWhy) -> bool:
        self.why = why
        return False

    def _record_lost_prefill(self, attempt: Attempt, why: SplitWhy, failure: AttemptFailure | None = None) -> None:
        """Record why the prefill came to nothing and count its lost work; then continue with one engine."""
        self.why = why
        self._services.admission.pools.prompt_lost(attempt.admitted)
        if failure not in REFUSALS:
            self._services.usage.count_lost_attempt(attempt, self._services.clock())
        self._over()

    def _over(self) -> None:
        self.let_go_of_body()
        if self._exchange is not None:
            self._exchange.split_over()

    def _has_room_for(self, copy: Admitted) -> bool:
        """Return True if the gateway can hold one more body, for which large ones reserve memory."""
        hold, size_bytes = self._services.held.copy(copy.caller.tenant), len(copy.upstream_body)
        try:
            if size_bytes > hold.bound_bytes:
                hold.reserve_up_to(size_bytes)
        except RequestRejected:
            return False
        self._hold = hold
        return True

    def _discard_prefill(self, why: SplitWhy) -> None:
        """Record that the prefill's result is not used. Its blocks are freed when their lease ends."""
        self.why = why
        self.let_go_of_body()
        if self._attempt is not None:
            self._services.usage.count_lost_attempt(self._attempt, self._services.clock())


def _model_of(admitted: Admitted) -> tuple[PoolName, EngineName]:
    """Return pool and engine model name. KV blocks of one model are useless to another, even with the same base."""
    return admitted.model.pool, admitted.model.engine_name


def _splittable(admitted: Admitted) -> dict[str, Any] | None:
    """Return the parsed body if a single prefill suffices for the request, else None."""
    if admitted.route.path not in _PATHS or admitted.features.choices != 1:
        return None
    parsed: dict[str, Any] = orjson.loads(admitted.upstream_body)
    if any(parsed.get(name) not in (None, False) for name in _NEEDS_ALL_OF_THE_PROMPT):
        return None
    return parsed


def _for_prefill(admitted: Admitted, parsed: dict[str, Any], model: ResolvedModel) -> Admitted:
    """Return the request for the prefill pool's `model`: not streamed, one token, which is discarded."""
    name, features = model.engine_name, admitted.features
    asking = {key: value for key, value in parsed.items() if key not in _NOT_FOR_ONE_TOKEN}
    asking |= {"model": name, "max_tokens": 1, "stream": False, "kv_transfer_params": _REMOTE_DECODE}
    if name != admitted.model.engine_name:
        features = for_other_model(features, asking, admitted.route.output, name)
    return msgspec.structs.replace(
        admitted,
        model=model,
        features=features,
        upstream_body=orjson.dumps(asking),
        stream=False,
        include_usage=False,
        continuous_usage=False,
        split=None,
    )


def _params_in(body: bytes) -> bytes:
    """Return the KV transfer parameters in a prefill's answer as JSON; empty if missing, malformed or too large."""
    try:
        found = orjson.loads(body).get("kv_transfer_params")
    except (orjson.JSONDecodeError, AttributeError):
        return b""
    if type(found) is not dict or found.get("do_remote_prefill") is not True:
        return b""
    params = orjson.dumps(found)
    return params if len(params) <= _PARAMS_MAX_BYTES else b""
