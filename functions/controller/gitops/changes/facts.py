"""What there is to tell of an entry: labels as the YAML has them, and values that can be compared and printed.

A label may stand for a set (what came and what went is told), a text, a number (its change in percent is told), or a
secret, of which only that it changed is told: no hash of a key ever gets into words.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from functions.api.snapshot import (
    AdmissionEntry,
    AutoscalingEntry,
    CascadeEntry,
    ClassifierEntry,
    FallbackEntry,
    KeyEntry,
    ModelEntry,
    PoolEntry,
    QuotaEntry,
    QuotaLimits,
    RolloutEntry,
    RoutingEntry,
    StageEntry,
    TenantEntry,
)

NOT_LIMITED = "not limited"
_DIGEST_CHARS = len("sha256:") + 12


@dataclass(frozen=True, slots=True)
class Secret:
    """Compared, never shown."""

    value: str


Value = str | int | float | frozenset[str] | Secret
Facts = Mapping[str, Value]


def of_tenant(tenant: TenantEntry, keys: Iterable[KeyEntry]) -> Facts:
    facts: dict[str, Value] = {
        "tier": tenant.tier,
        "models": frozenset(tenant.models),
        "cacheSalt": tenant.cache_salt,
        "key": frozenset(key.key_id for key in keys),
    }
    for key in keys:
        facts |= {f"key {key.key_id}: {label}": value for label, value in _of_key(key).items()}
    return facts


def _of_key(key: KeyEntry) -> Facts:
    return {
        "secret": Secret(key.hmac_sha256),
        "scopes": frozenset(key.scopes),
        "maxClass": key.max_class,
        "expires": _day(key.expires_unix_s),
        **_of_limits(key.limits or QuotaLimits()),
    }


def of_quota(quota: QuotaEntry) -> Facts:
    facts: dict[str, Value] = {"weight": quota.weight, **_of_limits(quota.limits)}
    if quota.limits.token_burst_seconds is None:
        del facts["tokenBurstSeconds"]
    if quota.cached_token_weight_ratio:
        facts["cachedTokenWeight"] = quota.cached_token_weight_ratio
    return facts


def _of_limits(limits: QuotaLimits) -> Facts:
    fields = msgspec.structs.asdict(limits)
    named = {_camel(name): NOT_LIMITED if value is None else value for name, value in fields.items()}
    return named | {"tokenBurstSeconds": fields["token_burst_seconds"] or "default"}


def of_model(model: ModelEntry) -> Facts:
    facts: dict[str, Value] = {
        "type": model.type,
        "pool": model.pool,
        "rollout": model.rollout or "built-in",
        "declared in": model.declared_in or "nowhere",
        "version": frozenset(version.name for version in model.versions),
        **{f"version {version.name}: artifact": version.digest[:_DIGEST_CHARS] for version in model.versions},
    }
    for channel, version_name in sorted(model.channels.items()):
        facts[f"channel {channel}" if channel in facts else channel] = version_name
    return facts


def of_pool(pool: PoolEntry) -> Facts:
    return {
        "replicas": _bounds(pool.min_replicas, pool.max_replicas),
        "context window": pool.context_window_tokens,
    }


def of_rollout(rollout: RolloutEntry) -> Facts:
    stages = {f"stage {stage.percent} %": _stage(stage) for stage in rollout.stages}
    chance = f"{rollout.false_alarm_ratio * 100:g}%"
    return {"minRequests": rollout.min_requests, "falseAlarmRate": chance, "sticky": rollout.sticky, **stages}


def of_routing(routing: RoutingEntry) -> Facts:
    return {
        "pools": frozenset(routing.pools),
        "session.ttl": _seconds(routing.session_ttl_s),
        "prefix.source": routing.prefix_source,
        "boundedLoad": routing.bounded_load,
        "spreadAbove.utilization": routing.spread_above_utilization_ratio,
        "retry.maxAttempts": routing.retry_max_attempts,
        "retry.budget": routing.retry_budget_ratio,
        "fallback": frozenset(f"{_move(step)} when {step.when}" for step in routing.fallback),
        "retry.hedgeAfter": "never" if routing.hedge_after_s is None else _seconds(routing.hedge_after_s),
        "cascade": frozenset(_cascade(step) for step in routing.cascade),
        "classifier": frozenset(_classifier(routing.classifier)),
    }


def _move(step: FallbackEntry | CascadeEntry) -> str:
    return f"{step.source_pool} to {step.target_pool} {_tiers(step.tiers)}"


def _cascade(step: CascadeEntry) -> str:
    return f"{_move(step)} above {step.threshold_nats:g} nats ({step.measure} of {step.sample_tokens} tokens)"


def _classifier(classifier: ClassifierEntry | None) -> Iterator[str]:
    if classifier is not None:
        yield f"{classifier.model} otherwise to {classifier.otherwise}"
        for place, rule in enumerate(classifier.rules, 1):
            conditions = msgspec.to_builtins(rule)
            target = conditions.pop("target_pool")
            said = ", ".join(f"{name}={value}" for name, value in conditions.items() if value not in (None, (), []))
            yield f"{classifier.model} rule {place}: {said or 'always'} to {target}"


def of_admission(admission: AdmissionEntry) -> Facts:
    facts: dict[str, Value] = {"pools": frozenset(admission.pools), "maxQueuedTokens": admission.max_queued_tokens}
    for band in admission.bands:
        facts[f"{band.name} share"] = band.share_ratio
        facts[f"{band.name} ttftSlo"] = "none" if band.ttft_slo_ms is None else f"{band.ttft_slo_ms} ms"
        facts[f"{band.name} maxWait"] = "default" if band.max_wait_ms is None else f"{band.max_wait_ms} ms"
    return facts


def of_autoscaling(autoscaling: AutoscalingEntry) -> Facts:
    return {
        "pool": autoscaling.pool,
        "replicas": _bounds(autoscaling.min_replicas, autoscaling.max_replicas),
        "warm": autoscaling.warm,
        "scaleUp": frozenset(autoscaling.scale_up),
        "scaleDown": frozenset(autoscaling.scale_down),
    }


def _bounds(least: int, most: int) -> Value:
    return least if least == most else f"{least} to {most}"


def _stage(stage: StageEntry) -> str:
    halts = f", halted by {' or '.join(stage.auto_halt)}" if stage.auto_halt else ""
    return ("to stay" if stage.duration_s is None else f"for {_seconds(stage.duration_s)}") + halts


def _seconds(seconds: float) -> str:
    return f"{seconds:g} s"


def _tiers(tiers: tuple[str, ...]) -> str:
    return f"for {', '.join(tiers)}" if tiers else "for all"


def _day(unix_s: float | None) -> str:
    """An expiry is the end of a day; the day is what was written."""
    return "never" if unix_s is None else datetime.fromtimestamp(unix_s - 1, tz=UTC).date().isoformat()


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
