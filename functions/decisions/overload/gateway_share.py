"""One gateway's part of the overload ladder for one pool: its signals, and what it sheds and shifts.

    look(admission, now_s, shiftable_ratio) -> Rungs       about twice a second

Shedding happens here (`Admission.kept_ratios`); the router reads `shift_ratio`. The signals are the gateway's own:
what arrived and what was dispatched. So G gateways each reject their part without talking to each other. No clock, no
I/O: the gateway and the simulator drive the same object.

A replica's rate is measured while requests wait (`admission.drain_rate`). Rungs in force end the waiting, and the
dispatch rate is then what the rungs let through: using it would keep them in force for good. So while the pool has
room and rejects none, the assumed rate is raised by 5 % at each look (test_rate_measured_too_low_is_corrected).
Waiting requests do not prevent this: batch may wait for minutes although room is free
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
_FOLLOW = 0.2  # weight of each new sample
_PROBE = 1.05  # factor per look while there is room
_ENOUGH = 1.5  # the rate is raised up to this factor of the offered load
_LEAST_RATIO = 0.02  # smaller shiftable shares count as 0
_INTERACTIVE = 0


class QueueLadder:
    """Overload ladder of one pool in one gateway. Owned by one event loop. Times are monotonic seconds."""

    __slots__ = (
        "_asked", "_bands", "_costs", "_counts", "_looked_s", "_mix", "_rate_per_s", "_refused", "_shiftable_ratio",
        "rungs", "state",
    )  # fmt: skip

    def __init__(self) -> None:
        self.rungs: Rungs = OFF
        self.state = LadderState()
        self._looked_s: float | None = None
        self._costs = [0] * len(BANDS)  # total arrived cost by band at the last look
        self._bands: tuple[float, ...] = (1.0, 0.0, 0.0)
        self._mix = [0.0] * len(BANDS)
        self._counts = (0, 0)  # interactive requests arrived and rejected by the last look
        self._asked = self._refused = 0.0  # smoothed, per look
        self._rate_per_s: float | None = None  # rate of one replica
        self._shiftable_ratio = 0.0

    def update_rungs(self, admission: Admission, now_s: float, *, shiftable_ratio: float = 0.0) -> Rungs:
        """Update the rungs at most once per LOOK_S, apply the shed to `admission`, and return the rungs in force.
        `shiftable_ratio`: share of arrivals that other pools would accept."""
        if self._looked_s is None:
            self._start_interval(admission, now_s)
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
        """Return the share of arriving requests to shift to other pools; 0 while this pool has room."""
        ratio = self.rungs.shift_ratio
        return ratio if ratio and admission.used_ratio >= KEPT_BELOW_RATIO else 0.0

    def _rate(self, admission: Admission) -> float | None:
        """Return the tokens a second of a full replica, or None while unknown; see the module docstring."""
        drain, known = admission.drain, self._rate_per_s
        measured = drain.per_replica if drain.has_been_full and drain.per_replica else None
        if not self.state.level or known is None:
            return measured
        if admission.used_ratio < KEPT_BELOW_RATIO and self._refused <= REFUSED_RATIO * self._asked:
            return min(_PROBE * known, max(known, _ENOUGH * self.state.tokens_per_s / max(1, admission.gate.replicas)))
        return known + _FOLLOW * (measured - known) if measured is not None else known

    def _start_interval(self, admission: Admission, now_s: float) -> None:
        self._looked_s = now_s
        self._costs = [queue.arrived_cost for queue in admission.queues]
        self._counts = admission.queues[_INTERACTIVE].arrived, admission.queues[_INTERACTIVE].refused

    def _signals(self, admission: Admission, now_s: float, elapsed_s: float) -> PoolSignals:
        interactive = admission.queues[_INTERACTIVE]
        came = [queue.arrived_cost - former for queue, former in zip(admission.queues, self._costs, strict=True)]
        self._asked += _FOLLOW * (interactive.arrived - self._counts[0] - self._asked)
        self._refused += _FOLLOW * (interactive.refused - self._counts[1] - self._refused)
        self._start_interval(admission, now_s)
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
    """Return each band's share of the pool in overload, when batch has only its floor."""
    return tuple(
        BATCH_FLOOR_RATIO if band == BATCH else rule.share_ratio for band, rule in enumerate(admission.rules)
    )  # fmt: skip


def shiftable_ratio(use_ratios: Sequence[float]) -> float:
    """Return the share of arrivals that the target pools (`fallback.shift_targets`) would accept at this use."""
    return min(map(target_headroom_ratio, use_ratios), default=0.0)
