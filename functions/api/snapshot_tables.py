"""A snapshot's entries by name: one dictionary a section, read on every request."""

from dataclasses import dataclass, field

from functions.api.ids import KeyId, ModelId, PoolName, TenantId
from functions.api.snapshot_entries import (
    AdmissionEntry,
    AutoscalingEntry,
    KeyEntry,
    ModelEntry,
    PoolEntry,
    QuotaEntry,
    RolloutEntry,
    RoutingEntry,
    TenantEntry,
)


@dataclass(frozen=True, slots=True)
class Tables:
    """The entries of each section by name."""

    admission: dict[str, AdmissionEntry] = field(default_factory=dict)
    autoscaling: dict[str, AutoscalingEntry] = field(default_factory=dict)
    keys: dict[KeyId, KeyEntry] = field(default_factory=dict)
    models: dict[ModelId, ModelEntry] = field(default_factory=dict)
    pools: dict[PoolName, PoolEntry] = field(default_factory=dict)
    quotas: dict[str, QuotaEntry] = field(default_factory=dict)
    rollouts: dict[str, RolloutEntry] = field(default_factory=dict)
    routing: dict[str, RoutingEntry] = field(default_factory=dict)
    tenants: dict[TenantId, TenantEntry] = field(default_factory=dict)
