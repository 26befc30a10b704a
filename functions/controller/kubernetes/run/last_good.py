"""What was in force, written as objects again: a published snapshot's entries as the custom resources they came from.

A controller that starts while an object is wrong has never seen its good version. The snapshot that is in force has
it, so it is read back from there; `selection` can then let it stand in like any other. Model versions come back with
their digests pinned, so that standing in needs no store.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from functions.api.kinds import inference_service
from functions.api.kinds.base import API_VERSION
from functions.api.kinds.quantities import chance_text
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
    RolloutEntry,
    RoutingEntry,
    RuleEntry,
    Snapshot,
    TenantEntry,
)

Spec = dict[str, Any]


class PastObjects:
    """The objects behind one snapshot, by key (`plural/name`). Made once, asked seldom."""

    def __init__(self, snapshot: Snapshot) -> None:
        keys: dict[str, list[KeyEntry]] = {}
        for key in snapshot.keys:
            keys.setdefault(key.tenant, []).append(key)
        self._keys = keys
        self._entries: dict[str, Any] = {
            **{f"tenants/{entry.name}": entry for entry in snapshot.tenants},
            **{f"models/{object_name(entry.id)}": entry for entry in snapshot.models},
            **{f"quotapolicies/{entry.name}": entry for entry in snapshot.quotas},
            **{f"routingpolicies/{entry.name}": entry for entry in snapshot.routing},
            **{f"admissionpolicies/{entry.name}": entry for entry in snapshot.admission},
            **{f"rolloutpolicies/{entry.name}": entry for entry in snapshot.rollouts},
            **{f"autoscalingpolicies/{entry.name}": entry for entry in snapshot.autoscaling},
        }
        self._pools = {entry.name: entry for entry in snapshot.pools}

    def document(self, key: str) -> bytes | None:
        """The object as JSON; None where the snapshot has none of that key."""
        spec: Spec
        match self._entries.get(key):
            case TenantEntry() as entry:
                kind, spec = "Tenant", _tenant(entry, self._keys.get(entry.name, []))
            case ModelEntry() as entry:
                kind, spec = "Model", _model(entry)
            case QuotaEntry() as entry:
                kind, spec = "QuotaPolicy", _quota(entry)
            case RoutingEntry() as entry:
                kind, spec = "RoutingPolicy", _routing(entry)
            case AdmissionEntry() as entry:
                kind, spec = "AdmissionPolicy", _admission(entry)
            case RolloutEntry() as entry:
                kind, spec = "RolloutPolicy", _rollout(entry)
            case AutoscalingEntry() as entry:
                kind, spec = "AutoscalingPolicy", _autoscaling(entry)
            case _:
                return None
        return _object(kind, key.partition("/")[2], spec)

    def service(self, name: str, pool: str) -> bytes | None:
        """The InferenceService `name` as far as the snapshot knows its pool: enough to keep the pool in force."""
        entry = self._pools.get(pool)  # type: ignore[call-overload]
        return None if entry is None else _service(name, entry)


def _object(kind: str, name: str, spec: Spec) -> bytes:
    return orjson.dumps({"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": _written(spec)})


def _tenant(entry: TenantEntry, keys: list[KeyEntry]) -> Spec:
    isolation = {"cacheSalt": entry.cache_salt}
    return {"tier": entry.tier, "models": entry.models, "keys": [_key(key) for key in keys], "isolation": isolation}


def _key(entry: KeyEntry) -> Spec:
    expires = entry.expires_unix_s
    return _written(
        {
            "id": entry.key_id,
            "hmacSha256": entry.hmac_sha256,
            "scopes": entry.scopes,
            "maxClass": entry.max_class,
            "expires": None if expires is None else datetime.fromtimestamp(expires, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "limits": None if entry.limits is None else _fields(entry.limits),
        }
    )


def _quota(entry: QuotaEntry) -> Spec:
    weight = entry.cached_token_weight_ratio
    return {"weight": entry.weight, "limits": _fields(entry.limits), "cachedTokenWeight": weight}


def _model(entry: ModelEntry) -> Spec:
    """Where a rollout is under way, its target is what was declared."""
    versions = [{"name": each.name, "artifact": each.artifact_uri, "digest": each.digest} for each in entry.versions]
    return {
        "id": entry.id,
        "type": entry.type,
        "base": entry.pool if entry.type == "lora" else None,
        "versions": versions,
        "channels": {**entry.channels, **{split.channel: split.candidate for split in entry.splits}},
        "rollout": entry.rollout or None,
    }


def _routing(entry: RoutingEntry) -> Spec:
    def steps(entries: Any) -> list[Spec]:
        when = [{"when": step.when} if isinstance(step, FallbackEntry) else _judged(step) for step in entries]
        return [
            {**more, "from": step.source_pool, "to": step.target_pool, "tiers": step.tiers}
            for more, step in zip(when, entries, strict=True)
        ]

    return {
        "pools": entry.pools,
        "session": {"ttl": _duration(entry.session_ttl_s)},
        "prefix": {"source": entry.prefix_source},
        "boundedLoad": entry.bounded_load,
        "spreadAbove": {"utilization": entry.spread_above_utilization_ratio},
        "retry": _written(
            {
                "maxAttempts": entry.retry_max_attempts,
                "budget": entry.retry_budget_ratio,
                "hedgeAfter": None if entry.hedge_after_s is None else _duration(entry.hedge_after_s),
            }
        ),
        "fallback": steps(entry.fallback),
        "cascade": steps(entry.cascade),
        **({"classifier": _classifier(entry.classifier)} if entry.classifier is not None else {}),
    }


def _judged(step: CascadeEntry) -> Spec:
    return {"threshold": step.threshold_nats, "maxTokens": step.sample_tokens, "measure": step.measure}


def _classifier(entry: ClassifierEntry) -> Spec:
    return {
        "model": entry.model,
        "otherwise": entry.otherwise,
        "rules": [{"to": rule.target_pool, "when": _condition(rule)} for rule in entry.rules],
    }


def _condition(rule: RuleEntry) -> Spec:
    said: Spec = {
        "minPromptTokens": rule.min_prompt_tokens,
        "maxPromptTokens": rule.max_prompt_tokens,
        "tools": rule.tools,
        "code": rule.code,
        "keywords": rule.keywords or None,
        "script": rule.script,
    }
    return _written(said)


def _admission(entry: AdmissionEntry) -> Spec:
    bands = {
        band.name: _written(
            {
                "share": band.share_ratio,
                "ttftSlo": None if band.ttft_slo_ms is None else _duration(band.ttft_slo_ms / 1000),
                "maxWait": None if band.max_wait_ms is None else _duration(band.max_wait_ms / 1000),
            }
        )
        for band in entry.bands
    }
    return {"pools": entry.pools, "bands": bands, "maxQueuedTokens": entry.max_queued_tokens}


def _rollout(entry: RolloutEntry) -> Spec:
    stages = [
        _written(
            {
                "percent": stage.percent,
                "duration": None if stage.duration_s is None else _duration(stage.duration_s),
                "autoHalt": stage.auto_halt,
            }
        )
        for stage in entry.stages
    ]
    return {
        "stages": stages,
        "minRequests": entry.min_requests,
        "falseAlarmRate": chance_text(entry.false_alarm_ratio),
        "sticky": entry.sticky,
    }


def _autoscaling(entry: AutoscalingEntry) -> Spec:
    return {
        "pool": entry.pool,
        "replicas": {"min": entry.min_replicas, "max": entry.max_replicas},
        "warm": entry.warm,
        "scaleUp": entry.scale_up,
        "scaleDown": entry.scale_down,
    }


def _service(name: str, entry: PoolEntry) -> bytes:
    predictor = {
        "minReplicas": entry.min_replicas,
        "maxReplicas": entry.max_replicas,
        "model": {
            "modelFormat": {"name": "vLLM"},
            "args": [f"{inference_service.MAX_MODEL_LEN}={entry.context_window_tokens}"],
        },
    }
    metadata = {"name": name, "labels": {inference_service.POOL_LABEL: entry.name}}
    api_version = inference_service.API_VERSION
    spec = {"predictor": predictor}
    return orjson.dumps({"apiVersion": api_version, "kind": "InferenceService", "metadata": metadata, "spec": spec})


def object_name(model_id: str) -> str:
    """As `consistency` wants it."""
    return model_id.replace("/", ".").replace("_", "-")


def _duration(seconds: float) -> str:
    return f"{int(seconds)}s" if float(seconds).is_integer() else f"{round(seconds * 1000)}ms"


def _fields(limits: Any) -> Spec:
    fields = {name: getattr(limits, name) for name in limits.__struct_fields__}
    return {_camel(name): value for name, value in fields.items() if value is not None}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _written(spec: Mapping[str, Any]) -> Spec:
    """Without what was not written."""
    return {name: value for name, value in spec.items() if value is not None}
