"""`RoutingPolicy`: how requests find a replica of a pool, how often they are tried again, and where else they may go.

A pool obeys the policy whose pattern fits it best: its exact name before a beginning, a longer beginning before a
shorter one; where none fits, the built-in defaults, which are the defaults here.
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
    """How long after its last request a session still goes back to its replica."""

    ttl: Duration = "5m"
    """Since the session's last request."""

    @property
    def ttl_s(self) -> float:
        return duration_s(self.ttl)


class Prefix(Strict):
    """Where the router's belief about cached prefixes comes from: engine events, replica blooms, or what was sent."""

    source: PrefixSource = "events"


class SpreadAbove(Strict):
    """Above this utilization, load is spread rather than kept where its cache is."""

    utilization: Ratio = 0.85
    """Work in progress, of what the pool can take."""


class Retry(Strict):
    """Trying again on another replica; never after the first byte of an answer."""

    max_attempts: Annotated[int, Field(ge=1, le=10)] = 3
    """Attempts for one request, the first one included."""
    budget: Ratio = 0.2
    """Retries per request over time, so that retries never double an overload."""
    hedge_after: Duration | None = None
    """An interactive request without a first byte gets a second attempt beside the first: after this, and not before
    19 in 20 requests that looked like it had begun. Out of the same budget. None written: only where its replica says
    nothing to anybody."""

    @property
    def hedge_after_s(self) -> float | None:
        return duration_s(self.hedge_after) if self.hedge_after is not None else None


class Fallback(Strict):
    """Another pool answers, with a response header that says so."""

    when: FallbackWhen
    """saturated: the pool has no room; unavailable: it has no ready replica."""
    from_: Name = Field(alias="from")
    """The pool that was asked."""
    to: Name
    """The pool that answers."""
    tiers: tuple[Name, ...] = ()
    """The tiers for which it does; none written means all of them."""


class Cascade(Strict):
    """A small pool answers first; what it is not sure of is asked of the larger one."""

    from_: Name = Field(alias="from")
    """The pool that answers first."""
    to: Name
    """The pool that is asked next."""
    tiers: tuple[Name, ...] = ()
    """The tiers for which it is; none written means all of them."""
    threshold: Annotated[float, Field(ge=0, le=20)] = 1.0
    """The entropy above which it is, in nats per token; `shoal simulate cascade` helps to choose."""
    max_tokens: Annotated[int, Field(ge=1, le=1024)] = 32
    """How many tokens of the small answer are judged, from its beginning; it is held back for so long."""
    measure: EntropyMeasure = "mean"
    """The mean over these tokens, or the 90th percentile, which few doubtful ones move more."""


class Condition(Strict):
    """What a request must be like; all that is written must hold."""

    min_prompt_tokens: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    """At least so long, by the gateway's estimate."""
    max_prompt_tokens: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    """At most so long."""
    tools: bool | None = None
    """Whether tools are offered to the model."""
    code: bool | None = None
    """Whether there is a fenced block of code in the last message."""
    keywords: Annotated[tuple[Annotated[str, Field(min_length=2, max_length=64)], ...], Field(max_length=64)] = ()
    """One of these in the last message, whatever its capitals."""
    script: Script | None = None
    """What most letters of the last message are written in."""


class Rule(Strict):
    """Which pool answers what kind of request."""

    when: Condition
    """What the request must be like."""
    to: Name
    """The pool whose base model answers."""


class Classifier(Strict):
    """A model id that stands for whichever pool suits the request."""

    model: Name
    """The id that clients ask for, such as auto; it must be no model's."""
    rules: Annotated[tuple[Rule, ...], Field(max_length=100)] = ()
    """Looked at in this order; the first that holds decides."""
    otherwise: Name
    """The pool that answers where none does."""


class Occasion(Strict):
    """Which requests a rule is about; all that is written must hold."""

    classes: Annotated[tuple[ServiceClass, ...], Field(max_length=3)] = ()
    """The service classes; none written means all of them."""
    tiers: Annotated[tuple[Name, ...], Field(max_length=100)] = ()
    """The tiers; none written means all of them."""
    tenants: Annotated[tuple[Name, ...], Field(max_length=1000)] = ()
    """The tenants; none written means all of them."""
    min_prompt_tokens: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    """At least so long, by the gateway's estimate."""
    max_prompt_tokens: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    """At most so long."""
    min_predicted_ttft: Duration | None = None
    """Where without this rule its first token would take at least so long, such as 800ms."""

    @property
    def min_predicted_ttft_ms(self) -> int | None:
        return round(duration_s(self.min_predicted_ttft) * 1000) if self.min_predicted_ttft is not None else None


class Placement(Strict):
    """Which of a model's pools answers which requests."""

    when: Occasion
    """What the request must be like."""
    to: Name
    """The pool: one that serves the model (its label shoal.dev/model), or the model's own."""


class Prefill(Strict):
    """Prompts computed by a prefill pool of the model (label shoal.dev/role), where there is one and it pays."""

    min_prompt_tokens: Annotated[int, Field(ge=1, le=10_000_000)] = 2048
    """Prompts with fewer tokens to compute never go there."""
    give_up_after: Duration = "10s"
    """Then the pool computes the prompt by itself after all."""

    @property
    def give_up_after_s(self) -> float:
        return float(duration_s(self.give_up_after))


class RoutingPolicySpec(Strict):
    pools: Annotated[tuple[PoolPattern, ...], Field(min_length=1, max_length=1000)]
    """Names of pools, or the beginning of names and one * at the end. The pattern that fits a pool best counts."""
    session: Session = Session()
    prefix: Prefix = Prefix()
    bounded_load: Annotated[float, Field(ge=1, le=10)] = 1.25
    """How far above the pool's mean load a replica may be, however good its cache is."""
    spread_above: SpreadAbove = SpreadAbove()
    retry: Retry = Retry()
    fallback: Annotated[tuple[Fallback, ...], Field(max_length=1000)] = ()
    """Which other pools answer when one cannot; never in a circle."""
    cascade: Annotated[tuple[Cascade, ...], Field(max_length=1000)] = ()
    """Which larger pools are asked after a small one; never in a circle."""
    classifier: Classifier | None = None
    """A model id of its own, behind which the request itself decides who answers."""
    placement: Annotated[tuple[Placement, ...], Field(max_length=100)] = ()
    """Among several pools of one model, which answers; the first rule that holds decides, and none that its tenant may
    not use. Without one, a tenant's own pools come first, then the pool that bears the model's name."""
    prefill: Prefill = Prefill()
    unknown_fields: UnknownFields = "strip"
    """Fields of a request that neither OpenAI, Anthropic nor the engine documents: strip drops them and names them in
    x-shoal-ignored, refuse answers 400, pass lets engines have them (for engines with fields of their own)."""


class RoutingPolicy(ShoalObject):
    """How requests find a replica, how often they are tried again, and where else they may go."""

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
                    message = f"found {shown(step.to)}, which is where it comes from; allowed: another pool"
                    yield Finding(("spec", key, index, "to"), message)
