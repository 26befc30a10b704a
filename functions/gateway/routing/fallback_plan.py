"""Fallback plan of one request: which other pools may answer it, and how it moved.

A plan exists only for requests whose model has several pools, or whose routing policy has fallbacks or cascades. A
request leaves its pool in three ways, each to other pools of the same model before other models:

    fallback    the pool cannot answer: full or gone            the next pool in order, then the first error
    shift       the pool could answer, but is near its limit    another pool if it is faster or the ladder requires it
    escalate    the small model was unsure                      the larger model

A request that was shifted or escalated can still be answered by its own pool, so it returns there instead of failing.

`exchange` asks for the next pool and moves; `fallback` rewrites requests; `cascade` judges answers.
"""

from collections.abc import Callable, Collection

from functions.api.snapshot import FallbackWhen
from functions.decisions.admission.queue import GIVES_WAY
from functions.decisions.catalogue import Catalogue
from functions.decisions.routing.choice import NoReplica, Prediction
from functions.decisions.routing.retry import AttemptFailure
from functions.gateway.errors import ErrorAnswer
from functions.gateway.http.sink import MoreHeaders
from functions.gateway.request.request import Admitted
from functions.gateway.routing import fallback
from functions.gateway.routing.cascade import CascadeJudge, Judged, judge_for
from functions.gateway.routing.fallback import Degraded

# Failures caused by the pool. Other failures may be caused by the prompt, which must not move from pool to pool.
_THE_POOLS_OWN = frozenset(
    {
        AttemptFailure.CONNECT,
        AttemptFailure.REPLICA_LOST,
        AttemptFailure.ABORTED,
        AttemptFailure.OVERLOADED,
        AttemptFailure.ADAPTER_MISSING,
    }
)


class FallbackPlan:
    __slots__ = ("_catalogue", "_home", "cascade", "degraded", "returned")

    def __init__(self, exchange: Judged, catalogue: Catalogue, admitted: Admitted) -> None:
        self._catalogue = catalogue
        self._home: Admitted | None = None  # the request for its own pool, if that could still answer it
        self.returned: Admitted | None = None  # a shifted request that returned to its own pool
        self.degraded: Degraded | None = None
        self.cascade = judge_for(exchange, catalogue, admitted) if admitted.routing.cascade else None

    def first(
        self, admitted: Admitted, decide: Callable[[Admitted], Prediction | NoReplica], ladder_ratio: float = 0.0
    ) -> Admitted:
        """Return the request for its first pool: its own, unless that is near its limit and another one is faster.

        A move is recorded. `ladder_ratio` is the share that the overload ladder sends to less full pools. Such a
        request moves to the first pool that serves, faster or not, because its own pool would reject it.
        """
        asked = self.cascade.asking if self.cascade is not None else admitted
        if not admitted.routing.fallback and not admitted.model.other_pools:
            return asked
        here = decide(admitted)
        if isinstance(here, NoReplica) or not fallback.is_shifted(self._catalogue, admitted, here, ladder_ratio):
            return asked
        is_ladders = fallback.draw_of(admitted) < ladder_ratio
        for moved in fallback.all_elsewhere(self._catalogue, admitted, "saturated", None):
            there = decide(moved)
            if isinstance(there, NoReplica):
                continue
            if not is_ladders and there.total_ms >= here.total_ms:
                return asked
            self._home, self.degraded = asked, Degraded(admitted, "saturated", None)
            self.degraded.record_move(self._catalogue, moved)
            return moved
        return asked

    def escalate(self) -> None:
        """Record the move to the larger model. If that fails, the small model answers after all."""
        if self.cascade is not None:
            self._home = self.cascade.plain

    def judge(self, admitted: Admitted) -> CascadeJudge | None:
        """Return the judge of the answer to this request, or None if it is not the one that a cascade judges."""
        return self.cascade if self.cascade is not None and self.cascade.asking is admitted else None

    def request_changed(self, admitted: Admitted, other: Admitted) -> None:
        """Switch the judge, if it judges `admitted`, to `other`: another version of the model in the same pool."""
        judge = self.judge(admitted)
        if judge is not None:
            judge.request_changed(other)

    def onward(
        self,
        admitted: Admitted,
        when: FallbackWhen,
        answer: ErrorAnswer,
        failures: Collection[AttemptFailure],
        why: str = "",
    ) -> Admitted | None:
        """Return the request for the next pool after its pool failed, and record the move; None if there is none.

        A request that was moved away first returns to its own pool. `why` is a label of shoal_shed_total.
        """
        if why == GIVES_WAY and self._home is None and self.degraded is None:
            return None  # rejected in favour of more urgent requests, which come first in other pools too
        home, self._home = self._home, None
        if home is not None:
            if self.degraded is not None:
                self.returned = home
            self.degraded = None
            return home
        if not _THE_POOLS_OWN.issuperset(failures):
            return None
        judge = self.judge(admitted)
        plain = judge.plain if judge is not None else admitted  # the other pool's answer is not judged
        moved = fallback.elsewhere(self._catalogue, plain, when, self.degraded)
        if moved is not None:
            if self.degraded is None:
                self.degraded = Degraded(admitted, when, answer, why)
            self.degraded.record_move(self._catalogue, moved)
        return moved

    def let_go_of_bodies(self) -> None:
        """Drop the bodies, because the answer has begun and the request cannot move again."""
        self._home = None
        if self.cascade is not None:
            self.cascade.let_go_of_bodies()
        if self.degraded is not None:
            self.degraded.requested.let_go_of_body()

    @property
    def is_away(self) -> bool:
        """True if another model than the requested one is used; a cascade's larger model counts as another one."""
        return not self.degraded.is_same_model if self.degraded is not None else self._home is not None

    @property
    def requested_model(self) -> str:
        """Name and version of the requested model if another pool answers with another model, else empty."""
        degraded = self.degraded
        return degraded.requested.model.served_as if degraded is not None and not degraded.is_same_model else ""

    def final_answer(self, answer: ErrorAnswer) -> ErrorAnswer:
        """Return the error for the caller: that of the requested pool if it gave one, else `answer`."""
        first = self.degraded.answer if self.degraded is not None else None
        return first or answer

    def headers(self, more: MoreHeaders) -> MoreHeaders:
        degraded = self.degraded
        return more if degraded is None or degraded.is_same_model else (degraded.header(), *more)
