"""Effect of a spike on the requests during it, arm by arm: the median over seeds, the minimum and the maximum.

    recovery_s   from the beginning of the spike until p99 of the last ten seconds is within the target and stays there
                 to the spike's end; 0 if it always was, None if it never was again
    in_time      interactive requests with their first token within the target / all interactive requests

Worked example (test_recovery_is_when_latency_stays_within_the_slo): samples ten seconds apart show a p99 of 400, 900,
450, 700, 480 and 460 ms, with a target of 500: it stayed within from the fifth on, 40 s after the beginning.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import inf
from statistics import median

from studies.spike.arms import ArmName
from studies.spike.spike import SLO_MS, SpikeRun, SpikeSetting


@dataclass(frozen=True, slots=True)
class SpikeFigures:
    """Figures of one run."""

    interactive_p99_ms: float | None
    in_time_ratio: float
    shed_ratio: float  # share of interactive requests
    degraded_ratio: float
    batch_shed_ratio: float
    recovery_s: float | None
    accelerator_hours: float


@dataclass(frozen=True, slots=True)
class Range:
    """Median and range over seeds; None sorts as the worst."""

    median: float | None
    least: float | None
    most: float | None


@dataclass(frozen=True, slots=True)
class ArmFigures:
    arm: ArmName
    seeds: int
    figures: dict[str, Range]


def figures_of(run: SpikeRun, spike: SpikeSetting) -> SpikeFigures:
    sums = run.recorder.sums
    _, first, first_batch = next(each for each in sums if each[0] >= spike.at_s)
    _, last, last_batch = next((each for each in sums if each[0] >= spike.ends_s), sums[-1])
    asked, batch = max(1, last.asked - first.asked), max(1, last_batch.asked - first_batch.asked)
    line = run.recorder.timeline
    during = [
        (at_s, p99) for at_s, p99 in zip(line.at_s, line.p99_ms, strict=True) if spike.at_s <= at_s <= spike.ends_s
    ]
    return SpikeFigures(
        interactive_p99_ms=last.p99_ms(first),
        in_time_ratio=(last.in_time - first.in_time) / asked,
        shed_ratio=(last.shed - first.shed) / asked,
        degraded_ratio=(last.degraded - first.degraded) / asked,
        batch_shed_ratio=(last_batch.shed - first_batch.shed) / batch,
        recovery_s=recovery_s(during, spike.at_s, SLO_MS),
        accelerator_hours=run.accelerator_hours,
    )


def recovery_s(during: Sequence[tuple[float, float | None]], begins_s: float, slo_ms: float) -> float | None:
    """Return `recovery_s` of the prologue. A sample without first tokens counts as over the target."""
    over = [index for index, (_, p99_ms) in enumerate(during) if p99_ms is None or p99_ms > slo_ms]
    if not over:
        return 0.0
    return during[over[-1] + 1][0] - begins_s if over[-1] + 1 < len(during) else None


def over_seeds(arm: ArmName, found: Sequence[SpikeFigures]) -> ArmFigures:
    figures = {}
    for field in fields(SpikeFigures):
        values = sorted(inf if (value := getattr(each, field.name)) is None else value for each in found)
        known = [None if value == inf else value for value in (median(values), values[0], values[-1])]
        figures[field.name] = Range(*known)
    return ArmFigures(arm, len(found), figures)
