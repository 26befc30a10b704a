"""Exchange: one admitted request, from its start to its one outcome.

    start -> admission queue -> dispatched -> decide -> attempt -> outcome
                   ^                            ^  |___ no replica has the adapter: wait for it (`cold_wait`), or take
                   |                            |       the rollout's control version
                   |                            |_______ the attempt failed, nothing sent yet
                   |____________________________________ its pool cannot: another one (`fallback_plan`); or, where
                                                         it is at zero, the same once it serves (`wake_wait`)

Nothing goes to the client before the engine's first event (or, not streamed, its whole answer), so that until then any
failure may be retried on another replica and the client notices nothing. After that a failure ends the stream with an
error event and without `[DONE]`. However it ends, it ends once: `_end` has it accounted for (`ending`).

An exchange has four counterparts, each with a section here: the admission queue and the router, its attempts (`tries`),
the client's connection (it is an `Answering`), and the sweep, which looks again at `due_s`.
"""

import logging

from functions.api.ids import ReplicaId
from functions.api.snapshot import FallbackWhen
from functions.decisions.catalogue import Catalogue
from functions.decisions.routing.choice import NoReplica, Prediction, ReplicaView
from functions.decisions.routing.retry import DEATHS_MAX, REFUSALS, Failure, died_with, may_retry
from functions.gateway import errors
from functions.gateway.admission.queue import PoolTicket
from functions.gateway.errors import ErrorAnswer
from functions.gateway.http.sink import Headers, Sink
from functions.gateway.intake.models import as_control
from functions.gateway.quota import settlement
from functions.gateway.quota.accounts import RequestQuota
from functions.gateway.request import ending, replies
from functions.gateway.request.answers import Renaming, Usage, WholeAnswer
from functions.gateway.request.attempt import Attempt
from functions.gateway.request.request import Admitted, CascadeSpend, Timeline
from functions.gateway.request.split import Split
from functions.gateway.request.tries import Tries
from functions.gateway.routing.cascade import CascadeJudge
from functions.gateway.routing.cold_wait import ColdWait, failed_otherwise, lacks_adapter
from functions.gateway.routing.fallback import placed_by_time
from functions.gateway.routing.fallback_plan import FallbackPlan
from functions.gateway.routing.wake_wait import NOBODY_SERVES, WakeWait
from functions.gateway.services import Services

_log = logging.getLogger(__name__)


class Exchange:
    __slots__ = (
        "_cold", "_deadline_s", "_fingerprint", "_paused_at_s", "_renaming", "_services", "_sink", "_wake", "admitted",
        "begun", "cascade_spend", "catalogue", "due_s", "ended", "entry", "plan", "split", "tenant", "ticket",
        "timeline", "tries", "usage",
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
        self._services = services
        self._sink = sink
        self.catalogue = catalogue  # the snapshot that it began with, to its end
        self.admitted = admitted
        self.tenant = admitted.caller.tenant
        self.timeline = timeline
        self.entry = entry
        allowed_s = admitted.deadline_ms / 1000 if admitted.deadline_ms is not None else limits.answer_s
        self._deadline_s = timeline.received_s + min(allowed_s, limits.answer_s)
        self._renaming = Renaming(admitted.model.engine_name, admitted.model.requested)
        self._fingerprint: bytes | None = None
        self.tries = Tries(services)
        self._cold: ColdWait | None = None
        self._wake: WakeWait | None = None
        self.plan: FallbackPlan | None = None  # where there are other ways than its own pool
        self.split: Split | None = None  # where its pool has a prefill pool
        self._paused_at_s: float | None = None
        self.due_s = 0.0  # before this `check` has nothing to do; 0: not known
        self.usage: Usage | None = None  # of the answer
        self.cascade_spend: CascadeSpend | None = None
        self.ticket: PoolTicket | None = None  # in the admission queue, or among those dispatched
        self.begun = self.ended = False

    # to a pool

    def start(self) -> None:
        services, admitted = self._services, self.admitted
        services.open_requests[self] = None
        services.retry_budgets.on_request(admitted, services.clock())
        if admitted.model.other_pools:
            self._take(placed_by_time(self.catalogue, admitted, self._decide))
            admitted = self.admitted
        if admitted.routing.fallback or admitted.routing.cascade or admitted.model.other_pools:
            self.plan = FallbackPlan(self, self.catalogue, admitted)
            self._take(self.plan.first(admitted, self._decide, services.admission.shift_ratio(admitted.model.pool)))
            if self.plan.degraded is not None:
                services.admission.shifted(admitted)
        services.admission.submit(self)

    def turned_away(self, answer: ErrorAnswer, reason: str) -> None:
        """The pool has no capacity for it, now or in time; `reason` is a metric label."""
        self._cannot("saturated", answer, reason)

    def escalate(self, judge: CascadeJudge, attempt: Attempt) -> bool:
        """The small model was not sure of its answer: the larger one is asked, if it is there."""
        if self.plan is None or isinstance(self._decide(judge.larger), NoReplica):
            return False
        self.cascade_spend = settlement.of_judged(judge, attempt, self._services.fleet, self._services.clock())
        self.plan.escalate()
        self._move(judge.larger)
        return True

    def _cannot(self, when: FallbackWhen, answer: ErrorAnswer, reason: str = "") -> None:
        """Its pool cannot answer it: another one does, or it ends with `answer`. `reason` is a metric label."""
        services, plan = self._services, self.plan
        is_at_zero = reason in NOBODY_SERVES and services.pool_wakes.ask(self.catalogue, self.admitted.model.pool)
        moved = None
        if plan is not None and services.clock() < self._deadline_s:
            moved = plan.onward(self.admitted, when, answer, self.tries.failures, reason)
        if plan is not None and moved is not None:
            if moved is plan.returned:
                services.admission.returned(moved)
            if self.cascade_spend is not None:
                services.usage.lost_answer(self.cascade_spend, self.admitted)
            self.cascade_spend = None  # the larger model has failed; the small one is asked again, and paid for once
            self._move(moved)
        elif is_at_zero and (plan is None or not plan.is_away):
            self._wait_for_pool()
        else:
            self._turn_down(answer, reason)

    def _turn_down(self, answer: ErrorAnswer, reason: str) -> None:
        services, plan = self._services, self.plan
        if reason:
            services.metrics.shed(reason)
            services.admission.pools.shed(self.admitted, reason, plan.degraded if plan is not None else None)
        self._give_up(plan.final_answer(answer) if plan is not None else answer)

    def _move(self, moved: Admitted) -> None:
        """To another pool, through its admission queue."""
        self._services.admission.released(self, settlement.fair_cost_tokens(self, self.tries.attempt))
        self.tries.leave_pool()
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

    # to a replica

    def dispatched(self) -> None:
        """Its turn has come: to a replica. Those who wait behind it have theirs, whatever becomes of it."""
        try:
            self._route()
        except Exception:
            self.failed_here()

    def _route(self) -> None:
        services = self._services
        decision = self._decide(self.admitted)
        services.metrics.routed(decision)
        if isinstance(decision, NoReplica):
            self._without_replica(decision)
            return
        self.timeline.routed_s = services.clock()
        self.due_s = 0.0
        judge = self.plan.judge(self.admitted) if self.plan is not None else None
        if self.split is not None:
            self._decode(self.split, judge, decision)
        elif self.admitted.model.pool in self.catalogue.prefill_of and judge is None:
            self._split(decision)
        else:
            self.tries.begin(judge or self, self.admitted, decision, self._renaming)

    def _split(self, decision: Prediction) -> None:
        """Its pool has a prefill pool: where that pays, it computes the prompt first, and `split_over` is called."""
        split = self.split = Split(self._services, self, self.catalogue)
        if split.begin(self.admitted, decision):
            self._services.admission.defer(self)  # the prompts that its pool reads meanwhile are others'
        else:
            self.tries.begin(self, self.admitted, decision, self._renaming)

    def _decode(self, split: Split, judge: CascadeJudge | None, decision: Prediction) -> None:
        """On with the answer, by the blocks that a prefill replica has, if any are of use."""
        handed = split.handed_to(self.admitted, decision) if judge is None else None
        if handed is None:
            self.tries.begin(judge or self, self.admitted, decision, self._renaming)
        else:
            self.tries.begin(self, *handed, self._renaming, begins=split.handed)

    def split_over(self) -> None:
        """The prompt is computed, or is not going to be by that pool."""
        try:
            self.check(self._services.clock())  # its deadline may have passed
            if not self.ended:
                self._route()
        except Exception:
            self.failed_here()

    def _decide(self, admitted: Admitted) -> Prediction | NoReplica:
        """The one place that asks for a replica."""
        return self._services.router.decide(admitted, self.tries.tried)

    def _judge(self) -> CascadeJudge | None:
        """The owner of the attempt in the exchange's place."""
        return self.plan.judge(self.admitted) if self.plan is not None else None

    def _without_replica(self, decision: NoReplica) -> None:
        """No replica can take it as it is: the rollout's old version may, or a replica that loads the adapter."""
        failures = self.tries.failures
        if not lacks_adapter(decision, failures, self.tries.tried):
            when = "saturated" if decision.reason == "told_to_wait" else self.tries.pool_is
            self._cannot(when, replies.no_replica(decision, failures, self.admitted), decision.reason)
        elif self._services.rollouts.may_fall_back(self.admitted):
            self._take_control()
        elif decision.reason == "weights_not_loaded":
            self._cannot("unavailable", replies.no_replica(decision, failures, self.admitted), decision.reason)
        else:
            self._load_cold()

    def _take_control(self) -> None:
        """No replica has the rollout's new version, which the session has not seen or was rolled back: the old one."""
        self._services.rollouts.candidate_unavailable(self.admitted)
        control = as_control(self.admitted, self._services.rollouts.splits)
        if self.plan is not None:
            self.plan.request_changed(self.admitted, control)
        self.tries.tried = failed_otherwise(self.tries.tried)  # in the same pool: what failed there has failed
        self._take(control)
        self._route()

    def _load_cold(self) -> None:
        """Wait for the adapter; then `_cold_loaded` or `_cannot` is called, unless the request ends before."""
        services = self._services
        if self._cold is None:
            self._cold = ColdWait(
                services.adapter_loads, services.clock, self.timeline, loaded=self._cold_loaded, failed=self._cannot
            )
        services.admission.defer(self)
        self._cold.begin(self.admitted, self.tries.tried)

    def _cold_loaded(self, replica: ReplicaView) -> None:
        if self.tries.tried.get(replica.id) is Failure.ADAPTER_MISSING:
            del self.tries.tried[replica.id]
        self._route()

    def _wait_for_pool(self) -> None:
        """Wait for the first replica; then `_pool_serves` or `_turn_down` is called, unless the request ends before."""
        services = self._services
        services.admission.released(self, settlement.fair_cost_tokens(self, self.tries.attempt))
        self.tries.leave_pool()  # a replica that is started anew may bear the name of one that was tried
        if self._wake is None:
            head = replies.more_headers(self.admitted, self.entry.headers)
            self._wake = WakeWait(
                services.pool_wakes, services.clock, self.timeline, self._sink,
                head=head, serves=self._pool_serves, failed=self._turn_down,
            )  # fmt: skip
        self._wake.begin(self.admitted, self._deadline_s)

    def _pool_serves(self) -> None:
        """As if it came now; it counts once."""
        try:
            self._services.admission.returned(self.admitted)
            self._services.admission.submit(self)
        except Exception:
            self.failed_here()

    # what its attempts report: this is their Owner

    def attempt_held(self, attempt: Attempt) -> float:
        self._services.admission.first_token(self)
        return self._services.clock()

    def attempt_began(self, attempt: Attempt, first: bytes) -> None:
        self.tries.keep_only(attempt, self.admitted)
        self.begun = True
        self._let_go_of_body()
        self._services.rollouts.answering(self.admitted)
        self._first_token(attempt)
        if self._wake is not None and self._wake.told:
            self._sink.more(first)
        else:
            self._sink.begin(self._headers(attempt, b"text/event-stream"), first)
        self.entry.headers = ()  # they are sent once: 1 KiB less for as long as it streams

    def attempt_streamed(self, attempt: Attempt, out: bytes) -> None:
        self.entry.progress(attempt.tokens, attempt.waiting_since_s)
        self._sink.more(out)

    def attempt_finished(self, attempt: Attempt) -> None:
        self.usage = attempt.usage
        self._sink.end(b"")
        self._end(200)

    def attempt_answered(self, attempt: Attempt, answer: WholeAnswer) -> None:
        self.tries.keep_only(attempt, self.admitted)
        self.usage = answer.usage
        self._first_token(attempt)
        self._sink.whole(200, self._headers(attempt, b"application/json"), answer.body)
        self._end(200)

    def attempt_refused(self, attempt: Attempt, answer: ErrorAnswer) -> None:
        if self.plan is not None and self.plan.is_away:
            self._cannot("unavailable", answer)  # not the model that the caller chose: none of its mistakes
        else:
            if answer.code in errors.MADE_IN_VAIN:
                self.usage = settlement.unread(self.admitted)
            self._give_up(answer)

    def attempt_failed(self, attempt: Attempt, failure: Failure, detail: str) -> None:
        services, now_s = self._services, self._services.clock()
        self._blame(attempt, failure, detail)
        if failure not in REFUSALS:
            services.usage.lost_attempt(attempt, now_s)
        if failure is Failure.ADAPTER_MISSING:
            services.fleet.retract_adapter(attempt.replica.id, self.admitted.model.engine_name)
        self.due_s = 0.0
        if self.tries.goes_on_without(attempt):
            return
        if self.split is not None and self.split.decode_failed(attempt, failure):
            self.tries.forgive(attempt, failure)
            self._route()
            return
        held = services.quarantine.after_failures(self, now_s)
        if held is not None:  # in another pool it would go on as it went here
            self._give_up(held)
            return
        failures, max_attempts = self.tries.failures, self.admitted.routing.retry_max_attempts
        if (
            may_retry(failures, max_attempts, now_s, self._deadline_s, int(self.begun))
            and died_with(self.tries.all_failures) < DEATHS_MAX
            and services.retry_budgets.try_spend(self.admitted, services.clock())
        ):
            services.metrics.retried()
            self._route()
        else:
            self._cannot(self.tries.pool_is, replies.all_failed(failures, now_s >= self._deadline_s, self.admitted))

    def attempt_broke(self, attempt: Attempt, answer: ErrorAnswer, failure: Failure, detail: str) -> None:
        self._blame(attempt, failure, detail)
        self._lost(attempt, answer)

    def _blame(self, attempt: Attempt, failure: Failure, detail: str) -> None:
        self._services.quarantine.failed(self, attempt.replica.id, failure, self._services.clock())
        self.tries.failed(attempt, self.admitted, failure, detail)

    def _let_go_of_body(self) -> None:
        """A stream that has begun is sent nowhere else, and may run for minutes."""
        if self._services.quarantine.on:
            self.fingerprint()
        self.admitted.let_go_of_body()
        if self.plan is not None:
            self.plan.let_go_of_bodies()
        if self.split is not None:
            self.split.let_go_of_body()

    def _first_token(self, attempt: Attempt) -> None:
        services = self._services
        services.admission.first_token(self)
        if self.plan is not None and self.plan.degraded is not None:  # another pool answers in its own's place
            requested = self.plan.degraded.requested.model.pool
            services.metrics.degraded(
                requested, self.admitted.model.pool, is_same_model=self.plan.degraded.is_same_model
            )
            services.admission.pools.degraded(requested)
        self.timeline.connected_s = attempt.connected_s
        self.timeline.first_token_s = services.clock()
        services.hedging.first_token(self.admitted, attempt, self.timeline.first_token_s)

    def _headers(self, attempt: Attempt, content_type: bytes) -> Headers:
        more = replies.more_headers(self.admitted, self.entry.headers)
        if self.plan is not None:
            more = self.plan.headers(more)
        if self._wake is not None:
            more = self._wake.header(), *more
        if self.split is not None:
            more = self.split.header(), *more
        return replies.headers(self.admitted, attempt.replica, self.timeline, content_type, more)

    # what the sweep, the fleet and the snapshots bring: this is an OpenRequest

    def check(self, now_s: float) -> None:
        """Is anything waiting for too long?"""
        limits = self._services.limits
        if now_s >= self._deadline_s:
            self._settle_cascade()
            self._stop(errors.deadline_exceeded("The deadline passed before the answer was whole."))
        elif self._paused_at_s is not None:
            self.due_s = min(self._deadline_s, self._paused_at_s + limits.write_stall_s)
            if now_s - self._paused_at_s > limits.write_stall_s:
                self.client_left()
                self._sink.cut()
        else:
            if not self.tries.give_up_silent(now_s, stream=self.admitted.stream):
                self._hedge_if_late(now_s)
            self.due_s = min(self._deadline_s, self.tries.due_s(self.admitted, now_s))
            if self.split is not None and not self.begun:
                self._look_at_split(self.split, now_s)

    def _look_at_split(self, split: Split, now_s: float) -> None:
        self.due_s = min(self.due_s, split.due_s)
        split.check(now_s)
        slow = split.gives_up(now_s) if not self.ended else None
        if slow is not None and not self.tries.goes_on_without(slow):
            self.tries.tried.pop(slow.replica.id, None)
            self._route()

    def _hedge_if_late(self, now_s: float) -> None:
        """A second attempt beside a late first one, where there is a replica and budget for it."""
        if not self.tries.is_late(self.admitted, now_s):
            return
        decision = self._decide(self.admitted)
        if isinstance(decision, NoReplica) or self._judge() is not None:
            return
        if self._services.retry_budgets.try_spend(self.admitted, self._services.clock()):
            self.tries.begin_second(self, self.admitted, decision, self._renaming)

    def replica_lost(self, replica_id: ReplicaId) -> None:
        """The fleet says that the replica is dead or hung: while nothing was sent, go elsewhere.

        If there is an elsewhere. When a whole pool looks hung it is usually starved, and waiting is the better bet.
        """
        if self.split is not None:
            self.split.replica_lost(replica_id)
        attempt = self.tries.at(replica_id) if not self.begun else None
        if attempt is not None and (
            self.tries.second is not None or not isinstance(self._decide(self.admitted), NoReplica)
        ):
            attempt.fail(Failure.REPLICA_LOST, "the fleet reports it dead or hung")

    def snapshot_swapped(self) -> None:
        """A request that waits for a version that was rolled back meanwhile waits no more."""
        if self._cold is not None and self._cold.waiting and self._services.rollouts.may_fall_back(self.admitted):
            self._cold.leave()
            self._take_control()

    def cut_short(self, answer: ErrorAnswer) -> None:
        """It cannot go on, through no fault of its own: the process stops, say."""
        if not self.ended:
            self._stop(answer)

    def failed_here(self) -> None:
        """A step of it has raised: our own mistake, which is logged, and which it alone ends by."""
        _log.exception("request %s failed in the gateway", self.admitted.request_id)
        try:
            self.cut_short(errors.internal_error())
        except Exception:
            _log.exception("request %s cannot be told so", self.admitted.request_id)
            self.cut_off()

    # what the client does: this is an Answering

    def client_left(self) -> None:
        """Abort the engine at once; whatever comes from it now has no reader."""
        if self.ended:
            return
        self._settle_cascade()
        self._end(ending.CLIENT_LEFT)

    def pause(self) -> None:
        """The client reads more slowly than the engine writes: stop reading the engine, so that nothing piles up."""
        self._paused_at_s = self._services.clock()
        self.due_s = 0.0
        if self.tries.attempt is not None:
            self.tries.attempt.pause()

    def resume(self) -> None:
        if self._paused_at_s is not None:
            self.timeline.paused_s += self._services.clock() - self._paused_at_s
        self._paused_at_s = None
        self.due_s = 0.0
        if self.tries.attempt is not None:
            self.tries.attempt.resume()

    # the end

    def _stop(self, answer: ErrorAnswer) -> None:
        """It ends with this answer, or with a whole one that has just passed."""
        self.tries.drop()
        attempt = self.tries.attempt
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
        if self._wake is not None and self._wake.told:
            self._sink.end(self.admitted.route.dialect.error_event(answer, self.admitted.request_id, 0))
            self._end(answer.status, answer.code)
            return
        more = replies.more_headers(self.admitted, self.entry.headers)
        body = self.admitted.route.dialect.error_body(answer, self.admitted.request_id)
        self._sink.whole(answer.status, replies.error_headers(self.admitted.request_id, answer, more), body)
        self._end(answer.status, answer.code)

    def cut_off(self) -> None:
        """Its client cannot even be given an error."""
        self._sink.cut()
        self._end(500, "internal_error")

    def _settle_cascade(self) -> None:
        """It ends while a small model answers: what that has generated is paid for."""
        services = self._services
        judge, attempt = self._judge(), self.tries.attempt
        self.cascade_spend = settlement.cascade_spend(self, judge, attempt, services.fleet, services.clock())

    def _end(self, status: int, code: str = "") -> None:
        """Once, whatever happened."""
        if self.ended:
            return
        self.ended = True
        if self._cold is not None:
            self._cold.leave()
        if self._wake is not None:
            self._wake.leave()
        self.tries.drop()
        if self.split is not None:
            self.split.drop()
        attempt = self.tries.attempt
        if attempt is not None:
            self.timeline.connected_s = attempt.connected_s
            if self.begun and self.usage is None:  # it was cut off; its engine may have counted before
                self.usage = settlement.counted(self, attempt)
        self.timeline.ended_s = self._services.clock()
        self._services.open_requests.pop(self, None)
        ending.account_for(self._services, self, status, code)
