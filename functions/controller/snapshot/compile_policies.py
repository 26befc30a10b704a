"""Policies in the form of the snapshot: units as numbers, expressions in their canonical text, sets sorted.

Fractions are converted to floats here: 60 and 60.0 would be two texts for one value, and equal content must have
equal bytes. Neighbours: `compile` calls this.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import msgspec

from functions.api.declared import Accepted, Declared
from functions.api.expressions import parse_halt, parse_scale_rule
from functions.api.ids import PoolName, TenantId
from functions.api.kinds.admission_policy import AdmissionPolicy
from functions.api.kinds.autoscaling_policy import AutoscalingPolicy
from functions.api.kinds.quota_policy import QuotaLimits as WrittenLimits
from functions.api.kinds.quota_policy import QuotaPolicy
from functions.api.kinds.rollout_policy import RolloutPolicy, Stage
from functions.api.kinds.routing_policy import Cascade, Classifier, Fallback, Placement, RoutingPolicy, Rule
from functions.api.snapshot import (
    AdmissionEntry,
    AutoscalingEntry,
    BandEntry,
    CascadeEntry,
    ClassifierEntry,
    FallbackEntry,
    PlacementEntry,
    QuotaEntry,
    QuotaLimitsPart,
    RolloutEntry,
    RoutingEntry,
    RuleEntry,
    StageEntry,
)

Policy = TypeVar("Policy")
Entry = TypeVar("Entry")


def policy_entry(policy: Declared[Policy], entry_of: Callable[[Policy], Entry]) -> Entry:
    """Return the entry of a policy, or the accepted entry that stands in for it."""
    return cast(Entry, policy.entries[0]) if isinstance(policy, Accepted) else entry_of(policy.value)


def quota_entry(policy: QuotaPolicy) -> QuotaEntry:
    return QuotaEntry(
        name=policy.metadata.name,
        weight=float(policy.spec.weight),
        limits=quota_limits(policy.spec.limits),
        cached_token_weight_ratio=float(policy.spec.cached_token_weight),
    )


def quota_limits(limits: WrittenLimits) -> QuotaLimitsPart:
    return msgspec.convert(limits, QuotaLimitsPart, from_attributes=True)


def routing_entry(policy: RoutingPolicy) -> RoutingEntry:
    spec = policy.spec
    return RoutingEntry(
        name=policy.metadata.name,
        pools=tuple(sorted(set(spec.pools))),
        session_ttl_s=float(spec.session.ttl_s),
        prefix_source=spec.prefix.source,
        bounded_load=float(spec.bounded_load),
        spread_above_utilization_ratio=float(spec.spread_above.utilization),
        retry_max_attempts=spec.retry.max_attempts,
        retry_budget_ratio=float(spec.retry.budget),
        fallback=tuple(_fallback(step) for step in spec.fallback),
        cascade=tuple(_cascade(step) for step in spec.cascade),
        hedge_after_s=spec.retry.hedge_after_s,
        classifier=_classifier(spec.classifier) if spec.classifier is not None else None,
        unknown_fields=spec.unknown_fields,
        placement=tuple(_placement(rule) for rule in spec.placement),
        prefill_min_prompt_tokens=spec.prefill.min_prompt_tokens,
        prefill_give_up_after_s=spec.prefill.give_up_after_s,
    )


def _fallback(step: Fallback) -> FallbackEntry:
    return FallbackEntry(step.when, PoolName(step.from_), PoolName(step.to), tuple(sorted(set(step.tiers))))


def _cascade(step: Cascade) -> CascadeEntry:
    return CascadeEntry(
        PoolName(step.from_),
        PoolName(step.to),
        tuple(sorted(set(step.tiers))),
        threshold_nats=float(step.threshold),
        sample_tokens=step.max_tokens,
        measure=step.measure,
    )


def _classifier(classifier: Classifier) -> ClassifierEntry:
    rules = tuple(_rule(rule) for rule in classifier.rules)
    return ClassifierEntry(classifier.model, PoolName(classifier.otherwise), rules)


def _rule(rule: Rule) -> RuleEntry:
    when = rule.when
    return RuleEntry(
        PoolName(rule.to),
        min_prompt_tokens=when.min_prompt_tokens,
        max_prompt_tokens=when.max_prompt_tokens,
        tools=when.tools,
        code=when.code,
        keywords=tuple(sorted({word.lower() for word in when.keywords})),
        script=when.script,
    )


def _placement(rule: Placement) -> PlacementEntry:
    when = rule.when
    return PlacementEntry(
        PoolName(rule.to),
        classes=tuple(sorted(set(when.classes))),
        tiers=tuple(sorted(set(when.tiers))),
        tenants=tuple(sorted(TenantId(tenant) for tenant in set(when.tenants))),
        min_prompt_tokens=when.min_prompt_tokens,
        max_prompt_tokens=when.max_prompt_tokens,
        min_predicted_ttft_ms=when.min_predicted_ttft_ms,
    )


def admission_entry(policy: AdmissionPolicy) -> AdmissionEntry:
    spec = policy.spec
    return AdmissionEntry(
        name=policy.metadata.name,
        pools=tuple(sorted(set(spec.pools))),
        bands=tuple(
            BandEntry(name, float(band.share), band.ttft_slo_ms, band.max_wait_ms)
            for name, band in spec.bands.written()
        ),
        max_queued_tokens=spec.max_queued_tokens,
    )


def rollout_entry(policy: RolloutPolicy) -> RolloutEntry:
    stages = tuple(_stage(stage) for stage in policy.spec.stages)
    return RolloutEntry(
        name=policy.metadata.name,
        stages=stages,
        min_requests=policy.spec.min_requests,
        sticky=policy.spec.sticky,
        false_alarm_ratio=policy.spec.false_alarm_ratio,
    )


def _stage(stage: Stage) -> StageEntry:
    return StageEntry(
        percent=stage.percent,
        duration_s=float(stage.duration_s) if stage.duration_s is not None else None,
        auto_halt=tuple(parse_halt(text).text for text in stage.auto_halt),
    )


def autoscaling_entry(policy: AutoscalingPolicy) -> AutoscalingEntry:
    spec = policy.spec
    return AutoscalingEntry(
        name=policy.metadata.name,
        pool=PoolName(spec.pool),
        min_replicas=spec.replicas.min,
        max_replicas=spec.replicas.max,
        warm=spec.warm,
        scale_up=tuple(parse_scale_rule(text).text for text in spec.scale_up),
        scale_down=tuple(parse_scale_rule(text).text for text in spec.scale_down),
        idle_after_s=float(spec.idle_after_s),
    )
