"""Simulator settings of a planned fleet and its traffic. Pure.

Pools start like a fleet that has run for a while: with the replicas that the window's first minutes need at 75 %
utilization, within the pool's bounds. So the figures show the change and not a cold start. A prefill pool starts with
the replicas that read the prompts long enough for it, although the answering pools could read them too.

Worked example (test_initial_replicas_follow_the_first_minutes): 0.5 s of work per request, 5 requests a second:
2.5 replicas at full work, 4 at 75 %.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil

from functions.api.ids import EngineName, PoolName, TenantId
from functions.api.snapshot import QuotaEntry, QuotaLimitsPart
from functions.simulator.fleet.catalogue import SettingCatalogue
from functions.simulator.fleet.setting import AdapterTimes, PoolSetting, Setting
from functions.simulator.plan.pace import request_work_s
from functions.simulator.plan.planned_fleet import PlannedFleet, PlannedPool
from functions.simulator.plan.traffic import PlanTraffic
from functions.simulator.workload.request import WorkloadRequest

BEGIN_UTILIZATION = 0.75
_FIRST_S = 120.0
_FIRST_REQUESTS = 2_000
_AT_ONCE = 1e15  # bytes per second if none are declared


def requested_pool(request: WorkloadRequest) -> PoolName:
    return PoolName(request.pool or "")


@dataclass(frozen=True, slots=True)
class Beginning:
    """Load of a window's first minutes by pool, and adapters of the whole window."""

    requests: Mapping[PoolName, tuple[WorkloadRequest, ...]]  # by the pool where rules place them
    seconds: float  # time in which these arrive
    last_s: float  # time of the window's last request
    adapters: Mapping[PoolName, tuple[EngineName, ...]]  # by the pool with the model's name

    @classmethod
    def of(
        cls, requests: Iterable[WorkloadRequest], place: Callable[[WorkloadRequest], PoolName] = requested_pool
    ) -> "Beginning":
        first: dict[PoolName, list[WorkloadRequest]] = defaultdict(list)
        adapters: dict[PoolName, set[EngineName]] = defaultdict(set)
        first_s, last_s, count = 1.0, 1.0, 0
        for request in requests:
            if request.adapter is not None:
                adapters[requested_pool(request)].add(EngineName(request.adapter))
            if request.at_s <= _FIRST_S and count < _FIRST_REQUESTS:
                first[place(request)].append(request)
                first_s, count = max(1.0, request.at_s), count + 1
            last_s = max(1.0, request.at_s)
        kept = {pool: tuple(rows) for pool, rows in first.items()}
        return cls(kept, first_s, last_s, {pool: tuple(sorted(names)) for pool, names in adapters.items()})


def setting_of(fleet: PlannedFleet, traffic: PlanTraffic, beginning: Beginning, seed: int) -> Setting:
    bare = _bare(fleet, is_own=traffic.kind == "recorded")
    catalogue = SettingCatalogue(bare)
    pools = tuple(
        replace(
            pool,
            replicas=(
                initial_prefill_replicas(planned, beginning, catalogue)
                if planned.entry.role
                else initial_replicas(planned, beginning, traffic.block_tokens)
            ),
            warm=planned.warm,
            source=traffic.start,
            adapters=_adapters(planned, beginning),
        )
        for pool, planned in zip(bare.pools, fleet.generating, strict=True)
    )
    return replace(bare, pools=pools, block_tokens=traffic.block_tokens, seed=seed)


def catalogue_of(fleet: PlannedFleet, *, is_own: bool) -> SettingCatalogue:
    """Return the catalogue that places the requests of this side."""
    return SettingCatalogue(_bare(fleet, is_own=is_own))


def _bare(fleet: PlannedFleet, *, is_own: bool) -> Setting:
    """Return the setting with the fleet's generating pools and quotas, but without replicas."""
    return Setting(
        pools=tuple(_pool(pool) for pool in fleet.generating),
        quotas=_quotas(fleet, is_own=is_own),
        pool_use=fleet.uses,
    )


def _pool(pool: PlannedPool) -> PoolSetting:
    entry = pool.entry
    return PoolSetting(
        name=pool.name,
        profile=pool.engine.profile,
        replicas=0,
        routing=pool.routing,
        admission=pool.admission,
        model=entry.model,
        may_sleep=pool.may_sleep,
        dedicated_to=entry.dedicated_to,
        is_tenants_own=pool.is_tenants_own,
        spot=entry.spot,
        quantization=entry.quantization,
        context_window_tokens=entry.context_window_tokens,
        role=entry.role,
        kv_bytes_per_token=entry.kv_bytes_per_token,
        kv_transfer_bytes_per_s=entry.kv_transfer_bytes_per_s or _AT_ONCE,
    )


def initial_replicas(pool: PlannedPool, beginning: Beginning, block_tokens: int) -> int:
    rows = beginning.requests.get(pool.name, ())
    if pool.least == pool.most or not rows:
        return pool.least
    work_per_s = len(rows) * request_work_s(pool.engine.profile, rows, block_tokens) / beginning.seconds
    return min(pool.most, max(pool.least, ceil(work_per_s / BEGIN_UTILIZATION)))


def initial_prefill_replicas(pool: PlannedPool, beginning: Beginning, catalogue: SettingCatalogue) -> int:
    """Return the initial replicas of a prefill pool: for all prompts long enough for it, assuming no cache hits."""
    if pool.least == pool.most:
        return pool.least
    tokens = 0
    for name, rows in beginning.requests.items():
        reader = catalogue.prefill_of.get(name)
        if reader is not None and reader.name == pool.name:
            least = catalogue.routing_for(name).prefill_min_prompt_tokens
            tokens += sum(request.prompt_tokens for request in rows if request.prompt_tokens >= least)
    work_per_s = tokens * pool.engine.profile.prefill_ms_per_token / 1000 / beginning.seconds
    return min(pool.most, max(pool.least, ceil(work_per_s / BEGIN_UTILIZATION)))


def _adapters(pool: PlannedPool, beginning: Beginning) -> AdapterTimes | None:
    names = beginning.adapters.get(pool.model, ())
    if not names:
        return None
    return AdapterTimes(names=names, gpu_slots=pool.max_loras, cpu_slots=max(pool.max_loras, pool.max_cpu_loras))


def _quotas(fleet: PlannedFleet, *, is_own: bool) -> dict[TenantId, QuotaEntry]:
    """Return the tenants' quotas; traffic that is not the fleet's own only gets tiers and weights, no limits."""
    if is_own:
        return dict(fleet.tenants)
    return {
        tenant: QuotaEntry(name=quota.name, weight=quota.weight, limits=QuotaLimitsPart())
        for tenant, quota in fleet.tenants.items()
    }
