"""One admitted request, from its start to its one outcome.

    start -> waiting room -> dispatched -> decide -> attempt -> outcome
                  ^                          ^  |___ no replica has the adapter: wait for it (`cold_wait`), or take the
                  |                          |       rollout's control version
                  |                          |_______ the attempt failed, nothing sent yet
                  |__________________________________ its pool cannot: another one (`fallback_plan`)

Nothing goes to the client before the engine's first event (or, not streamed, its whole answer), so that until then any
failure may be retried on another replica and the client notices nothing. After that a failure ends the stream with an
error event and without `[DONE]`. However it ends, it ends once: `_end` accounts for it. What one try does on the wire
is `attempt`'s affair.
"""

import logging

from functions.api.ids import ReplicaId
from functions.api.snapshot import FallbackWhen
from functions.decisions.admission.queue import GIVES_WAY
from functions.decisions.catalogue import Catalogue
from functions.decisions.routing.choice import NoReplica, Prediction, ReplicaView
from functions.decisions.routing.retry import EVIDENCE, Failure, may_retry
from functions.gateway import errors
from functions.gateway.admission.queue import PoolTicket
from functions.gateway.errors import ErrorAnswer
from functions.gateway.http.sink import Headers, Sink
from functions.gateway.intake.intake import as_control
from functions.gateway.quota import settlement
from functions.gateway.quota.accounts import Entry
from functions.gateway.request import replies
from functions.gateway.request.attempt import Attempt
from functions.gateway.request.relay import Renaming, Usage, WholeAnswer
from functions.gateway.request.request import (
    NOTHING_SPENT,
    Admitted,
    CascadeSpend,
    Ended,
    Timeline,
)
from functions.gateway.routing.adapter_loads import ColdFailed
from functions.gateway.routing.cascade import CascadeJudge
from functions.gateway.routing.cold_wait import ColdWait, failed_otherwise, lacks_adapter
from functions.gateway.routing.fallback import Degraded
from functions.gateway.routing.fallback_plan import FallbackPlan
from functions.gateway.services import Services

_log = logging.getLogger(__name__)
CLIENT_LEFT = 499


class Exchange:
    __slots__ = (
        "_attempt", "_cold", "_deadline_s", "_fingerprint", "_paused_at_s", "_renaming", "_second", "_services",
        "_sink", "_tried", "admitted", "all_failures", "attempts", "begun", "cascade_spend", "catalogue", "ended",
        "entry", "failures", "plan", "ticket", "timeline", "usage",
    )  # fmt: skip

    def __init__(
        self,
        services: Services,
        catalogue: Catalogue,
        admitted: Admitted,
        sink: Sink,
        *,
        timeline: Timeline,
        entry: Entry,
    ) -> None:
        limits = services.limits
        self._services = services
        self._sink = sink
        self.catalogue = catalogue  # the snapshot that it began with, to its end
        self.admitted = admitted
        self.timeline = timeline
        self.entry = entry
        asked_s = admitted.deadline_ms / 1000 if admitted.deadline_ms is not None else limits.answer_s
        self._deadline_s = timeline.received_s + min(asked_s, limits.answer_s)
        self._renaming = Renaming(admitted.model.engine_name, admitted.model.requested)
        self._tried: dict[ReplicaId, Failure | None] = {}  # in the pool where it is, and how it failed
        self.failures: tuple[Failure, ...] = ()  # in the pool where it is
        self.all_failures: tuple[Failure, ...] = ()  # there, and in those that it came from
        self._fingerprint: bytes | None = None
        self._attempt: Attempt | None = None  # the one under way, or the last one
        self._second: Attempt | None = None  # beside a slow first one, until one of them begins to answer
        self._cold: ColdWait | None = None
        self.plan: FallbackPlan | None = None  # where there are other ways than its own pool
        self.attempts = 0
        self._paused_at_s: float | None = None
        self.usage: Usage | None = None  # of the answer
        self.cascade_spend: CascadeSpend | None = None
        self.ticket: PoolTicket | None = None  # its place in the admission queue, or among those dispatched
        self.begun = self.ended = False

    # the life of a request

    def start(self) -> None:
        services, routing = self._services, self.admitted.routing
        services.open_requests[self] = None
        services.retry_budgets.on_request(self.admitted, services.clock())
        if routing.fallback or routing.cascade:
            self.plan = FallbackPlan(self, self.catalogue, self.admitted)
            asked = self.admitted
            self._take(self.plan.first(asked, self._decide, self._services.admission.shift_ratio(asked.model.pool)))
            if self.plan.degraded is not None:
                self._services.admission.shifted(asked)
        self._services.admission.submit(self)

    def dispatched(self) -> None:
        """Its turn has come: to a replica. Those who wait behind it have theirs, whatever becomes of it."""
        try:
            self._route()
        except Exception:
            self.failed_here()

    def turned_away(self, answer: ErrorAnswer, reason: str) -> None:
        """There is no room for it, now or in time; `reason` is a metric label."""
        self._cannot("saturated", answer, reason)

    def attempt_held(self, attempt: Attempt) -> float:
        self._services.admission.first_token(self)
        return self._services.clock()

    def escalate(self, judge: CascadeJudge, attempt: Attempt) -> bool:
        """The small model was not sure of its answer: ask the larger one, if one is there."""
        if self.plan is None or isinstance(self._decide(judge.larger), NoReplica):
            return False
        self.cascade_spend = settlement.of_judged(judge, attempt, self._services.fleet, self._services.clock())
        self.plan.escalate()
        self._move(judge.larger)
        return True

    def _cannot(self, when: FallbackWhen, answer: ErrorAnswer, reason: str = "") -> None:
        """Its pool cannot answer it: another one does, or it ends with `answer`. `reason` is a metric label."""
        moved = None
        if self.plan is not None and self._services.clock() < self._deadline_s and not self._gives_way(reason):
            moved = self.plan.onward(self.admitted, when, answer, self.failures, reason)
        if self.plan is not None and moved is not None:
            if moved is self.plan.returned:
                self._services.admission.returned(moved)
            self.cascade_spend = (
                None  # the larger model has failed, and the small one is asked again: that is paid for once
            )
            self._move(moved)
            return
        if reason:
            self._services.metrics.shed(reason)
            self._services.admission.pools.shed(self.admitted, reason, self.plan.degraded if self.plan else None)
        self._give_up(self.plan.told(answer) if self.plan is not None else answer)

    def _gives_way(self, reason: str) -> bool:
        """Whether its own pool has refused it for more urgent ones: those come first in other pools, too."""
        return reason == GIVES_WAY and self.plan is not None and not self.plan.is_away

    def _why(self) -> FallbackWhen:
        """What is wrong with the pool, after the last failure."""
        return "saturated" if self.failures[-1:] == (Failure.OVERLOADED,) else "unavailable"

    def _move(self, moved: Admitted) -> None:
        """To another pool, through its waiting room."""
        self._services.admission.released(self, settlement.fair_cost_tokens(self, self._attempt))
        self._drop_attempts()
        self._attempt = self._second = None  # what they were is not the new pool's
        self._tried, self.failures = {}, ()
        self._take(moved)
        self._services.admission.submit(self)

    def _take(self, other: Admitted) -> None:
        self.fingerprint()
        self.admitted = other
        self._renaming = Renaming(other.model.engine_name, other.model.requested)

    def fingerprint(self) -> bytes:
        """Of the request as it came: taken before its body changes, or goes."""
        if self._fingerprint is None:
            self._fingerprint = self._services.quarantine.fingerprint(self.admitted)
        return self._fingerprint

    def _route(self) -> None:
        services = self._services
        decision = self._decide(self.admitted)
        services.metrics.routed(decision)
        if isinstance(decision, NoReplica):
            self._without_replica(decision)
            return
        self._tried[decision.replica.id] = None
        self.timeline.routed_s = services.clock()
        self.attempts += 1
        self._attempt = Attempt(services, self._judge() or self, self.admitted, decision, self._renaming)
        self._attempt.begin()

    def _decide(self, admitted: Admitted) -> Prediction | NoReplica:
        """The one place that asks for a replica."""
        return self._services.router.decide(admitted, self._tried)

    def _judge(self) -> CascadeJudge | None:
        """Who listens to the attempt in the exchange's place."""
        return self.plan.judge(self.admitted) if self.plan is not None else None

    def _without_replica(self, decision: NoReplica) -> None:
        """Nobody can take the request as it is: the rollout's old version may, or a replica that loads the adapter."""
        if not lacks_adapter(decision, self.failures, self._tried):
            when = "saturated" if decision.reason == "told_to_wait" else self._why()
            self._cannot(when, replies.no_replica(decision, self.failures, self.admitted), decision.reason)
        elif self._services.rollouts.may_fall_back(self.admitted):
            self._take_control()
        else:
            self._load_cold()

    def _take_control(self) -> None:
        """No replica has the rollout's new version, which the session has not heard or was rolled back: the old one."""
        self._services.rollouts.candidate_unavailable(self.admitted)
        control = as_control(self.admitted, self._services.rollouts.splits)
        if self.plan is not None:
            self.plan.asks_instead(self.admitted, control)
        self._tried = failed_otherwise(self._tried)  # in the same pool: what failed there has failed
        self._take(control)
        self._route()

    def _load_cold(self) -> None:
        """Wait for the adapter; `_cold_loaded` or `_cold_failed` is called, unless the request ends before."""
        services = self._services
        if self._cold is None:
            self._cold = ColdWait(
                services.adapter_loads, services.clock, loaded=self._cold_loaded, failed=self._cold_failed
            )
        services.admission.defer(self)
        failed = self._cold.begin(self.admitted.route_request(), self.admitted, self._tried)
        if failed is not None:
            self._cold_failed(failed, 0.0)

    def _cold_loaded(self, replica: ReplicaView, waited_s: float) -> None:
        self.timeline.load_s += waited_s
        if self._tried.get(replica.id) is Failure.ADAPTER_MISSING:
            del self._tried[replica.id]
        self._route()

    def _cold_failed(self, failed: ColdFailed, waited_s: float) -> None:
        self.timeline.load_s += waited_s
        when: FallbackWhen = "saturated" if failed.outcome in ("no_room", "too_many") else "unavailable"
        self._cannot(when, replies.not_loaded(failed, self.admitted), "adapter_not_loaded")

    # what the attempt says: this is its Owner

    def attempt_began(self, attempt: Attempt, first: bytes) -> None:
        self._keep_only(attempt)
        self.begun = True
        self._let_go_of_body()
        self._services.rollouts.answering(self.admitted)
        self._first_token(attempt)
        self._sink.begin(self._headers(attempt, b"text/event-stream"), first)
        self.entry.headers = ()  # they are told once: 1 KiB less for as long as it streams

    def attempt_streamed(self, attempt: Attempt, out: bytes) -> None:
        self.entry.progress(attempt.events, attempt.waiting_since_s)
        self._sink.more(out)

    def attempt_finished(self, attempt: Attempt) -> None:
        self.usage = attempt.usage
        self._sink.end(b"")
        self._end(200)

    def attempt_answered(self, attempt: Attempt, answer: WholeAnswer) -> None:
        self.usage = answer.usage
        self._first_token(attempt)
        self._sink.whole(200, self._headers(attempt, b"application/json"), answer.body)
        self._end(200)

    def attempt_refused(self, attempt: Attempt, answer: ErrorAnswer) -> None:
        if self.plan is not None and self.plan.is_away:
            self._cannot("unavailable", answer)  # not the model that the caller chose: none of its mistakes
        else:
            if answer.code == errors.ANSWER_TOO_LARGE:
                self.usage = settlement.unread(self.admitted)
            self._give_up(answer)

    def attempt_failed(self, attempt: Attempt, failure: Failure, detail: str) -> None:
        services, now_s = self._services, self._services.clock()
        self._blame(attempt, failure, detail)
        if failure is Failure.ADAPTER_MISSING:
            services.fleet.retract_adapter(attempt.replica.id, self.admitted.model.engine_name)
        if self._goes_on_without(attempt):
            return
        max_attempts = self.admitted.routing.retry_max_attempts
        may = may_retry(self.failures, max_attempts, now_s, self._deadline_s, int(self.begun))
        if (
            may
            and not services.quarantine.holds(self, now_s)
            and services.retry_budgets.try_spend(self.admitted, services.clock())
        ):
            services.metrics.retried()
            self._route()
        else:
            self._cannot(self._why(), replies.all_failed(self.failures, now_s >= self._deadline_s, self.admitted))

    def attempt_broke(self, attempt: Attempt, answer: ErrorAnswer, failure: Failure, detail: str) -> None:
        self._blame(attempt, failure, detail)
        self._lost(attempt, answer)

    def _let_go_of_body(self) -> None:
        """A stream that has begun is sent nowhere else, and may run for minutes."""
        if self._services.quarantine.on:
            self.fingerprint()
        self.admitted.let_go_of_body()
        if self.plan is not None:
            self.plan.let_go_of_bodies()

    def _first_token(self, attempt: Attempt) -> None:
        self._services.admission.first_token(self)
        if self.plan is not None and self.plan.degraded is not None:
            self._degraded(self.plan.degraded)
        self.timeline.connected_s = attempt.connected_s
        self.timeline.first_token_s = self._services.clock()
        self._services.hedging.first_token(self.admitted, attempt, self.timeline.first_token_s)

    def _degraded(self, degraded: Degraded) -> None:
        """Another pool has begun to answer what was asked of its own."""
        asked = degraded.asked.model.pool
        self._services.metrics.degraded(asked, self.admitted.model.pool)
        self._services.admission.pools.degraded(asked)

    def _settle_cascade(self) -> None:
        """It ends while a small model answers: what that has said is paid for."""
        services = self._services
        self.cascade_spend = settlement.cascade_spend(
            self, self._judge(), self._attempt, services.fleet, services.clock()
        )

    def _headers(self, attempt: Attempt, content_type: bytes) -> Headers:
        more = replies.more_headers(self.admitted, self.entry.headers)
        if self.plan is not None:
            more = self.plan.headers(more)
        return replies.headers(self.admitted, attempt.replica, self.timeline, content_type, more)

    def _blame(self, attempt: Attempt, failure: Failure, detail: str) -> None:
        self.failures += (failure,)
        self.all_failures += (failure,)
        self._tried[attempt.replica.id] = failure
        services, replica_id = self._services, attempt.replica.id
        services.quarantine.failed(self, replica_id, failure, services.clock())
        services.metrics.attempt_failed(failure)
        is_evidence = failure in EVIDENCE
        out_s = services.router.failed(replica_id, failure, attempt.told_to_wait_s, is_evidence=is_evidence)
        _log.warning(
            "request %s: replica %s failed (%s: %s), out for %.0f s",
            self.admitted.request_id,
            replica_id,
            failure.value,
            detail,
            out_s,
        )

    # what the clock, the fleet and the client say

    def check(self, now_s: float) -> None:
        """Called a few times a second: is anything waiting for too long?"""
        limits, attempt = self._services.limits, self._attempt
        if now_s >= self._deadline_s:
            self._settle_cascade()
            self._stop(errors.deadline_exceeded("The deadline passed before the answer was whole."))
        elif self._paused_at_s is not None:
            if now_s - self._paused_at_s > limits.write_stall_s:
                self.client_left()
                self._sink.cut()
        elif attempt is None or attempt.over:
            return  # what it waits for has its own time
        elif attempt.begun:
            if now_s - attempt.waiting_since_s > limits.idle_s:
                attempt.break_off(Failure.SILENT, f"silent for {limits.idle_s} s in its stream")
        elif self.admitted.stream and now_s - attempt.waiting_since_s > limits.first_byte_s:
            attempt.fail(Failure.FIRST_BYTE, f"no first byte in {limits.first_byte_s} s")
        elif self._second is None and self._services.hedging.is_late(self.admitted, attempt, now_s):
            self._hedge()

    def replica_lost(self, replica_id: ReplicaId) -> None:
        """The fleet says that the replica is dead or hung: while nothing was sent, go elsewhere.

        If there is an elsewhere. When a whole pool looks hung it is usually starved, and waiting is the better bet.
        """
        for attempt in (self._attempt, self._second):
            if attempt is None or attempt.over or attempt.replica.id != replica_id or self.begun:
                continue
            if self._second is not None or not isinstance(self._decide(self.admitted), NoReplica):
                attempt.fail(Failure.REPLICA_LOST, "the fleet reports it dead or hung")

    def snapshot_swapped(self) -> None:
        """Whoever waits for a version that was rolled back meanwhile waits no more."""
        if self._cold is not None and self._cold.waiting and self._services.rollouts.may_fall_back(self.admitted):
            self._cold.leave()
            self._take_control()

    def client_left(self) -> None:
        """Abort the engine at once; whatever comes from it now has no reader."""
        if self.ended:
            return
        self._settle_cascade()
        self._end(CLIENT_LEFT)

    def cut_short(self, answer: ErrorAnswer) -> None:
        """It cannot go on, through no fault of its own: the process stops, say."""
        if not self.ended:
            self._stop(answer)

    def cut_off(self) -> None:
        """Its client cannot even be told."""
        self._sink.cut()
        self._end(500, "internal_error")

    def pause(self) -> None:
        """The client reads more slowly than the engine writes: stop reading the engine, so that nothing piles up."""
        self._paused_at_s = self._services.clock()
        if self._attempt is not None:
            self._attempt.pause()

    def resume(self) -> None:
        self._paused_at_s = None
        if self._attempt is not None:
            self._attempt.resume()

    # the end

    def _stop(self, answer: ErrorAnswer) -> None:
        """It ends with this answer, or with a whole one that has just passed."""
        self._drop_attempts()
        attempt = self._attempt
        if attempt is None or not self.begun:
            self._give_up(answer)
        elif attempt.done:
            self.attempt_finished(attempt)
        else:
            self._lost(attempt, answer)

    def _lost(self, attempt: Attempt, answer: ErrorAnswer) -> None:
        """After the first byte: an error event, no `[DONE]`, a clean end of the body."""
        event = self.admitted.route.dialect.error_event(answer, self.admitted.request_id, attempt.passed)
        self._sink.end(event)
        self._end(answer.status, answer.code)

    def _give_up(self, answer: ErrorAnswer) -> None:
        more = replies.more_headers(self.admitted, self.entry.headers)
        body = self.admitted.route.dialect.error_body(answer, self.admitted.request_id)
        self._sink.whole(answer.status, replies.error_headers(self.admitted.request_id, answer, more), body)
        self._end(answer.status, answer.code)

    def _end(self, status: int, code: str = "") -> None:
        """Once, whatever happened; `Ended` goes to all that account for it, in their order (`assembly`)."""
        if self.ended:
            return
        self.ended = True
        if self._cold is not None:
            self._cold.leave()
        self._drop_attempts()
        attempt = self._attempt
        if attempt is not None:
            self.timeline.connected_s = attempt.connected_s
            if self.begun and self.usage is None:  # it was cut off; its engine may have counted before
                self.usage = settlement.counted(self, attempt)
        self.timeline.ended_s = self._services.clock()
        self._services.open_requests.pop(self, None)
        ended = self._ended(attempt, status, code)
        self._attempt = self.ticket = None  # both know it: a circle would keep them, and a body, for the collector
        for listener in self._services.end_listeners:
            try:
                listener(ended)
            except Exception:  # the others are told all the same
                _log.exception("request %s is not accounted for by %r", self.admitted.request_id, listener)
        if status >= 500:
            failures = ",".join(failure.value for failure in self.all_failures)
            _log.warning("request %s ended with %d (%s)", self.admitted.request_id, status, failures)

    def _ended(self, attempt: Attempt | None, status: int, code: str) -> Ended:
        """All that is to be known of it; nothing of it changes any more."""
        gave_up = code == errors.DEADLINE_EXCEEDED and self.admitted.deadline_ms is not None
        spent = settlement.spent(self, attempt, self._services.fleet, client_left=status == CLIENT_LEFT or gave_up)
        beside, plan = self.cascade_spend, self.plan
        is_judged = attempt is None or (beside is not None and beside.attempt is attempt)
        return Ended(
            admitted=self.admitted,
            timeline=self.timeline,
            snapshot_epoch=self.catalogue.epoch,
            status=status,
            code=code,
            begun=self.begun,
            ticket=self.ticket,
            entry=self.entry,
            attempts=self.attempts,
            failures=self.all_failures,
            fingerprint=self.fingerprint,
            usage=self.usage,
            delivered_tokens=0 if attempt is None or is_judged else settlement.delivered_tokens(self, attempt),
            spent=spent if beside is None else settlement.both(spent, beside.spent),
            worked=spent is not NOTHING_SPENT,
            cost_tokens=settlement.fair_cost_tokens(self, attempt),
            cascade_spend=beside,
            prediction=attempt.prediction if attempt is not None else None,
            sent_s=attempt.sent_s if attempt is not None else 0.0,
            gaps=attempt.gaps if attempt is not None else None,
            events=attempt.events if attempt is not None else 0,
            last=attempt.last if attempt is not None else (),
            cascade=plan.cascade.outcome() if plan is not None and plan.cascade is not None else None,
            degraded_from=plan.asked_for if plan is not None else "",
        )

    def failed_here(self) -> None:
        """A step of it has raised: our own mistake, which is logged, and which it alone ends by."""
        _log.exception("request %s failed in the gateway", self.admitted.request_id)
        try:
            self.cut_short(errors.internal_error())
        except Exception:
            _log.exception("request %s cannot be told so", self.admitted.request_id)
            self.cut_off()

    def _drop_attempts(self) -> None:
        for attempt in (self._attempt, self._second):
            if attempt is not None:
                attempt.drop()

    # two attempts at once

    def _hedge(self) -> None:
        """The first attempt is late: a second one beside it, where there is a replica and budget for it."""
        services, decision = self._services, self._decide(self.admitted)
        if (
            isinstance(decision, NoReplica)
            or self._judge() is not None
            or not services.retry_budgets.try_spend(self.admitted, services.clock())
        ):
            return
        self._tried[decision.replica.id] = None
        self.attempts += 1
        services.hedging.begun_total += 1
        self._second = Attempt(services, self, self.admitted, decision, self._renaming)
        self._second.begin()

    def _keep_only(self, winner: Attempt) -> None:
        first, second = self._attempt, self._second
        if second is None:
            return
        self._attempt, self._second = winner, None
        loser = second
        if winner is second:
            self._services.hedging.won_total += 1
            loser = first or second
        loser.drop()
        lost_tokens = self.admitted.features.prompt_tokens - loser.prediction.cached_tokens
        self._services.metrics.hedge_lost(self.admitted.model.pool, max(0, lost_tokens))

    def _goes_on_without(self, failed: Attempt) -> bool:
        """Whether another attempt is still under way."""
        other = self._second if failed is self._attempt else self._attempt
        self._second = None
        if other is None or other.over:
            return False
        self._attempt = other
        return True
