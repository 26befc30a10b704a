"""`RolloutPolicy`: in which steps a channel moves from one version to the next, and what stops it.

Each stage sends a percentage of the traffic to the new version for a while; any `autoHalt` condition that holds stops
the rollout. Expressions are described in `functions.api.expressions`.
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
    """A share of the traffic for the new version, for a while."""

    percent: Annotated[int, Field(ge=1, le=100)]
    """Of the channel's requests; more than in the stage before, and 100 in the last."""
    duration: Duration | None = None
    """How long the stage lasts; required in every stage but the last."""
    auto_halt: Annotated[tuple[HaltText, ...], Field(max_length=20)] = ()
    """Conditions such as error_rate > 2% or p99_latency > 2x; one that holds stops the rollout and takes it back."""

    @property
    def duration_s(self) -> float | None:
        return duration_s(self.duration) if self.duration is not None else None


class RolloutPolicySpec(Strict):
    stages: Annotated[tuple[Stage, ...], Field(min_length=1, max_length=100)]
    """In ascending order, the last one with 100 percent."""
    min_requests: Annotated[int, Field(ge=1, le=1_000_000)] = 50
    """Fewer requests in a stage are no evidence: it is held, not passed."""
    false_alarm_rate: Chance = "1%"
    """Of rollouts of a version that is as good as the old one, at most so many are halted all the same."""
    sticky: Sticky = "session"
    """What gets one version as a whole: each session (a request without one stands alone), or each tenant."""

    @property
    def false_alarm_ratio(self) -> float:
        return chance_ratio(self.false_alarm_rate)


class RolloutPolicyMetadata(AnyMetadata):
    name: Name  # models name it as their rollout


class RolloutPolicy(ShoalObject):
    """In which steps a channel moves to another version, and what stops it."""

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
