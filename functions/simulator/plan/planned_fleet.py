"""A configuration as the simulator runs it: each pool's engine, bounds and policies, and the tenants.

Policies come from the compiled snapshot, engines from the InferenceServices. The gateway's own catalogue
(`decisions.catalogue`) decides which policies apply to a pool and which pools a tenant may use. Pure. Related
modules: `profiles` finds the engine, `settings` makes the simulator's `Setting`, `unsimulated` lists changes that get
lost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from functions.api.ids import PoolName, TenantId
from functions.api.snapshot import (
    AdmissionEntry,
    AutoscalingEntry,
    PoolEntry,
    PoolUse,
    QuotaEntry,
    RoutingEntry,
    Snapshot,
    Task,
)
from functions.decisions.catalogue import Catalogue
from functions.decisions.routing.placement import model_of
from functions.simulator.plan.declarations import PoolDeclaration
from functions.simulator.plan.profiles import Chosen, choose_engine

_SLOTS = 8  # default number of adapters in an engine


@dataclass(frozen=True, slots=True)
class PlannedPool:
    entry: PoolEntry
    engine: Chosen
    least: int  # replicas
    most: int
    routing: RoutingEntry
    admission: AdmissionEntry
    autoscaling: AutoscalingEntry | None
    max_loras: int  # adapters per batch
    max_cpu_loras: int  # adapters in host memory
    is_tenants_own: bool = False  # True if its model belongs to a tenant
    speculates: bool = False  # True if its arguments enable speculative decoding
    starts: tuple[TenantId, ...] | None = None  # tenants whose requests start here without a rule; None: all

    @property
    def name(self) -> PoolName:
        return self.entry.name

    @property
    def model(self) -> PoolName:
        """Name of the pool whose model this one serves; usually its own."""
        return model_of(self.entry)

    @property
    def task(self) -> Task:
        return self.entry.task

    @property
    def context_window_tokens(self) -> int:
        return self.entry.context_window_tokens

    @property
    def warm(self) -> int:
        return self.autoscaling.warm if self.autoscaling is not None else 0

    @property
    def is_asked(self) -> bool:
        """True if requests may start and be answered here."""
        return self.most > 0 and self.starts != ()

    @property
    def may_sleep(self) -> bool:
        return self.autoscaling is not None and not self.autoscaling.min_replicas

    def promised_ms(self, band: str) -> float | None:
        """Return the band's time-to-first-token SLO in ms from the pool's AdmissionPolicy, or None if it has none."""
        found = next((each for each in self.admission.bands if each.name == band), None)
        return float(found.ttft_slo_ms) if found is not None and found.ttft_slo_ms is not None else None


@dataclass(frozen=True, slots=True)
class PlannedFleet:
    pools: tuple[PlannedPool, ...]  # by name
    tenants: Mapping[TenantId, QuotaEntry]  # each tenant's quota
    uses: Mapping[TenantId, PoolUse] = field(default_factory=dict)  # use of dedicated pools

    def pool(self, name: str) -> PlannedPool | None:
        return next((pool for pool in self.pools if pool.name == name), None)

    @property
    def generating(self) -> tuple[PlannedPool, ...]:
        """Pools that generate text. The simulated engine does not cover pooling models, which answer in one step."""
        return tuple(pool for pool in self.pools if pool.task == "generate")

    @property
    def answering(self) -> tuple[PlannedPool, ...]:
        """Generating pools that answer requests, without prefill pools."""
        return tuple(pool for pool in self.generating if not pool.entry.role)

    def pools_of(self, model: str) -> tuple[PlannedPool, ...]:
        return tuple(pool for pool in self.generating if pool.model == model)


def fleet_of(snapshot: Snapshot, declarations: Sequence[PoolDeclaration]) -> PlannedFleet:
    """Build the planned fleet; raise EngineImpossible if a pool's engine would not start."""
    by_name = {declaration.pool: declaration for declaration in declarations}
    catalogue = Catalogue(snapshot, "planned")
    scaled = {entry.pool: entry for entry in snapshot.autoscaling}
    pools = []
    for entry in snapshot.pools:
        declaration = by_name[entry.name]
        autoscaling = scaled.get(entry.name)
        least, most = _bounds(entry.min_replicas, autoscaling)
        pools.append(
            PlannedPool(
                entry=entry,
                engine=choose_engine(declaration),
                least=least,
                most=most,
                routing=catalogue.routing_for(entry.name),
                admission=catalogue.admission_for(entry.name),
                autoscaling=autoscaling,
                max_loras=declaration.tokens("--max-loras") or _SLOTS,
                max_cpu_loras=declaration.tokens("--max-cpu-loras") or declaration.tokens("--max-loras") or _SLOTS,
                is_tenants_own=catalogue.is_tenants_own(model_of(entry)),
                speculates=declaration.argument("--speculative-config") is not None,
                starts=_starts(catalogue, entry),
            )
        )
    tiers = {quota.name: quota for quota in snapshot.quotas}
    tenants = {tenant.name: tiers[tenant.tier] for tenant in snapshot.tenants if tenant.tier in tiers}
    uses = {tenant.name: tenant.pools for tenant in snapshot.tenants if tenant.pools != "shared"}
    return PlannedFleet(tuple(pools), tenants, uses)


def _starts(catalogue: Catalogue, entry: PoolEntry) -> tuple[TenantId, ...] | None:
    model = model_of(entry)
    if not any(pool.dedicated_to for pool in catalogue.pools_of[model]):
        return None
    usable = {tenant: catalogue.usable(tenant, model) for tenant in catalogue.tenants}
    return tuple(sorted(tenant for tenant, pools in usable.items() if entry.name in (pools.own or pools.shared)))


def _bounds(declared: int, autoscaling: AutoscalingEntry | None) -> tuple[int, int]:
    """Return the bounds on replicas; without an AutoscalingPolicy both are the InferenceService's minReplicas."""
    if autoscaling is None:
        return declared, declared
    return autoscaling.min_replicas, max(autoscaling.min_replicas, autoscaling.max_replicas)
