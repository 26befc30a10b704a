"""A setting as a gateway's snapshot catalogue, in which every tenant and adapter is allowed.

Tenants and adapters are created on demand from the names in a workload. The setting defines one base model per pool,
policies by pool and limits by tenant.
"""

from functools import lru_cache

from functions.api.ids import Digest, EngineName, ModelId, PoolName, TenantId
from functions.api.snapshot import (
    SCHEMA_VERSION,
    AdmissionEntry,
    PoolEntry,
    QuotaEntry,
    RoutingEntry,
    Snapshot,
    TenantEntry,
)
from functions.decisions.admission.ticket import BANDS
from functions.decisions.catalogue import Catalogue, ResolvedModel
from functions.decisions.catalogue_policies import DEFAULT_ADMISSION
from functions.decisions.routing.placement import Placed
from functions.simulator.fleet.adapter_tiers import engine_name_of
from functions.simulator.fleet.setting import PoolSetting, Setting
from functions.simulator.workload.request import WorkloadRequest

BASE = EngineName("base")
_MAX_MODELS = 100_000
_NO_DIGEST = Digest("sha256:" + "0" * 64)


class _Tenants(dict[TenantId, TenantEntry]):
    """Tenants, created on demand. The quota that the setting assigns to a tenant names its tier."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self._setting = setting

    def __missing__(self, tenant: TenantId) -> TenantEntry:
        quota = _quota_of(self._setting, tenant)
        tier, pools = quota.name if quota is not None else "", self._setting.pool_use.get(tenant, "shared")
        return TenantEntry(name=tenant, tier=tier, models=("*",), pools=pools)

    def get(self, tenant: TenantId, default: object = None) -> TenantEntry:
        """Return the tenant as `[]` does; every name is a tenant."""
        return self[tenant]


class SettingCatalogue(Catalogue):
    def __init__(self, setting: Setting) -> None:
        pools = tuple(map(_entry, sorted(setting.all_pools, key=lambda pool: pool.name)))
        snapshot = Snapshot(SCHEMA_VERSION, 1, "simulated", 0.0, tenants=(), keys=(), models=(), pools=pools)
        super().__init__(snapshot, "simulated")
        self._setting = setting
        self._own = frozenset(pool.name for pool in setting.all_pools if pool.is_tenants_own)
        self._is_plain = not (self._own or any(pool.model or pool.dedicated_to for pool in setting.all_pools))
        self.may_sleep = frozenset(pool.name for pool in setting.all_pools if pool.may_sleep)
        self.tenants = _Tenants(setting)
        self.first = setting.all_pools[0].name
        self._routing_of = {pool.name: pool.routing or setting.routing for pool in setting.all_pools}
        self._admission_of = {pool.name: _admission(pool, setting) for pool in setting.all_pools}
        self._bases = {name: _model(ModelId(name), BASE, pool, is_adapter=False) for name, pool in self.pools.items()}
        self._adapter = lru_cache(_MAX_MODELS)(_adapter)

    def quota_of(self, tenant: TenantId) -> QuotaEntry | None:
        return _quota_of(self._setting, tenant)

    def routing_for(self, pool: PoolName) -> RoutingEntry:
        return self._routing_of[pool]

    def admission_for(self, pool: PoolName) -> AdmissionEntry:
        return self._admission_of[pool]

    def resolve(self, tenant: TenantId, requested: str) -> ResolvedModel | None:
        """Return the base model of the pool with this name; None if there is none or the tenant may use none of its
        pools."""
        return self.model(PoolName(requested), None, tenant) if requested in self._bases else None

    def resolve_base(self, tenant: TenantId, pool: PoolName) -> ResolvedModel | None:
        return self.resolve(tenant, pool)

    def model(self, pool: PoolName, adapter: str | None, tenant: TenantId) -> ResolvedModel | None:
        """Return the pool's base model, or `adapter` on it, in a pool that the tenant may use; None if there is none.
        Raise KeyError for an unknown pool."""
        model = self._bases[pool] if adapter is None else self._adapter(adapter, self.pools[pool])
        return model if self._is_plain else self.in_first_pool(model, tenant)

    def placed_by_rules(self, model: ResolvedModel, request: WorkloadRequest) -> ResolvedModel:
        """Return the model in the pool to which a gateway's placement rules send the request on arrival."""
        if not model.other_pools:
            return model
        tier = self.tenants[request.tenant].tier
        return self.placed(model, Placed(request.tenant, tier, BANDS[request.band], request.prompt_tokens))

    def is_tenants_own(self, model_pool: PoolName) -> bool:
        return model_pool in self._own

    def _weights(self, model: ResolvedModel, pool: PoolName) -> ResolvedModel:
        return model


def _entry(pool: PoolSetting) -> PoolEntry:
    return PoolEntry(
        pool.name,
        pool.context_window_tokens,
        model=pool.model,
        dedicated_to=pool.dedicated_to,
        spot=pool.spot,
        quantization=pool.quantization,
        role=pool.role,
        kv_bytes_per_token=pool.kv_bytes_per_token if pool.role else 0,
        kv_transfer_bytes_per_s=pool.kv_transfer_bytes_per_s if pool.role else 0.0,
    )


def _quota_of(setting: Setting, tenant: TenantId) -> QuotaEntry | None:
    return setting.quotas.get(tenant, setting.quota) if setting.quotas else setting.quota


def _admission(pool: PoolSetting, setting: Setting) -> AdmissionEntry:
    return (pool.admission or setting.admission or DEFAULT_ADMISSION) if setting.admission else DEFAULT_ADMISSION


def _adapter(adapter: str, pool: PoolEntry) -> ResolvedModel:
    return _model(ModelId(adapter), engine_name_of(adapter), pool, is_adapter=True)


def _model(model_id: ModelId, engine_name: EngineName, pool: PoolEntry, *, is_adapter: bool) -> ResolvedModel:
    return ResolvedModel(
        requested=model_id,
        id=model_id,
        version="v1",
        digest=_NO_DIGEST,
        engine_name=engine_name,
        pool=pool.name,
        is_adapter=is_adapter,
        context_window_tokens=pool.context_window_tokens,
    )
