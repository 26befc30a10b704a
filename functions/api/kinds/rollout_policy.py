"""`RolloutPolicy`: stages by which a channel moves from one version to the next, and conditions that stop it.

Each stage sends a percentage of the traffic to the new version for a while; any `autoHalt` condition that holds
stops the rollout. Expressions are described in `functions.api.expressions`.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from functions.api.expressions import parse_halt
from functions.api.kinds.base import Finding, Name, ShoalObject, Strict
from functions.api.kinds.base import Metadata as AnyMetadata
from functions.api.kinds.quantities import Chance, Duration, chance_ratio, duration_s
from functions.api.snapshot_entries import Sticky


def _checked_halt(text: str) -> str:
    parse_halt(text)
    return text


HaltText = Annotated[str, AfterValidator(_checked_halt)]


class Stage(Strict):
    """A share of the traffic for the new version, for a duration."""

    percent: Annotated[int, Field(ge=1, le=100)]
    """Percentage of the channel's requests; more than in the stage before, and 100 in the last."""
    duration: Duration | None = None
    """Duration of the stage; required in every stage but the last."""
    auto_halt: Annotated[tuple[HaltText, ...], Field(max_length=20)] = ()
    """Conditions such as error_rate > 2% or p99_latency > 2x; any that holds stops the rollout and rolls it back."""

    @property
    def duration_s(self) -> float | None:
        return duration_s(self.duration) if self.duration is not None else None


class RolloutPolicySpec(Strict):
    stages: Annotated[tuple[Stage, ...], Field(min_length=1, max_length=100)]
    """Stages in ascending order of percent; the last one has 100."""
    min_requests: Annotated[int, Field(ge=1, le=1_000_000)] = 50
    """Requests that a stage needs as evidence; with fewer, the stage continues and is not passed."""
    false_alarm_rate: Chance = "1%"
    """Largest share of rollouts that are halted although the new version is as good as the old one."""
    sticky: Sticky = "session"
    """Unit that gets one version as a whole: each session (a request without one counts alone), or each tenant."""

    @property
    def false_alarm_ratio(self) -> float:
        return chance_ratio(self.false_alarm_rate)


class RolloutPolicyMetadata(AnyMetadata):
    name: Name  # the policy that models refer to as their rollout


class RolloutPolicy(ShoalObject):
    """Stages by which a channel moves to another version, and conditions that stop it."""

    kind: Literal["RolloutPolicy"]
    metadata: RolloutPolicyMetadata
    spec: RolloutPolicySpec

    def findings(self) -> Iterator[Finding]:
        stages = self.spec.stages
        last = len(stages) - 1
        for index, (before, stage) in enumerate(pairwise(stages), start=1):
            if stage.percent <= before.percent:
                message = f"found {stage.percent}; allowed: more than the stage before it, {before.percent}"
                yield Finding(("spec", "stages", index, "percent"), message)
        for index, stage in enumerate(stages[:-1]):
            if stage.duration is None:
                message = "is required, and not there: every stage but the last ends"
                yield Finding(("spec", "stages", index, "duration"), message)
        if stages[last].percent != 100:
            message = f"found {stages[last].percent}; allowed for the last stage: 100, or the rollout never ends"
            yield Finding(("spec", "stages", last, "percent"), message)
