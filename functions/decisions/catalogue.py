"""What the snapshot offers to whom: look-ups built once per snapshot, read on every request.

A model that the caller may not use does not exist for it: `resolve` answers None for both, so that nobody can learn
what other tenants have by asking.
"""

from dataclasses import dataclass

from functions.api.ids import DEFAULT_CHANNEL, Digest, EngineName, KeyId, ModelId, PoolName, TenantId, parse_model_ref
from functions.api.snapshot import KeyEntry, ModelEntry, PoolEntry, Snapshot, TenantEntry, VersionEntry


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """One version of one model, chosen for one request."""

    requested: str  # as the caller wrote it; answers repeat it
    id: ModelId
    version: str
    digest: Digest
    engine_name: EngineName
    pool: PoolName
    is_adapter: bool
    context_window_tokens: int

    @property
    def served_as(self) -> str:
        """The `x-shoal-model` header: `id@version`."""
        return f"{self.id}@{self.version}"


_MAX_REMEMBERED = 10_000


class Catalogue:
    """Indexes over one snapshot. Immutable once built; a request uses one from start to finish."""

    def __init__(self, snapshot: Snapshot, snapshot_hash: str) -> None:
        self.snapshot = snapshot
        self.snapshot_hash = snapshot_hash
        self.epoch = snapshot.epoch
        self.keys: dict[KeyId, KeyEntry] = {key.key_id: key for key in snapshot.keys}
        self.tenants: dict[TenantId, TenantEntry] = {tenant.name: tenant for tenant in snapshot.tenants}
        self.models: dict[ModelId, ModelEntry] = {model.id: model for model in snapshot.models}
        self.pools: dict[PoolName, PoolEntry] = {pool.name: pool for pool in snapshot.pools}
        self._resolved_before: dict[tuple[TenantId, str], ResolvedModel] = {}

    def resolve(self, tenant: TenantId, requested: str) -> ResolvedModel | None:
        """The version that `requested` means for this tenant, or None.

        Remembered, since tenants ask for the same few names all day; only what exists is, so that nobody can fill the
        memory with names of their own invention.
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
            version = _by_name(model, model.channels.get(ref.channel or DEFAULT_CHANNEL))
        return self._resolved(requested, model, version) if version is not None else None

    def may_call(self, tenant: TenantId, model_id: ModelId) -> bool:
        """Whether one of the tenant's patterns allows the model: an exact id, or a prefix that ends in `*`."""
        entry = self.tenants.get(tenant)
        if entry is None:
            return False
        return any(
            model_id.startswith(pattern[:-1]) if pattern.endswith("*") else model_id == pattern
            for pattern in entry.models
        )

    def callable_models(self, tenant: TenantId) -> list[ModelEntry]:
        """Every model that the tenant may call, by id."""
        return [model for _, model in sorted(self.models.items()) if self.may_call(tenant, model.id)]

    def _resolved(self, requested: str, model: ModelEntry, version: VersionEntry) -> ResolvedModel:
        return ResolvedModel(
            requested=requested,
            id=model.id,
            version=version.name,
            digest=version.digest,
            engine_name=version.engine_name,
            pool=model.pool,
            is_adapter=model.type == "lora",
            context_window_tokens=self.pools[model.pool].context_window_tokens,
        )


def _by_name(model: ModelEntry, name: str | None) -> VersionEntry | None:
    return next((version for version in model.versions if version.name == name), None)


def _by_digest(model: ModelEntry, digest: Digest) -> VersionEntry | None:
    return next((version for version in model.versions if version.digest == digest), None)
