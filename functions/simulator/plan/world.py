"""A configuration as the simulator plays it: each pool's engine, bounds and policies, and the tenants.

Pure: the snapshot that the configuration compiles to has the policies, its InferenceServices have the engines. A pool
obeys the policies that the gateway would find for it (`decisions.catalogue_policies.most_specific`).

Neighbours: `profiles` finds the engine; `settings` turns a world into the simulator's `Setting`; `unsimulated` says
what of a change is lost on the way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from functions.api.ids import PoolName, TenantId
from functions.api.snapshot import AdmissionEntry, AutoscalingEntry, QuotaEntry, RoutingEntry, Snapshot, Task
from functions.decisions.catalogue_policies import DEFAULT_ADMISSION, DEFAULT_ROUTING, most_specific
from functions.simulator.plan.declarations import PoolDeclaration
from functions.simulator.plan.profiles import Chosen, chosen

_SLOTS = 8  # adapters in an engine where nothing is said


@dataclass(frozen=True, slots=True)
class PlannedPool:
    name: PoolName
    engine: Chosen
    least: int  # replicas
    most: int
    context_window_tokens: int
    routing: RoutingEntry
    admission: AdmissionEntry
    autoscaling: AutoscalingEntry | None
    task: Task
    max_loras: int  # adapters in one batch
    max_cpu_loras: int  # adapters at hand

    @property
    def warm(self) -> int:
        return self.autoscaling.warm if self.autoscaling is not None else 0

    def promised_ms(self, band: str) -> float | None:
        """The time to first token that its AdmissionPolicy promises; None where it promises nothing."""
        found = next((each for each in self.admission.bands if each.name == band), None)
        return float(found.ttft_slo_ms) if found is not None and found.ttft_slo_ms is not None else None


@dataclass(frozen=True, slots=True)
class World:
    pools: tuple[PlannedPool, ...]  # by name
    tenants: Mapping[TenantId, QuotaEntry]  # each with its tier

    def pool(self, name: str) -> PlannedPool | None:
        return next((pool for pool in self.pools if pool.name == name), None)

    @property
    def generating(self) -> tuple[PlannedPool, ...]:
        """Those that write text: pooling models answer in one step, which the simulated engine does not know."""
        return tuple(pool for pool in self.pools if pool.task == "generate")


def world_of(snapshot: Snapshot, declarations: Sequence[PoolDeclaration]) -> World:
    """EngineImpossible where a pool's engine would not start."""
    by_name = {declaration.pool: declaration for declaration in declarations}
    scaled = {entry.pool: entry for entry in snapshot.autoscaling}
    pools = []
    for entry in snapshot.pools:
        declaration = by_name[entry.name]
        autoscaling = scaled.get(entry.name)
        least, most = _bounds(entry.min_replicas, autoscaling)
        pools.append(
            PlannedPool(
                name=entry.name,
                engine=chosen(declaration),
                least=least,
                most=most,
                context_window_tokens=entry.context_window_tokens,
                routing=most_specific(snapshot.routing, entry.name, DEFAULT_ROUTING),
                admission=most_specific(snapshot.admission, entry.name, DEFAULT_ADMISSION),
                autoscaling=autoscaling,
                task=entry.task,
                max_loras=declaration.tokens("--max-loras") or _SLOTS,
                max_cpu_loras=declaration.tokens("--max-cpu-loras") or declaration.tokens("--max-loras") or _SLOTS,
            )
        )
    tiers = {quota.name: quota for quota in snapshot.quotas}
    tenants = {tenant.name: tiers[tenant.tier] for tenant in snapshot.tenants if tenant.tier in tiers}
    return World(tuple(pools), tenants)


def _bounds(declared: int, autoscaling: AutoscalingEntry | None) -> tuple[int, int]:
    """Without an AutoscalingPolicy a pool keeps its InferenceService's minReplicas."""
    if autoscaling is None:
        return declared, declared
    return autoscaling.min_replicas, max(autoscaling.min_replicas, autoscaling.max_replicas)
