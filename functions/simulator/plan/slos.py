"""Service level objectives that a change breaks. Pure.

A pool's AdmissionPolicy sets a time to first token for a band (`ttftSlo`). The SLO is kept if at least 99 of 100
requests had their first token in that time; a request that was rejected or lost counts as having none.

    broken      kept before, not kept after, and the difference is no noise (`comparison`)
    in doubt    kept before, missed after, and the difference may be noise: more windows decide
    worsened    not kept before either, and missed by at least half a percentage point more, which is no noise
    mended      missed before, kept after, and no noise; eased: still missed, by at least half a point less

Worked example (test_worked_example_of_promises): 99.6 % in time before and 97.0 after, by -3.4 to -1.8 points:
broken. 95.0 and 94.8: missed, as before. 95.0 and 92.0: worsened. `shoal plan` rejects broken and worsened.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from functions.simulator.plan.comparison import ComparedFigure, Marked

KEPT_RATIO = 0.99
WORSENED_FROM_RATIO = 0.005

State = Literal["kept", "missed", "broken", "in doubt", "worsened", "mended", "eased"]
Verdict = Literal["breaks", "worse", "mixed", "better", "same"]


@dataclass(frozen=True, slots=True)
class Promise:
    """SLO of one band of one pool, before and after the change."""

    pool: str
    band: str
    slo_ms: float
    before_ratio: float
    after_ratio: float
    state: State

    @property
    def refuses(self) -> bool:
        return self.state in {"broken", "worsened"}


def promise(pool: str, band: str, slo_ms: float, attained: ComparedFigure) -> Promise | None:
    """Return the promise, or None if either side has no figure."""
    before, after = attained.before, attained.after
    if before is None or after is None:
        return None
    return Promise(pool, band, slo_ms, before, after, _state(before, after, attained.marked))


def verdict(promises: Iterable[Promise], in_time: Iterable[Marked], others: Iterable[Marked]) -> Verdict:
    """Return the verdict on the change: broken promises come first, then first tokens in time, then other figures."""
    if any(each.refuses for each in promises):
        return "breaks"
    first = _summed(in_time)
    return first if first != "same" else _summed(others)


def _summed(marks: Iterable[Marked]) -> Verdict:
    found = set(marks)
    if {"better", "worse"} <= found:
        return "mixed"
    return "worse" if "worse" in found else "better" if "better" in found else "same"


def _state(before: float, after: float, marked: Marked) -> State:
    if before >= KEPT_RATIO:
        if after >= KEPT_RATIO:
            return "kept"
        return "broken" if marked == "worse" else "in doubt"
    if marked == "better" and after >= KEPT_RATIO:
        return "mended"
    if marked == "better" and after - before >= WORSENED_FROM_RATIO:
        return "eased"
    return "worsened" if marked == "worse" and before - after >= WORSENED_FROM_RATIO else "missed"
