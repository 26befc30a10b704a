"""One gateway's part of the overload ladder for one pool: its report, and what it then sheds and shifts.

    look(admission, now_s, shiftable_ratio) -> Rungs       about twice a second

Shed is done here (`Admission.kept_ratios`); whoever routes asks for `shift_ratio`. Signals are the gateway's own:
what came to it and what it was seen to work off, so that G gateways each refuse their part without talking. No clock,
no I/O: the gateway and the simulator drive the same object.

What a replica does is measured while somebody waits (`admission.drain_rate`). Rungs in force end the waiting, and what
passes then is what they let through: to believe that would keep them in force for good. So while the pool has room and
refuses nobody, the rate is taken for 5 % more at each look (test_a_rate_that_was_too_low_is_found_out). Whether
somebody waits is no matter: batch may wait for minutes beside free room
(test_batch_that_waits_does_not_keep_the_rate_low).

Neighbours: `ladder` decides; `functions.gateway.admission.queue` has one of these for each pool.
"""

from collections.abc import Sequence

from functions.decisions.admission.bands import BATCH, BATCH_FLOOR_RATIO
from functions.decisions.admission.queue import KEPT_BELOW_RATIO, Admission
from functions.decisions.admission.ticket import BANDS
from functions.decisions.autoscaling.signals import PoolSignals
from functions.decisions.overload.ladder import OFF, REFUSED_RATIO, LadderState, Means, Rungs, step
from functions.decisions.overload.ladder_formulas import target_headroom_ratio

LOOK_S = 0.5
_FOLLOW = 0.2  # of each new mix of bands
_PROBE = 1.05  # a look, while there is room
_ENOUGH = 1.5  # of what is offered: more need not be known
_LEAST_RATIO = 0.02  # that is worth a detour
_INTERACTIVE = 0


class QueueLadder:
    """Owned by one event loop. Times are monotonic seconds."""

    __slots__ = (
        "_asked", "_bands", "_costs", "_counts", "_looked_s", "_mix", "_rate_per_s", "_refused", "_shiftable_ratio",
        "rungs", "state",
    )  # fmt: skip

    def __init__(self) -> None:
        self.rungs: Rungs = OFF
        self.state = LadderState()
        self._looked_s: float | None = None
        self._costs = [0] * len(BANDS)  # that had come by the last look
        self._bands: tuple[float, ...] = (1.0, 0.0, 0.0)
        self._mix = [0.0] * len(BANDS)
        self._counts = (0, 0)  # interactive ones that came and were refused by then
        self._asked = self._refused = 0.0  # lately
        self._rate_per_s: float | None = None  # of a replica
        self._shiftable_ratio = 0.0

    def look(self, admission: Admission, now_s: float, *, shiftable_ratio: float = 0.0) -> Rungs:
        """The rungs from now on; the room obeys them already."""
        if self._looked_s is None:
            self._begin(admission, now_s)
            return self.rungs
        elapsed_s = now_s - self._looked_s
        if elapsed_s < LOOK_S:
            return self.rungs
        signals = self._signals(admission, now_s, elapsed_s)
        self._rate_per_s = self._rate(admission)
        self._shiftable_ratio += _FOLLOW * (shiftable_ratio - self._shiftable_ratio)
        means = Means(
            wait_s=admission.rules[_INTERACTIVE].max_wait_s,
            replica_tokens_per_s=self._rate_per_s,
            band_ratios=self._bands,
            share_ratios=_shares(admission),
            shiftable_ratio=self._shiftable_ratio if self._shiftable_ratio > _LEAST_RATIO else 0.0,
        )
        self.state, self.rungs = step(self.state, signals, means, now_s)
        admission.kept_ratios = self.rungs.kept_ratios if "shed" in self.rungs.on else None
        return self.rungs

    def shift_ratio(self, admission: Admission) -> float:
        """Of those that come at this moment, the share that goes elsewhere: nobody, while there is room here."""
        ratio = self.rungs.shift_ratio
        return ratio if ratio and admission.used_ratio >= KEPT_BELOW_RATIO else 0.0

    def _rate(self, admission: Admission) -> float | None:
        """What a replica does while it is full; see the prologue."""
        drain, known = admission.drain, self._rate_per_s
        measured = drain.per_replica if drain.has_been_full and drain.per_replica else None
        if not self.state.level or known is None:
            return measured
        if admission.used_ratio < KEPT_BELOW_RATIO and self._refused <= REFUSED_RATIO * self._asked:
            return min(_PROBE * known, max(known, _ENOUGH * self.state.tokens_per_s / max(1, admission.gate.replicas)))
        return known + _FOLLOW * (measured - known) if measured is not None else known

    def _begin(self, admission: Admission, now_s: float) -> None:
        self._looked_s = now_s
        self._costs = [queue.arrived_cost for queue in admission.queues]
        self._counts = admission.queues[_INTERACTIVE].arrived, admission.queues[_INTERACTIVE].refused

    def _signals(self, admission: Admission, now_s: float, elapsed_s: float) -> PoolSignals:
        interactive = admission.queues[_INTERACTIVE]
        came = [queue.arrived_cost - former for queue, former in zip(admission.queues, self._costs, strict=True)]
        self._asked += _FOLLOW * (interactive.arrived - self._counts[0] - self._asked)
        self._refused += _FOLLOW * (interactive.refused - self._counts[1] - self._refused)
        self._begin(admission, now_s)
        self._mix = [mix + _FOLLOW * (new - mix) for mix, new in zip(self._mix, came, strict=True)]
        if (total := sum(self._mix)) > 0.0:
            self._bands = tuple(mix / total for mix in self._mix)
        return PoolSignals(
            at_s=now_s,
            ready=admission.gate.replicas,
            arrivals_per_s=self._asked / elapsed_s,
            arriving_tokens_per_s=sum(came) / elapsed_s,
            queue_seconds=admission.band_wait_s(_INTERACTIVE, now_s),
            foreground_queued_tokens=interactive.queued_cost,
            overflow_per_s=self._refused / elapsed_s,
        )


def _shares(admission: Admission) -> tuple[float, ...]:
    """What each band is left of the pool in overload."""
    return tuple(
        BATCH_FLOOR_RATIO if band == BATCH else rule.share_ratio for band, rule in enumerate(admission.rules)
    )  # fmt: skip


def shiftable_ratio(use_ratios: Sequence[float]) -> float:
    """Of what comes here, what the pools would take that it would go to (`fallback.shift_targets`), each so full."""
    return min(map(target_headroom_ratio, use_ratios), default=0.0)
