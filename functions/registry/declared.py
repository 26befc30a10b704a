"""Lookups in the published snapshot for writes: tenants, bases, policies, and the models that git declares.

Writes need a snapshot, because it says which tenants and bases exist. If both git and the API name a model, git wins.
"""

from dataclasses import dataclass
from pathlib import PurePosixPath

from functions.api.ids import KeyId, ModelId, PoolName, TenantId
from functions.api.snapshot import ModelEntry, RolloutEntry
from functions.api.snapshot_index import Tables, base_of
from functions.artifacts.locations import weights_at
from functions.decisions.catalogue_policies import DEFAULT_ROLLOUT
from functions.registry.errors import ApiError
from functions.registry.sql.errors import CatalogueRefused
from functions.registry.store import SnapshotStore

_VOLUME = "pvc://"


@dataclass(frozen=True, slots=True)
class DeclaredCatalogue:
    store: SnapshotStore

    def git_model(self, model: ModelId) -> ModelEntry | None:
        """Return the model's published entry if git declares it, or None."""
        entry = self._tables.models.get(model)
        return entry if entry is not None and is_git_model(entry) else None

    def git_adapters(self) -> list[ModelEntry]:
        """Return the published entries of the LoRA adapters that git declares."""
        return [entry for entry in self._tables.models.values() if is_git_model(entry) and entry.type == "lora"]

    def refuse_git_model(self, model: ModelId) -> None:
        entry = self.git_model(model)
        if entry is not None:
            where = entry.declared_in or "the git repository"
            message = f"{model} is declared in {where}: change it there and push; the API cannot change it"
            raise CatalogueRefused("conflict", "declared_in_git", message, where)

    def require_tenant(self, tenant: str) -> TenantId:
        if TenantId(tenant) not in self._published().tenants:
            message = f"there is no tenant {tenant[:80]!r}; tenants are declared in git (kind: Tenant)"
            raise CatalogueRefused("missing", "tenant_not_found", message)
        return TenantId(tenant)

    def require_base(self, base: str, tenant: str | None = None) -> PoolName:
        """Return the pool of the base model. Raises CatalogueRefused if it is unknown or, with `tenant`, dedicated to
        other tenants."""
        pools = self._published().pools
        known = [
            name
            for name, pool in pools.items()
            if tenant is None or not pool.dedicated_to or TenantId(tenant) in pool.dedicated_to
        ]
        if base not in known:
            there = ", ".join(sorted(known)[:20]) or "none"
            raise CatalogueRefused(
                "invalid", "base_not_found", f"there is no base model {base[:80]!r}; there are: {there}"
            )
        return PoolName(base)

    def folder_of(self, base: str) -> PurePosixPath:
        """Return the base's folder below the models directory. It is `<folder>` of a `pvc://<volume>/<folder>`
        address, `<name>@<version>` for weights that are distributed, otherwise the base's name."""
        entry = base_of(self._tables.models, base)
        uri = entry.versions[0].artifact_uri if entry is not None and entry.versions else ""
        if (weights := weights_at(uri)) is not None:
            return PurePosixPath(str(weights))
        _, _, folder = uri.removeprefix(_VOLUME).partition("/") if uri.startswith(_VOLUME) else ("", "", "")
        return PurePosixPath(folder or base)

    def base_folders(self) -> dict[str, PurePosixPath]:
        return {str(pool): self.folder_of(pool) for pool in self._tables.pools}

    def require_policy(self, name: str) -> None:
        """Raise CatalogueRefused if git declares no RolloutPolicy of this name. `default` always exists."""
        if name != DEFAULT_ROLLOUT.name and name not in self._published().rollouts:
            known = ", ".join(sorted({DEFAULT_ROLLOUT.name, *self._tables.rollouts})[:20])
            raise CatalogueRefused(
                "invalid", "policy_not_found", f"there is no RolloutPolicy {name[:80]!r}; there are: {known}"
            )

    def policy(self, name: str) -> RolloutEntry:
        """Return the policy of this name. If it is not declared, return `default`, as declared or built in."""
        declared = self._tables.rollouts
        return declared.get(name) or declared.get(DEFAULT_ROLLOUT.name) or DEFAULT_ROLLOUT

    def has_key(self, key_id: str) -> bool:
        return KeyId(key_id) in self._tables.keys

    @property
    def _tables(self) -> Tables:
        return self.store.feed.content.tables

    def _published(self) -> Tables:
        if not self.store.epoch:
            message = "no snapshot is published yet, so tenants and bases are unknown; try again"
            raise ApiError(503, "no_snapshot", message, headers={"retry-after": "5"})
        return self._tables


def is_git_model(entry: ModelEntry) -> bool:
    """Return True if git declares the model: such an entry names its file, one from the API names none."""
    return bool(entry.declared_in)
