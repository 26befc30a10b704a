"""`RoutingPolicy`: how requests find a replica of a pool, how often they are retried, and which other pools may
answer.

A pool uses the policy whose pattern fits it best: its exact name before a prefix, a longer prefix before a shorter
one. If none fits, the built-in defaults apply, which are the defaults here.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from functions.api.kinds.base import Finding, Name, ShoalObject, Strict
from functions.api.kinds.quantities import Duration, PoolPattern, Ratio, duration_s
from functions.api.problems import shown
from functions.api.snapshot_entries import (
    EntropyMeasure,
    FallbackWhen,
    PrefixSource,
    Script,
    ServiceClass,
    UnknownFields,
)


class Session(Strict):
    """Session affinity: how long after its last request a session returns to its replica."""

    ttl: Duration = "5m"
    """Time since the session's last request."""

    @property
    def ttl_s(self) -> float:
        return duration_s(self.ttl)


class Prefix(Strict):
    """Source of the router's knowledge of cached prefixes: engine events, replica blooms, or the prompts sent."""

    source: PrefixSource = "events"


class SpreadAbove(Strict):
    """Utilization above which requests go to less loaded replicas rather than to those with their cache."""

    utilization: Ratio = 0.85
    """Work in progress as a share of the pool's capacity."""


class Retry(Strict):
    """Retries on another replica; never after the first byte of an answer."""

    max_attempts: Annotated[int, Field(ge=1, le=10)] = 3
    """Attempts for one request, including the first."""
    budget: Ratio = 0.2
    """Retries per request over time, so that retries never double an overload."""
    hedge_after: Duration | None = None
    """Delay after which an interactive request without a first byte gets a second attempt. It is at least the time
    in which 19 of 20 similar requests begin. Hedges use the same budget as retries. Default: a hedge only if the
    replica sends nothing to any request."""

    @property
    def hedge_after_s(self) -> float | None:
        return duration_s(self.hedge_after) if self.hedge_after is not None else None


class Fallback(Strict):
    """Another pool answers, and a response header names it."""

    when: FallbackWhen
    """saturated: the pool has no room; unavailable: it has no ready replica."""
    from_: Name = Field(alias="from")
    """The pool that the request was for."""
    to: Name
    """The pool that answers."""
    tiers: tuple[Name, ...] = ()
    """Tiers that it applies to; all if empty."""


class Cascade(Strict):
    """A small pool answers first; if its answer is uncertain, the larger pool answers instead."""

    from_: Name = Field(alias="from")
    """The pool that answers first."""
    to: Name
    """The pool that answers next."""
    tiers: tuple[Name, ...] = ()
    """Tiers that it applies to; all if empty."""
    threshold: Annotated[float, Field(ge=0, le=20)] = 1.0
    """Entropy above which the next pool answers, in nats per token; `shoal simulate cascade` helps to choose it."""
    max_tokens: Annotated[int, Field(ge=1, le=1024)] = 32
    """Tokens at the beginning of the small answer that are measured; the answer is held back until then."""
    measure: EntropyMeasure = "mean"
    """The mean over these tokens, or the 90th percentile, which reacts more to a few uncertain tokens."""


class Condition(Strict):
    """Conditions on a request; all that are written must hold."""

    min_prompt_tokens: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    """Smallest prompt in tokens, by the gateway's estimate."""
    max_prompt_tokens: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    """Largest prompt in tokens, by the gateway's estimate."""
    tools: bool | None = None
    """true: the request offers tools to the model; false: it offers none."""
    code: bool | None = None
    """true: the last message has a fenced block of code; false: it has none."""
    keywords: Annotated[tuple[Annotated[str, Field(min_length=2, max_length=64)], ...], Field(max_length=64)] = ()
    """Words of which the last message must contain one, in upper or lower case."""
    script: Script | None = None
    """Script of most letters in the last message."""


class Rule(Strict):
    """A pool for requests of one kind."""

    when: Condition
    """Conditions on the request."""
    to: Name
    """The pool whose base model answers."""


class Classifier(Strict):
    """A model id that stands for several pools; rules select one by the request."""

    model: Name
    """The id in requests, such as auto; it must not be the id of a model."""
    rules: Annotated[tuple[Rule, ...], Field(max_length=100)] = ()
    """Rules in order; the first that holds decides."""
    otherwise: Name
    """The pool that answers if no rule holds."""


class Occasion(Strict):
    """Requests that a rule applies to; all that is written must hold."""

    classes: Annotated[tuple[ServiceClass, ...], Field(max_length=3)] = ()
    """Service classes; all if empty."""
    tiers: Annotated[tuple[Name, ...], Field(max_length=100)] = ()
    """Tiers; all if empty."""
    tenants: Annotated[tuple[Name, ...], Field(max_length=1000)] = ()
    """Tenants; all if empty."""
    min_prompt_tokens: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    """Smallest prompt in tokens, by the gateway's estimate."""
    max_prompt_tokens: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    """Largest prompt in tokens, by the gateway's estimate."""
    min_predicted_ttft: Duration | None = None
    """Smallest predicted time to first token without this rule, such as 800ms."""

    @property
    def min_predicted_ttft_ms(self) -> int | None:
        return round(duration_s(self.min_predicted_ttft) * 1000) if self.min_predicted_ttft is not None else None


class Placement(Strict):
    """A rule that selects one of a model's pools for some requests."""

    when: Occasion
    """Conditions on the request."""
    to: Name
    """The pool: one that serves the model (its label shoal.dev/model), or the model's own."""


class Prefill(Strict):
    """Prompts computed by a prefill pool of the model (label shoal.dev/role), if there is one and it is faster."""

    min_prompt_tokens: Annotated[int, Field(ge=1, le=10_000_000)] = 2048
    """Fewest tokens to compute for which a prefill pool is used."""
    give_up_after: Duration = "10s"
    """Time after which the pool computes the prompt itself."""

    @property
    def give_up_after_s(self) -> float:
        return float(duration_s(self.give_up_after))


class RoutingPolicySpec(Strict):
    pools: Annotated[tuple[PoolPattern, ...], Field(min_length=1, max_length=1000)]
    """Names of pools, or a prefix of names with one * at the end. The pattern that fits a pool best applies."""
    session: Session = Session()
    prefix: Prefix = Prefix()
    bounded_load: Annotated[float, Field(ge=1, le=10)] = 1.25
    """Largest load of a replica relative to the pool's mean, however good its cache is."""
    spread_above: SpreadAbove = SpreadAbove()
    retry: Retry = Retry()
    fallback: Annotated[tuple[Fallback, ...], Field(max_length=1000)] = ()
    """Pools that answer if one cannot; they must not form a cycle."""
    cascade: Annotated[tuple[Cascade, ...], Field(max_length=1000)] = ()
    """Larger pools that answer after a small one; they must not form a cycle."""
    classifier: Classifier | None = None
    """A model id of its own, for which the content of the request selects the pool."""
    placement: Annotated[tuple[Placement, ...], Field(max_length=100)] = ()
    """Rules that select one of several pools of a model. The first rule that holds decides; pools that the tenant
    may not use are skipped. Without a rule, a tenant's own pools come first, then the pool with the model's name."""
    prefill: Prefill = Prefill()
    unknown_fields: UnknownFields = "strip"
    """Handling of request fields that neither OpenAI, Anthropic nor the engine documents. strip drops them and
    names them in x-shoal-ignored, refuse answers 400, pass sends them to engines with fields of their own."""


class RoutingPolicy(ShoalObject):
    """Rules by which requests find a replica, are retried, and may be answered by other pools."""

    kind: Literal["RoutingPolicy"]
    spec: RoutingPolicySpec

    def findings(self) -> Iterator[Finding]:
        hops: tuple[tuple[str, tuple[Fallback | Cascade, ...]], ...] = (
            ("fallback", self.spec.fallback),
            ("cascade", self.spec.cascade),
        )
        for key, steps in hops:
            for index, step in enumerate(steps):
                if step.from_ == step.to:
                    message = f"found {shown(step.to)}, which is also the source; allowed: another pool"
                    yield Finding(("spec", key, index, "to"), message)
