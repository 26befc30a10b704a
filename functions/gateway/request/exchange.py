"""Exchange: one admitted request, from its start to its single outcome.

    start -> admission queue -> dispatched -> decide -> attempt -> outcome
                   ^                            ^  |___ no replica has the adapter: wait for it (`cold_wait`), or use
                   |                            |       the rollout's control version
                   |                            |_______ the attempt failed, nothing sent yet
                   |____________________________________ the pool cannot serve it: use another pool (`fallback_plan`),
                                                         or wait for a pool at zero to start (`wake_wait`)

The client receives nothing before the engine's first event or, if not streamed, its whole answer. Until then any
failure can be retried on another replica without the client noticing. After that, a failure ends the stream with an
error event and without `[DONE]`. Every request ends once and is accounted for (`ending`).

An exchange has a section for each of its four counterparts: the admission queue and the router, its attempts
(`tries`), the client's connection (the exchange is an `Answering`), and the sweep, which checks the exchange at
`due_s`.

`unserved` handles a request that no replica can answer, `retries` retries and hedges, and `ending` ends it.
"""

import logging

from functions.api.ids import ReplicaId
from functions.decisions.catalogue import Catalogue
from functions.decisions.routing.choice import NoReplica, Prediction
from functions.decisions.routing.retry import AttemptFailure
from functions.gateway import errors
from functions.gateway.admission.queue import PoolTicket
from functions.gateway.errors import ErrorAnswer
from functions.gateway.http.sink import Headers, Sink
from functions.gateway.quota import settlement
from functions.gateway.quota.accounts import RequestQuota
from functions.gateway.request import ending, replies, retries, unserved
from functions.gateway.request.answers import Usage, WholeAnswer, renaming_of
from functions.gateway.request.attempt import Attempt
from functions.gateway.request.request import Admitted, CascadeSpend, Timeline
from functions.gateway.request.split import PrefillSplit
from functions.gateway.request.tries import Tries
from functions.gateway.routing.cascade import CascadeJudge
from functions.gateway.routing.cold_wait import ColdWait
from functions.gateway.routing.fallback import placed_by_time
from functions.gateway.routing.fallback_plan import FallbackPlan
from functions.gateway.routing.wake_wait import NOBODY_SERVES, WakeWait
from functions.gateway.services import Services

_log = logging.getLogger(__name__)


class RequestExchange:
    __slots__ = (
        "_fingerprint", "_paused_at_s", "admitted", "begun", "cascade_spend", "catalogue", "cold", "deadline_s",
        "due_s", "ended", "entry", "plan", "renaming", "services", "sink", "split", "tenant", "ticket", "timeline",
        "tries", "usage", "wake",
    )  # fmt: skip

    def __init__(
        self,
        services: Services,
        catalogue: Catalogue,
        admitted: Admitted,
        sink: Sink,
        *,
        timeline: Timeline,
        entry: RequestQuota,
    ) -> None:
        limits = services.limits
        self.services = services
        self.sink = sink
        self.catalogue = catalogue  # the snapshot at the start of the request, used to its end
        self.admitted = admitted
        self.tenant = admitted.caller.tenant
        self.timeline = timeline
        self.entry = entry
        allowed_s = admitted.deadline_ms / 1000 if admitted.deadline_ms is not None else limits.answer_s
        self.deadline_s = timeline.received_s + min(allowed_s, limits.answer_s)
        self.renaming = renaming_of(admitted.model.engine_name, admitted.model.requested)
        self._fingerprint: bytes | None = None
        self.tries = Tries(services)
        self.cold: ColdWait | None = None
        self.wake: WakeWait | None = None
        self.plan: FallbackPlan | None = None  # set if other pools may answer
        self.split: PrefillSplit | None = None  # set if the pool has a prefill pool
        self._paused_at_s: float | None = None
        self.due_s = 0.0  # time before which `check` has nothing to do; 0: unknown
        self.usage: Usage | None = None  # usage of the answer
        self.cascade_spend: CascadeSpend | None = None
        self.ticket: PoolTicket | None = None  # ticket of the queued or dispatched request
        self.begun = self.ended = False

    # choosing a pool

    def start(self) -> None:
        services, admitted = self.services, self.admitted
        services.open_requests[self] = None
        services.retry_budgets.on_request(admitted, services.clock())
        if admitted.model.other_pools:
            self.replace_admitted(placed_by_time(self.catalogue, admitted, self.decide))
            admitted = self.admitted
        if admitted.routing.fallback or admitted.routing.cascade or admitted.model.other_pools:
            self.plan = FallbackPlan(self, self.catalogue, admitted)
            self.replace_admitted(
                self.plan.first(admitted, self.decide, services.admission.shift_ratio(admitted.model.pool))
            )
            if self.plan.degraded is not None:
                services.admission.count_shifted(admitted)
        services.admission.submit(self)

    def move_to_pool(self, moved: Admitted) -> None:
        """Drop the attempts in this pool and submit the request, as `moved`, to the other pool's admission queue."""
        self.services.admission.leave_pool(self, settlement.fair_cost_tokens(self, self.tries.attempt))
        self.tries.leave_pool()
        self.replace_admitted(moved)
        self.services.admission.submit(self)

    def replace_admitted(self, other: Admitted) -> None:
        self.fingerprint()
        self.admitted = other
        self.renaming = renaming_of(other.model.engine_name, other.model.requested)

    def fingerprint(self) -> bytes:
        """Return the quarantine's fingerprint of the request, computed once, before the body changes or is dropped."""
        if self._fingerprint is None:
            self._fingerprint = self.services.quarantine.fingerprint(self.admitted)
        return self._fingerprint

    def turned_away(self, answer: ErrorAnswer, reason: str) -> None:
        """Handle a rejection by the pool's admission queue: move to another pool, or end with `answer`.

        `reason` is a label of shoal_shed_total.
        """
        unserved.move_or_end(self, "saturated", answer, reason)

    def escalate(self, judge: CascadeJudge, attempt: Attempt) -> bool:
        """Move to the larger model because the small model was unsure. Return False if the larger pool cannot serve.

        A larger pool at zero is started for later requests.
        """
        decision = self.decide(judge.larger)
        if isinstance(decision, NoReplica) and decision.reason in NOBODY_SERVES:
            self.services.pool_wakes.request_pool(self.catalogue, judge.larger.model.pool)
        if self.plan is None or isinstance(decision, NoReplica):
            return False
        self.cascade_spend = settlement.judged_spend(judge, attempt, self.services.fleet, self.services.clock())
        self.plan.escalate()
        self.move_to_pool(judge.larger)
        return True

    # choosing a replica

    def dispatched(self) -> None:
        """Route the request to a replica. An error here must not block the requests behind it in the queue."""
        try:
            self.route()
        except Exception:
            self.fail_internally()

    def route(self) -> None:
        services = self.services
        decision = self.decide(self.admitted)
        services.metrics.routed(decision)
        if isinstance(decision, NoReplica):
            unserved.without_replica(self, decision)
            return
        self.timeline.routed_s = services.clock()
        self.due_s = 0.0
        judge = self.plan.judge(self.admitted) if self.plan is not None else None
        if self.split is not None:
            self._decode(self.split, judge, decision)
        elif self.admitted.model.pool in self.catalogue.prefill_of and judge is None:
            self._split(decision)
        else:
            self.tries.start_attempt(judge or self, self.admitted, decision, self.renaming)

    def _split(self, decision: Prediction) -> None:
        """Start the prefill if that pays; `split_over` then continues the request. Otherwise start the attempt."""
        split = self.split = PrefillSplit(self.services, self, self.catalogue)
        if split.start_prefill(self.admitted, decision):
            self.services.admission.defer(self)  # the request does not use its pool's prefill capacity meanwhile
        else:
            self.tries.start_attempt(self, self.admitted, decision, self.renaming)

    def _decode(self, split: PrefillSplit, judge: CascadeJudge | None, decision: Prediction) -> None:
        """Start the attempt that generates the answer, with the prefill replica's KV blocks if they can be used."""
        handed = split.handover_request(self.admitted, decision) if judge is None else None
        if handed is None:
            self.tries.start_attempt(judge or self, self.admitted, decision, self.renaming)
        else:
            self.tries.start_attempt(self, *handed, self.renaming, begins=split.record_handover)

    def decide(self, admitted: Admitted) -> Prediction | NoReplica:
        """Return the router's choice among replicas that were not tried, or why there is none.

        No other method requests one.
        """
        return self.services.router.decide(admitted, self.tries.tried)

    def split_over(self) -> None:
        """Route the request after its prefill, which has finished or failed, unless its deadline has passed."""
        try:
            self.check(self.services.clock())  # the deadline may have passed
            if not self.ended:
                self.route()
        except Exception:
            self.fail_internally()

    # reports of the attempts: the exchange is their Owner

    def attempt_held(self, attempt: Attempt) -> float:
        self.services.admission.first_token(self)
        return self.services.clock()

    def attempt_began(self, attempt: Attempt, first: bytes) -> None:
        self.tries.keep_only(attempt, self.admitted)
        self.begun = True
        self._let_go_of_body()
        self.services.rollouts.answering(self.admitted)
        self._first_token(attempt)
        if self.wake is not None and self.wake.told:
            self.sink.more(first)
        else:
            self.sink.begin_stream(self._headers(attempt, b"text/event-stream"), first)
        self.entry.headers = ()  # the headers are sent; saves 1 KiB for the rest of the stream

    def attempt_streamed(self, attempt: Attempt, out: bytes) -> None:
        self.entry.progress(attempt.tokens, attempt.waiting_since_s)
        self.sink.more(out)

    def attempt_finished(self, attempt: Attempt) -> None:
        ending.finish(self, attempt)

    def attempt_answered(self, attempt: Attempt, answer: WholeAnswer) -> None:
        self.tries.keep_only(attempt, self.admitted)
        self.usage = answer.usage
        self._first_token(attempt)
        self.sink.whole(200, self._headers(attempt, b"application/json"), answer.body)
        ending.end(self, 200)

    def attempt_refused(self, attempt: Attempt, answer: ErrorAnswer) -> None:
        if self.plan is not None and self.plan.is_away:
            # The caller did not choose this model, so the error is not the caller's
            unserved.move_or_end(self, "unavailable", answer)
        else:
            if answer.code in errors.MADE_IN_VAIN:
                self.usage = settlement.unread_answer_usage(self.admitted)
            ending.end_with_error(self, answer)

    def attempt_failed(self, attempt: Attempt, failure: AttemptFailure, detail: str) -> None:
        self._blame(attempt, failure, detail)
        retries.retry_or_end(self, attempt, failure)

    def attempt_broke(self, attempt: Attempt, answer: ErrorAnswer, failure: AttemptFailure, detail: str) -> None:
        self._blame(attempt, failure, detail)
        ending.end_broken_stream(self, attempt, answer)

    def _blame(self, attempt: Attempt, failure: AttemptFailure, detail: str) -> None:
        self.services.quarantine.failed(self, attempt.replica.id, failure, self.services.clock())
        self.tries.failed(attempt, self.admitted, failure, detail)

    def _let_go_of_body(self) -> None:
        """Drop all copies of the body: a stream that has begun is not sent again and may run for minutes."""
        if self.services.quarantine.on:
            self.fingerprint()
        self.admitted.let_go_of_body()
        if self.plan is not None:
            self.plan.let_go_of_bodies()
        if self.split is not None:
            self.split.let_go_of_body()

    def _first_token(self, attempt: Attempt) -> None:
        services = self.services
        services.admission.first_token(self)
        # Another pool answers instead of the requested one
        if self.plan is not None and self.plan.degraded is not None:
            requested = self.plan.degraded.requested.model.pool
            services.metrics.degraded(
                requested, self.admitted.model.pool, is_same_model=self.plan.degraded.is_same_model
            )
            services.admission.pools.degraded(requested)
        self.timeline.connected_s = attempt.connected_s
        self.timeline.first_token_s = services.clock()
        if self.admitted.stream:
            services.hedging.first_token(self.admitted, attempt, self.timeline.first_token_s)

    def _headers(self, attempt: Attempt, content_type: bytes) -> Headers:
        more = replies.more_headers(self.admitted, self.entry.headers)
        if self.plan is not None:
            more = self.plan.headers(more)
        if self.wake is not None:
            more = self.wake.header(), *more
        if self.split is not None:
            more = self.split.header(), *more
        return replies.headers(self.admitted, attempt.replica, self.timeline, content_type, more)

    # calls of the sweep, the fleet and the snapshots: the exchange is an OpenRequest

    def check(self, now_s: float) -> None:
        """End or hedge what has waited too long: deadline, paused client, silent engine, late attempt, slow prefill."""
        limits = self.services.limits
        if now_s >= self.deadline_s:
            ending.settle_cascade(self)
            ending.stop(self, errors.deadline_exceeded("The deadline passed before the answer was complete."))
        elif self._paused_at_s is not None:
            self.due_s = min(self.deadline_s, self._paused_at_s + limits.write_stall_s)
            if now_s - self._paused_at_s > limits.write_stall_s:
                self.client_left()
                self.sink.cut()
        else:
            if not self.tries.give_up_silent(now_s, stream=self.admitted.stream):
                retries.hedge_if_late(self, now_s)
            self.due_s = min(self.deadline_s, self.tries.due_s(self.admitted, now_s))
            if self.split is not None and not self.begun:
                retries.check_split_timeout(self, self.split, now_s)

    def replica_lost(self, replica_id: ReplicaId) -> None:
        """Leave this replica, which the fleet reports dead or hung, if nothing was sent and another one can serve."""
        retries.replica_lost(self, replica_id)

    def snapshot_swapped(self) -> None:
        """Stop waiting for a candidate version that was rolled back, and use the control version."""
        if self.cold is not None and self.cold.waiting and self.services.rollouts.may_fall_back(self.admitted):
            self.cold.leave()
            unserved.use_control_version(self)

    def cut_short(self, answer: ErrorAnswer) -> None:
        """End the request, unless it has ended, with an error that is not its own fault (the process stops)."""
        if not self.ended:
            ending.stop(self, answer)

    def fail_internally(self) -> None:
        """Log an exception of the gateway itself and end only this request with an internal error."""
        _log.exception("request %s failed in the gateway", self.admitted.request_id)
        try:
            self.cut_short(errors.internal_error())
        except Exception:
            _log.exception("request %s: the error could not be sent; the connection is cut", self.admitted.request_id)
            self.cut_off()

    # calls of the client's connection: the exchange is an Answering

    def client_left(self) -> None:
        """End the request (499) because the client left, and abort the engine's work. Does nothing if it has ended."""
        if not self.ended:
            ending.settle_cascade(self)
            ending.end(self, ending.CLIENT_LEFT)

    def cut_off(self) -> None:
        """Cut the client's connection and end the request as a 500, because not even an error can be sent."""
        self.sink.cut()
        ending.end(self, 500, "internal_error")

    def pause(self) -> None:
        """Stop reading from the engine because the client reads more slowly than the engine writes."""
        self._paused_at_s = self.services.clock()
        self.due_s = 0.0
        if self.tries.attempt is not None:
            self.tries.attempt.pause()

    def resume(self) -> None:
        if self._paused_at_s is not None:
            self.timeline.paused_s += self.services.clock() - self._paused_at_s
        self._paused_at_s = None
        self.due_s = 0.0
        if self.tries.attempt is not None:
            self.tries.attempt.resume()
