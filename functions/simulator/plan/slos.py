"""Service level objectives that a change breaks. Pure.

A pool's AdmissionPolicy promises a time to first token to a band (`ttftSlo`). The promise is kept where at least 99 of
100 that asked had their first token in that time; who was refused or lost had none.

    broken      kept before, not kept after, and the difference is no noise (`comparison`)
    in doubt    kept before, missed after, and the difference may be noise: more windows tell
    worsened    not kept before either, and now missed by half a percentage point more, which is no noise
    mended      the other way round; eased: missed still, and by half a point less

Worked example (test_worked_example_of_promises): 99.6 % in time before and 97.0 after, by -3.4 to -1.8 points: broken.
95.0 and 94.8: as it was. 95.0 and 92.0: worsened. Broken and worsened are what `shoal plan` refuses.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from functions.simulator.plan.comparison import Compared, Marked

KEPT_RATIO = 0.99
WORSENED_FROM_RATIO = 0.005

State = Literal["kept", "missed", "broken", "in doubt", "worsened", "mended", "eased"]
Verdict = Literal["breaks", "worse", "mixed", "better", "same"]


@dataclass(frozen=True, slots=True)
class Promise:
    """One band of one pool, and what comes of it."""

    pool: str
    band: str
    slo_ms: float
    before_ratio: float
    after_ratio: float
    state: State

    @property
    def refuses(self) -> bool:
        return self.state in {"broken", "worsened"}


def promise(pool: str, band: str, slo_ms: float, attained: Compared) -> Promise | None:
    """None where nobody asked, on one side or the other."""
    before, after = attained.before, attained.after
    if before is None or after is None:
        return None
    return Promise(pool, band, slo_ms, before, after, _state(before, after, attained.marked))


def verdict(promises: Iterable[Promise], in_time: Iterable[Marked], others: Iterable[Marked]) -> Verdict:
    """Of the whole change: a broken promise outweighs everything, first tokens in time outweigh all other figures."""
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
