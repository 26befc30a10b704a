"""Fallback plan of one request: where else than in its own pool it may be answered, and how it came there.

Made only for requests whose model has several pools, or whose routing policy has fallbacks or cascades. Three ways lead
out of a pool, each to other pools of the same model before other models:

    fallback    it cannot answer: full, or gone            then the next pool in order, then the first refusal
    shift       it could, but is near its limit            another one, if that is faster, or the ladder sends it there
    escalate    its small model was not sure               the larger one

and one leads back: what was shifted or escalated could still be answered at home, so it goes there rather than fail.

Neighbours: `exchange` asks and goes; `fallback` rewrites requests; `cascade` judges answers.
"""

from collections.abc import Callable, Collection

from functions.api.snapshot import FallbackWhen
from functions.decisions.admission.queue import GIVES_WAY
from functions.decisions.catalogue import Catalogue
from functions.decisions.routing.choice import NoReplica, Prediction
from functions.decisions.routing.retry import Failure
from functions.gateway.errors import ErrorAnswer
from functions.gateway.http.sink import MoreHeaders
from functions.gateway.request.request import Admitted
from functions.gateway.routing import fallback
from functions.gateway.routing.cascade import CascadeJudge, Judged, judge_for
from functions.gateway.routing.fallback import Degraded

# What speaks of a pool that cannot, rather than of a prompt that must not walk on from pool to pool.
_THE_POOLS_OWN = frozenset(
    {Failure.CONNECT, Failure.REPLICA_LOST, Failure.ABORTED, Failure.OVERLOADED, Failure.ADAPTER_MISSING}
)


class FallbackPlan:
    __slots__ = ("_catalogue", "_home", "cascade", "degraded", "returned")

    def __init__(self, exchange: Judged, catalogue: Catalogue, admitted: Admitted) -> None:
        self._catalogue = catalogue
        self._home: Admitted | None = None  # the request as its own pool could still answer it
        self.returned: Admitted | None = None  # what had been shifted, and is asked of its own pool after all
        self.degraded: Degraded | None = None
        self.cascade = judge_for(exchange, catalogue, admitted) if admitted.routing.cascade else None

    def first(
        self, admitted: Admitted, decide: Callable[[Admitted], Prediction | NoReplica], ladder_ratio: float = 0.0
    ) -> Admitted:
        """Where it begins: in its own pool, unless that is near its limit and another one is faster.

        `ladder_ratio`: what the overload ladder sends to other pools, which it has seen to be less full: to the first
        that serves, faster or not, since here it would be refused.
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
            self.degraded.goes_to(self._catalogue, moved)
            return moved
        return asked

    def escalate(self) -> None:
        """The small model was not sure; should the larger one fail, it answers after all."""
        if self.cascade is not None:
            self._home = self.cascade.plain

    def judge(self, admitted: Admitted) -> CascadeJudge | None:
        """Who judges the answer to this request; None: nobody."""
        return self.cascade if self.cascade is not None and self.cascade.asking is admitted else None

    def request_changed(self, admitted: Admitted, other: Admitted) -> None:
        """Another version of the model is asked, in the same pool: the judge of its answer stays the same."""
        judge = self.judge(admitted)
        if judge is not None:
            judge.request_changed(other)

    def onward(
        self,
        admitted: Admitted,
        when: FallbackWhen,
        answer: ErrorAnswer,
        failures: Collection[Failure],
        why: str = "",
    ) -> Admitted | None:
        """Its pool cannot answer it: where it goes now. None: nowhere. `why`: as a label of shoal_shed_total."""
        if why == GIVES_WAY and self._home is None and self.degraded is None:
            return None  # its own pool has refused it for more urgent ones: those come first in other pools, too
        home, self._home = self._home, None
        if home is not None:
            if self.degraded is not None:
                self.returned = home
            self.degraded = None
            return home
        if not _THE_POOLS_OWN.issuperset(failures):
            return None
        judge = self.judge(admitted)
        plain = judge.plain if judge is not None else admitted  # nobody judges the other pool's answer
        moved = fallback.elsewhere(self._catalogue, plain, when, self.degraded)
        if moved is not None:
            if self.degraded is None:
                self.degraded = Degraded(admitted, when, answer, why)
            self.degraded.goes_to(self._catalogue, moved)
        return moved

    def let_go_of_bodies(self) -> None:
        """Its answer begins: it goes nowhere from here."""
        self._home = None
        if self.cascade is not None:
            self.cascade.let_go_of_bodies()
        if self.degraded is not None:
            self.degraded.requested.let_go_of_body()

    @property
    def is_away(self) -> bool:
        """Whether another model is asked than the caller chose."""
        return not self.degraded.is_same_model if self.degraded is not None else self._home is not None

    @property
    def requested_model(self) -> str:
        """The model that was asked for, where another one was asked; else empty."""
        degraded = self.degraded
        return degraded.requested.model.served_as if degraded is not None and not degraded.is_same_model else ""

    def final_answer(self, answer: ErrorAnswer) -> ErrorAnswer:
        """What the caller gets in the end: what the pool that it asked for said."""
        first = self.degraded.answer if self.degraded is not None else None
        return first or answer

    def headers(self, more: MoreHeaders) -> MoreHeaders:
        degraded = self.degraded
        return more if degraded is None or degraded.is_same_model else (degraded.header(), *more)
