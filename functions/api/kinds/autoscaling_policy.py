"""`AutoscalingPolicy`: bounds and signals by which a pool scales.

A pool has at most one policy. With a policy, the autoscaler sets the number of replicas. It starts from the
policy's `min` if the InferenceService declares no `minReplicas`. A pool without a policy keeps its declared number.
Expressions are described in `functions.api.expressions`.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from functions.api.expressions import parse_scale_rule
from functions.api.kinds.base import Finding, Name, ShoalObject, Strict
from functions.api.kinds.quantities import Duration, duration_s
from functions.api.problems import shown

LEAST_IDLE_S = 10.0  # with less, a pool could scale to zero between two turns of one conversation


def _checked_rule(text: str) -> str:
    parse_scale_rule(text)
    return text


ScaleRuleText = Annotated[str, AfterValidator(_checked_rule)]
ScaleRules = Annotated[tuple[ScaleRuleText, ...], Field(max_length=20)]


class ReplicaBounds(Strict):
    """Bounds that no rule exceeds."""

    min: Annotated[int, Field(ge=0, le=100_000)]
    """Initial number of replicas; at most the InferenceService's minReplicas, if that declares one. 0: no replica
    runs until a request arrives."""
    max: Annotated[int, Field(ge=1, le=100_000)]
    """Largest number of replicas; at most the InferenceService's maxReplicas."""


class AutoscalingPolicySpec(Strict):
    pool: Name
    """The pool that it scales; one policy per pool."""
    replicas: ReplicaBounds
    warm: Annotated[int, Field(ge=0, le=1000)] = 0
    """Additional replicas with the base model loaded and no traffic, which take over in under a second."""
    idle_after: Duration = "10m"
    """With min 0: time without requests after which the pool scales to zero; at least 10s. No scaleDown rule
    removes the last replica."""
    scale_up: ScaleRules = ()
    """Rules such as kv_usage > 85% for 3m: +5%; any that holds adds replicas."""
    scale_down: ScaleRules = ()
    """Rules such as utilization < 40% for 15m: -1; they apply only while no scaleUp rule holds."""

    @property
    def idle_after_s(self) -> float:
        return duration_s(self.idle_after)


class AutoscalingPolicy(ShoalObject):
    """Bounds and signals by which a pool scales."""

    kind: Literal["AutoscalingPolicy"]
    spec: AutoscalingPolicySpec

    def findings(self) -> Iterator[Finding]:
        replicas = self.spec.replicas
        if replicas.max < replicas.min:
            message = f"found {replicas.max}; allowed: at least min, {replicas.min}"
            yield Finding(("spec", "replicas", "max"), message)
        if self.spec.idle_after_s < LEAST_IDLE_S:
            message = f"found {self.spec.idle_after}; allowed: at least {LEAST_IDLE_S:.0f}s"
            yield Finding(("spec", "idleAfter"), message)
        yield from _direction("scaleUp", self.spec.scale_up, upwards=True)
        yield from _direction("scaleDown", self.spec.scale_down, upwards=False)


def _direction(key: str, rules: tuple[str, ...], *, upwards: bool) -> Iterator[Finding]:
    for index, text in enumerate(rules):
        if (parse_scale_rule(text).step.amount > 0) != upwards:
            allowed = (
                "a step that adds replicas, such as +10% or +1"
                if upwards
                else "a step that removes replicas, such as -1"
            )
            yield Finding(("spec", key, index), f"found {shown(text)}; allowed in {key}: {allowed}")
