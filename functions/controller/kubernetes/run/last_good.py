"""Last accepted version of each object: its entries in the snapshot in force, by the custom resource they came from.

A controller that starts while an object is invalid has never seen its good version. The snapshot in force has the
entries of that version. They stand in for the object and go into the next snapshot unchanged, so that no field can be
lost (tests/controller/test_every_field.py). Only references are rebuilt as an object (`_outline`), because they are
compared with other objects.

Neighbours: `selection` uses the versions, `functions.controller.snapshot.compile` copies the entries.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from msgspec.structs import replace
from pydantic import BaseModel

from functions.api.declared import Accepted
from functions.api.ids import is_incoming
from functions.api.kinds.admission_policy import AdmissionPolicy, AdmissionPolicySpec, Band, Bands
from functions.api.kinds.autoscaling_policy import AutoscalingPolicy, AutoscalingPolicySpec, ReplicaBounds
from functions.api.kinds.base import Metadata
from functions.api.kinds.catalogue import AnyObject, OurObject
from functions.api.kinds.inference_service import (
    DEDICATED_TO_ANNOTATION,
    MAX_MODEL_LEN,
    MODEL_LABEL,
    POOL_LABEL,
    InferenceService,
    InferenceServiceSpec,
    Predictor,
    ServedModel,
    ServiceMetadata,
)
from functions.api.kinds.model import Model, ModelSpec, Version
from functions.api.kinds.prefill_role import ROLE_LABEL
from functions.api.kinds.quota_policy import QuotaPolicy
from functions.api.kinds.rollout_policy import RolloutPolicy
from functions.api.kinds.routing_policy import (
    Cascade,
    Classifier,
    Fallback,
    Occasion,
    Placement,
    RoutingPolicy,
    RoutingPolicySpec,
    Rule,
)
from functions.api.kinds.tenant import ApiKey, Isolation, Tenant, TenantSpec
from functions.api.snapshot import (
    AdmissionEntry,
    AutoscalingEntry,
    CascadeEntry,
    FallbackEntry,
    KeyEntry,
    ModelEntry,
    PoolEntry,
    QuotaEntry,
    RolloutEntry,
    RoutingEntry,
    Snapshot,
    TenantEntry,
)
from functions.api.snapshot_entries import AnyEntry
from functions.controller.kubernetes.run.selection import ClusterDocument

Made = TypeVar("Made", bound=BaseModel)


class LastGood:
    """Last good versions in one snapshot. Built once, read rarely."""

    def __init__(self, snapshot: Snapshot) -> None:
        keys: dict[str, list[KeyEntry]] = {}
        for key in snapshot.keys:
            keys.setdefault(key.tenant, []).append(key)
        self._entries: dict[str, tuple[AnyEntry, ...]] = {
            **{f"tenants/{entry.name}": (entry, *keys.get(entry.name, ())) for entry in snapshot.tenants},
            **{f"models/{object_name(entry.id)}": (_as_declared(entry),) for entry in snapshot.models},
            **_by_name("quotapolicies", snapshot.quotas),
            **_by_name("routingpolicies", snapshot.routing),
            **_by_name("admissionpolicies", snapshot.admission),
            **_by_name("rolloutpolicies", snapshot.rollouts),
            **_by_name("autoscalingpolicies", snapshot.autoscaling),
        }
        self._pools: Mapping[str, PoolEntry] = {entry.name: entry for entry in snapshot.pools}

    def find_object(self, key: str) -> Accepted[AnyObject] | None:
        """Return the accepted version of the object `plural/name`, or None if the snapshot has none of that key."""
        entries = self._entries.get(key)
        return _accepted(key, entries) if entries is not None else None

    def find_service(self, key: str, pool: str, document: bytes) -> Accepted[AnyObject] | None:
        """Return the accepted version of that pool's InferenceService, or None if the snapshot has no such pool; its
        document is the cluster's current one."""
        entry = self._pools.get(pool)
        return _accepted(key, (entry,), document.decode()) if entry is not None else None


def object_name(model_id: str) -> str:
    """Return the object name that `consistency` requires for the model id: `/` becomes `.` and `_` becomes `-`."""
    return model_id.replace("/", ".").replace("_", "-")


def _by_name(plural: str, entries: Iterable[Any]) -> dict[str, tuple[AnyEntry, ...]]:
    return {f"{plural}/{entry.name}": (entry,) for entry in entries}


def _as_declared(entry: ModelEntry) -> ModelEntry:
    """Return the entry without what the controller adds: splits and loading channels are left out, and a channel in
    rollout has its declared version, which is the rollout's target."""
    targets = {split.channel: split.candidate for split in entry.splits}
    channels = {name: version for name, version in {**entry.channels, **targets}.items() if not is_incoming(name)}
    return replace(entry, channels=channels, splits=())


def _accepted(key: str, entries: tuple[AnyEntry, ...], text: str = "{}") -> Accepted[AnyObject]:
    return Accepted(_outline(key.partition("/")[2], entries), ClusterDocument(key, 0, 0, 1, text), entries)


def _outline(name: str, entries: tuple[AnyEntry, ...]) -> AnyObject:
    """Return an object with the entry's name and what it refers to, nothing else. It was valid when accepted and is not
    validated again: a later version of shoal may be stricter, and what is in force must stay so."""
    kind: type[OurObject]
    spec: object = None
    match entries[0]:
        case TenantEntry() as entry:
            kind, spec = Tenant, _tenant(entry, entries[1:])
        case ModelEntry() as entry:
            kind, spec = Model, _model(entry)
        case QuotaEntry():
            kind = QuotaPolicy
        case RoutingEntry() as entry:
            kind, spec = RoutingPolicy, _routing(entry)
        case AdmissionEntry() as entry:
            kind, spec = AdmissionPolicy, _admission(entry)
        case RolloutEntry():
            kind = RolloutPolicy
        case AutoscalingEntry() as entry:
            kind, spec = AutoscalingPolicy, _autoscaling(entry)
        case PoolEntry() as entry:
            return _service(name, entry)
        case other:
            raise TypeError(f"{type(other).__name__} is no object's first entry")
    return _unchecked(kind, kind=kind.__name__, metadata=_unchecked(Metadata, name=name), spec=spec)


def _unchecked(model: type[Made], /, **fields: Any) -> Made:
    return model.model_construct(None, **fields)


def _tenant(entry: TenantEntry, keys: Iterable[AnyEntry]) -> TenantSpec:
    ids = (_unchecked(ApiKey, id=key.key_id) for key in keys if isinstance(key, KeyEntry))
    isolation = _unchecked(Isolation, pools=entry.pools)
    return _unchecked(TenantSpec, tier=entry.tier, models=entry.models, keys=tuple(ids), isolation=isolation)


def _model(entry: ModelEntry) -> ModelSpec:
    versions = (
        _unchecked(Version, name=version.name, artifact=version.artifact_uri, digest=version.digest)
        for version in entry.versions
    )
    spec: dict[str, Any] = {"rollout": entry.rollout} if entry.rollout else {}
    base = entry.pool if entry.type == "lora" else None
    return _unchecked(
        ModelSpec, id=entry.id, type=entry.type, base=base, versions=tuple(versions), channels=entry.channels, **spec
    )


def _routing(entry: RoutingEntry) -> RoutingPolicySpec:
    classifier = entry.classifier
    return _unchecked(
        RoutingPolicySpec,
        pools=entry.pools,
        fallback=tuple(_unchecked(Fallback, **_hop(step)) for step in entry.fallback),
        cascade=tuple(_unchecked(Cascade, **_hop(step)) for step in entry.cascade),
        classifier=None
        if classifier is None
        else _unchecked(
            Classifier,
            model=classifier.model,
            otherwise=classifier.otherwise,
            rules=tuple(_unchecked(Rule, to=rule.target_pool) for rule in classifier.rules),
        ),
        placement=tuple(
            _unchecked(
                Placement, to=rule.target_pool, when=_unchecked(Occasion, tiers=rule.tiers, tenants=rule.tenants)
            )
            for rule in entry.placement
        ),
    )


def _hop(step: FallbackEntry | CascadeEntry) -> dict[str, Any]:
    return {"from_": step.source_pool, "to": step.target_pool, "tiers": step.tiers}


def _admission(entry: AdmissionEntry) -> AdmissionPolicySpec:
    """Return the spec with its pools and its interactive band, because scaling rules may refer to that band's SLO."""
    promised = {band.name: band.ttft_slo_ms for band in entry.bands}
    slo_ms = promised.get("interactive")
    interactive = _unchecked(Band, ttft_slo=None if slo_ms is None else f"{slo_ms}ms")
    return _unchecked(
        AdmissionPolicySpec,
        pools=entry.pools,
        bands=_unchecked(Bands, interactive=interactive if "interactive" in promised else None),
    )


def _autoscaling(entry: AutoscalingEntry) -> AutoscalingPolicySpec:
    return _unchecked(
        AutoscalingPolicySpec,
        pool=entry.pool,
        replicas=_unchecked(ReplicaBounds, min=entry.min_replicas, max=entry.max_replicas),
        scale_up=entry.scale_up,
        scale_down=entry.scale_down,
    )


def _service(name: str, entry: PoolEntry) -> InferenceService:
    model = _unchecked(ServedModel, args=(f"{MAX_MODEL_LEN}={entry.context_window_tokens}",))
    predictor = _unchecked(Predictor, max_replicas=entry.max_replicas, model=model)
    labels = {POOL_LABEL: entry.name, MODEL_LABEL: entry.model or entry.name}
    if entry.role:
        labels[ROLE_LABEL] = entry.role
    annotations = {DEDICATED_TO_ANNOTATION: ",".join(entry.dedicated_to)} if entry.dedicated_to else {}
    metadata = _unchecked(ServiceMetadata, name=name, labels=labels, annotations=annotations)
    spec = _unchecked(InferenceServiceSpec, predictor=predictor)
    return _unchecked(InferenceService, kind="InferenceService", metadata=metadata, spec=spec)
