"""Catalogue of a snapshot: indexes of tenants, keys, models and pools, built once and read on every request.

`resolve` returns None for a missing model and for one that the caller may not use, so other tenants' models are hidden.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import attrgetter

from functions.api.ids import (
    DEFAULT_CHANNEL,
    Digest,
    EngineName,
    KeyId,
    ModelId,
    PoolName,
    TenantId,
    parse_model_ref,
)
from functions.api.snapshot import (
    AdmissionEntry,
    ClassifierEntry,
    KeyEntry,
    ModelEntry,
    PoolEntry,
    QuotaEntry,
    RoutingEntry,
    Snapshot,
    SplitEntry,
    TenantEntry,
    VersionEntry,
)
from functions.api.snapshot_index import Indexed, Tables, base_of, indexed
from functions.decisions.catalogue_policies import DEFAULT_ADMISSION, DEFAULT_ROUTING, policy_for_pool
from functions.decisions.resolved_model import ResolvedModel, Split
from functions.decisions.routing.disaggregation import prefill_pools
from functions.decisions.routing.placement import (
    Placed,
    Predict,
    Usable,
    fitting,
    model_of,
    place,
    takeover_pools,
    usable,
)

__all__ = ["Catalogue", "ResolvedModel", "Split"]

_MAX_REMEMBERED = 10_000
_ID = attrgetter("id")


class Catalogue:
    """Indexes over one snapshot. Immutable once built; a request uses one from start to finish."""

    def __init__(self, snapshot: Snapshot, snapshot_hash: str, tables: Tables | None = None) -> None:
        """Index `snapshot`. Pass its `tables` if they exist already, as `Catalogue.from_indexed` does."""
        if tables is None:
            content = indexed(snapshot)
            snapshot, tables = content.snapshot, content.tables
        self.snapshot = snapshot
        self.snapshot_hash = snapshot_hash
        self.epoch = snapshot.epoch
        self.keys: Mapping[KeyId, KeyEntry] = tables.keys
        self.tenants: Mapping[TenantId, TenantEntry] = tables.tenants
        self.models: Mapping[ModelId, ModelEntry] = tables.models
        self.pools: Mapping[PoolName, PoolEntry] = tables.pools
        self.quotas: Mapping[str, QuotaEntry] = tables.quotas
        self.classifiers: Mapping[str, ClassifierEntry] = {
            entry.classifier.model: entry.classifier for entry in snapshot.routing if entry.classifier is not None
        }
        self.pools_of: dict[PoolName, list[PoolEntry]] = {}  # by the pool that bears the model's name
        for entry in snapshot.pools:
            self.pools_of.setdefault(model_of(entry), []).append(entry)
        self.prefill_of = prefill_pools(self.pools_of)  # prefill pool by the pool that it computes prompts for
        self.may_sleep = frozenset(entry.pool for entry in snapshot.autoscaling if not entry.min_replicas)
        self._usable: dict[tuple[TenantId, PoolName], Usable] = {}
        self._resolved_before: dict[tuple[TenantId, str], ResolvedModel] = {}
        self._routing: dict[PoolName, RoutingEntry] = {}
        self._admission: dict[PoolName, AdmissionEntry] = {}

    @classmethod
    def from_indexed(cls, content: Indexed) -> "Catalogue":
        """Build the catalogue from indexed content. Only the pools are walked."""
        return cls(content.snapshot, content.content_hash, content.tables)

    def quota_of(self, tenant: TenantId) -> QuotaEntry | None:
        """Return the quota of the tenant's tier, or None if the tenant or its tier is not in the snapshot."""
        entry = self.tenants.get(tenant)
        return self.quotas.get(entry.tier) if entry is not None else None

    def routing_for(self, pool: PoolName) -> RoutingEntry:
        """Return the routing policy that fits the pool best, or the built-in default if none names it or the pool is
        unknown."""
        if pool not in self.pools:
            return DEFAULT_ROUTING  # not cached: invented names must not fill the memory
        if pool not in self._routing:
            self._routing[pool] = policy_for_pool(self.snapshot.routing, self.pools[pool], DEFAULT_ROUTING)
        return self._routing[pool]

    def admission_for(self, pool: PoolName) -> AdmissionEntry:
        """Return the admission policy that fits the pool best, or the built-in default if none names it or the pool is
        unknown."""
        if pool not in self.pools:
            return DEFAULT_ADMISSION
        if pool not in self._admission:
            self._admission[pool] = policy_for_pool(self.snapshot.admission, self.pools[pool], DEFAULT_ADMISSION)
        return self._admission[pool]

    def usable(self, tenant: TenantId, model_pool: PoolName) -> Usable:
        """Return the tenant's pools of the model that bears this pool's name; none if tenant or model is unknown."""
        known = self._usable.get((tenant, model_pool))
        if known is not None:
            return known
        entry, pools = self.tenants.get(tenant), self.pools_of.get(model_pool)
        if entry is None or pools is None:
            return Usable()
        if len(self._usable) >= _MAX_REMEMBERED:
            self._usable.clear()
        found = self._usable[tenant, model_pool] = self._usable_by(entry, model_pool)
        return found

    def _usable_by(self, tenant: TenantEntry, model_pool: PoolName) -> Usable:
        return usable(self.pools_of[model_pool], tenant, is_own=self.is_tenants_own(model_pool))

    def is_tenants_own(self, model_pool: PoolName) -> bool:
        """Return True if the model that bears this pool's name is one tenant's own base model, not a shared one."""
        base = self.base_of(model_pool)
        return base is not None and str(base.id) != str(model_pool)

    def base_of(self, pool: PoolName) -> ModelEntry | None:
        """Return the base model whose name the pool bears: a shared model, or a tenant's own; None if there is none."""
        return base_of(self.models, pool)

    def placed(self, model: ResolvedModel, request: Placed, predict: Predict | None = None) -> ResolvedModel:
        """Return the model in the pool that the placement rules choose, or unchanged if the tenant has no pool of it.
        Pools that fit the prompt are preferred."""
        named = model_of(self.pools[model.pool])
        pools = fitting(self.usable(request.tenant, named), self.pools, request.prompt_tokens)
        rules = self.routing_for(named).placement
        return self.in_pool(model, place(rules, request, pools, predict)) if pools.in_order else model

    def takeover_pools(self, pool: PoolName) -> list[PoolName]:
        """Return the other pools of the model that receive the requests this pool cannot accept, for any tenant; none
        for an unknown pool."""
        entry = self.pools.get(pool)
        return takeover_pools(entry, self.pools_of[model_of(entry)], self.tenants) if entry is not None else []

    def in_pool(self, model: ResolvedModel, pool: PoolName) -> ResolvedModel:
        """Return the model, and the candidate of its split, in another of the tenant's pools, or unchanged if `pool` is
        none of them. A split between base versions ends in a pool that has another name."""
        if pool not in model.other_pools:
            return model
        split = model.split
        if split is not None and self.pools[pool].model and split.model == self._base_id(model_of(self.pools[pool])):
            split = None  # the split is between base versions, which exist only in the pool of the base's name
        if split is not None:
            split = replace(split, candidate=self.in_pool(split.candidate, pool))
        weights = model if model.is_adapter else self._weights(model, pool)
        entry = self.pools[pool]
        return replace(
            weights,
            pool=pool,
            other_pools=tuple(other for other in (model.pool, *model.other_pools) if other != pool),
            context_window_tokens=entry.context_window_tokens,
            accelerators_per_replica=entry.accelerators_per_replica,
            price_per_accelerator_hour=entry.price_per_accelerator_hour,
            weights=None if entry.model else model.weights,  # versions exist only in the pool of the model's name
            task=entry.task,
            split=split,
        )

    def _base_id(self, pool: PoolName) -> ModelId | None:
        base = self.base_of(pool)
        return base.id if base is not None else None

    def for_prefill(self, model: ResolvedModel, weights: Digest | None) -> ResolvedModel:
        """Return the model in the prefill pool of its pool, restricted to replicas that have loaded `weights`.
        `prefill_of` must have an entry for the pool."""
        entry = self.prefill_of[model.pool]
        there = model if model.is_adapter else self._weights(model, entry.name)
        return replace(
            there,
            pool=entry.name,
            other_pools=(),
            context_window_tokens=entry.context_window_tokens,
            accelerators_per_replica=entry.accelerators_per_replica,
            price_per_accelerator_hour=entry.price_per_accelerator_hour,
            weights=weights,
            split=None,
        )

    def _weights(self, model: ResolvedModel, pool: PoolName) -> ResolvedModel:
        """Return a base model under the name that the pool's engines use, with the digest of the declared weights."""
        declared = self.base_of(pool) or self.models.get(model.id)
        version = _by_name(declared, declared.channels.get(DEFAULT_CHANNEL)) if declared is not None else None
        digest = version.digest if version is not None else model.digest
        return replace(model, engine_name=EngineName(pool), digest=digest)

    def resolve_base(self, tenant: TenantId, pool: PoolName) -> ResolvedModel | None:
        """Return what `resolve` returns for the base model whose name the pool bears; None without such a model.
        Policies name models by their pools."""
        base = self.base_of(pool)
        return self.resolve(tenant, base.id) if base is not None else None

    def resolve(self, tenant: TenantId, requested: str) -> ResolvedModel | None:
        """Return the version that `requested` (a model id, with or without channel or version) means for this tenant,
        or None.

        Results are cached, since tenants request the same few names all day. A None is not cached, so that invented
        names cannot fill the memory.
        """
        known = self._resolved_before.get((tenant, requested))
        if known is not None:
            return known
        resolved = self._resolve(tenant, requested)
        if resolved is not None:
            if len(self._resolved_before) >= _MAX_REMEMBERED:
                self._resolved_before.clear()
            self._resolved_before[tenant, requested] = resolved
        return resolved

    def _resolve(self, tenant: TenantId, requested: str) -> ResolvedModel | None:
        ref = parse_model_ref(requested)
        if ref is None:
            return None
        model = self.models.get(ref.id)
        if model is None or not self.may_call(tenant, model.id):
            return None
        if ref.digest is not None:
            version = _by_digest(model, ref.digest)
        elif ref.version is not None:
            version = _by_name(model, ref.version)
        else:
            return self._by_channel(tenant, requested, model, ref.channel or DEFAULT_CHANNEL)
        return self._resolved(tenant, requested, model, version) if version is not None else None

    def _by_channel(self, tenant: TenantId, requested: str, model: ModelEntry, channel: str) -> ResolvedModel | None:
        """Return the version that the channel points at, with the split of a rollout in progress; None if there is no
        such channel or the tenant has no pool."""
        control = _by_name(model, model.channels.get(channel))
        if control is None:
            return None
        resolved = self._resolved(tenant, requested, model, control)
        entry = next((split for split in model.splits if split.channel == channel), None)
        candidate = _by_name(model, entry.candidate) if entry is not None else None
        other = self._resolved(tenant, requested, model, candidate) if candidate is not None else None
        if resolved is None:
            return None
        if entry is None or other is None:
            return self._with_base(resolved) if resolved.is_adapter else resolved
        return replace(resolved, split=_split(entry, other, model.id))

    def _with_base(self, adapter: ResolvedModel) -> ResolvedModel:
        """Return an adapter that has no rollout of its own with the split of its base's rollout, if there is one: the
        same share of its requests goes to replicas of the base's new version."""
        base = self.base_of(adapter.pool)
        splits = base.splits if base is not None else ()
        entry = next((split for split in splits if split.channel == DEFAULT_CHANNEL), None)
        candidate = _by_name(base, entry.candidate) if base is not None and entry is not None else None
        if base is None or entry is None or candidate is None:
            return adapter
        return replace(adapter, split=_split(entry, replace(adapter, weights=candidate.digest), base.id))

    def _weights_of(self, model: ModelEntry, version: VersionEntry) -> Digest | None:
        """Return the base weights that the replica must have loaded, or None if the base has fewer than two versions.
        An adapter uses the version of its base's default channel."""
        base = model if model.type == "base" else self.base_of(model.pool)
        if base is None or len(base.versions) < 2:
            return None  # all replicas have loaded the same version
        meant = version if model is base else _by_name(base, base.channels.get(DEFAULT_CHANNEL))
        return meant.digest if meant is not None else None

    def may_call(self, tenant: TenantId, model_id: ModelId) -> bool:
        """Return True if one of the tenant's patterns allows the model: an exact id, or a prefix followed by `*`."""
        entry = self.tenants.get(tenant)
        if entry is None:
            return False
        return any(
            model_id.startswith(pattern[:-1]) if pattern.endswith("*") else model_id == pattern
            for pattern in entry.models
        )

    def callable_models(self, tenant: TenantId) -> list[ModelEntry]:
        """Return every model that the tenant may call and has a pool for, sorted by id, except models without
        versions."""
        entry = self.tenants.get(tenant)
        if entry is None:
            return []
        pools = {model_pool for model_pool in self.pools_of if self._usable_by(entry, model_pool).in_order}
        found = {
            model.id: model
            for pattern in entry.models
            for model in self._matching(pattern)
            if model.versions and model.pool in pools
        }
        return [found[model_id] for model_id in sorted(found)]

    def _matching(self, pattern: str) -> Iterator[ModelEntry]:
        """Yield the models that one pattern allows. The snapshot sorts models by id, so equal prefixes are adjacent."""
        if not pattern.endswith("*"):
            if pattern in self.models:
                yield self.models[ModelId(pattern)]
            return
        models, beginning = self.snapshot.models, pattern[:-1]
        for index in range(bisect_left(models, beginning, key=_ID), len(models)):
            if not models[index].id.startswith(beginning):
                return
            yield models[index]

    def _resolved(
        self, tenant: TenantId, requested: str, model: ModelEntry, version: VersionEntry
    ) -> ResolvedModel | None:
        """Return the version in the first of the tenant's pools, or None if it has no pool of this model."""
        pool = self.pools[model.pool]
        resolved = ResolvedModel(
            requested=requested,
            id=model.id,
            version=version.name,
            digest=version.digest,
            engine_name=version.engine_name,
            pool=model.pool,
            is_adapter=model.type == "lora",
            context_window_tokens=pool.context_window_tokens,
            accelerators_per_replica=pool.accelerators_per_replica,
            price_per_accelerator_hour=pool.price_per_accelerator_hour,
            names={each.digest: each.name for each in model.versions} if model.type == "base" else {},
            weights=self._weights_of(model, version),
            task=pool.task,
        )
        return self.in_first_pool(resolved, tenant)

    def in_first_pool(self, model: ResolvedModel, tenant: TenantId) -> ResolvedModel | None:
        """Move a model from the pool of its name to the first of the tenant's pools; return None if it has none."""
        pools = self.usable(tenant, model.pool).in_order
        if not pools:
            return None
        first = model if pools[0] == model.pool else self.in_pool(replace(model, other_pools=pools), pools[0])
        return replace(first, other_pools=pools[1:]) if first.other_pools != pools[1:] else first


def _split(entry: SplitEntry, candidate: ResolvedModel, model: ModelId) -> Split:
    return Split(entry.rollout, entry.stage, entry.percent, entry.sticky, candidate, model)


def _by_name(model: ModelEntry, name: str | None) -> VersionEntry | None:
    return next((version for version in model.versions if version.name == name), None)


def _by_digest(model: ModelEntry, digest: Digest) -> VersionEntry | None:
    return next((version for version in model.versions if version.digest == digest), None)
