"""Settings of a simulated fleet: pools of replicas, gateways, zones, tenants' limits.

Setting(replicas=8, profile=PROFILES["h100-8b"])                              one pool, one gateway
Setting(pools=(PoolSetting(...), PoolSetting(...)), gateways=4)                two pools, four gateways
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from functions.api.ids import PoolName, TenantId
from functions.api.snapshot import AdmissionEntry, PoolRole, PoolUse, QuotaEntry, RoutingEntry
from functions.decisions.catalogue_policies import DEFAULT_ADMISSION, DEFAULT_ROUTING
from functions.simulator.fleet.engine_profile import PROFILES, EngineProfile
from functions.simulator.fleet.start_times import StartSource, StartTimes
from functions.simulator.router_port import MakeRouter

POOL = PoolName("base")  # name of the only pool if no pools are given
_ROOMY_TOKENS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterTimes:
    """A pool's adapters, and how many of them each tier of a replica holds."""

    names: tuple[str, ...]
    gpu_slots: int = 8
    cpu_slots: int = 16
    """The engine's --max-cpu-loras, for which `decisions.adapters.state` plans."""
    disk_slots: int = 1_000
    gpu_s: float = 0.01
    """Seconds from host memory into a slot: 200 MB over PCIe at 25 GB/s."""
    disk_s: float = 0.3
    """Seconds from disk, measured with the agent's round trip: 0.1 to 0.3 s (docs/explanation/routing.md)."""
    store_s: float = 1.2
    """Additional seconds if the adapter is not on the node's disk."""
    resident: bool = False
    """True if the initial replicas hold the adapters, distributed in turn, as in a fleet that has run for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSetting:
    name: PoolName
    profile: EngineProfile
    replicas: int
    warm: int = 0
    """Initial warm replicas: loaded and without traffic."""
    start: StartTimes = field(default_factory=StartTimes)
    source: StartSource = "cold"
    """Default source of a new replica's weights."""
    adapters: AdapterTimes | None = None
    zones: tuple[str, ...] = ()
    """Zones of the replicas, assigned in turn; empty: all of the setting's."""
    routing: RoutingEntry | None = None
    """Routing policy; None: the setting's."""
    admission: AdmissionEntry | None = None
    """Admission policy; None: the setting's."""
    model: str = ""
    """Name of the pool whose model this pool serves too; empty: its own."""
    may_sleep: bool = False
    """True if the pool may have no replica; a request then waits for the first one."""
    dedicated_to: tuple[TenantId, ...] = ()
    is_tenants_own: bool = False
    """True if the pool's model belongs to a tenant: only pools dedicated to the tenant serve it."""
    spot: bool = False
    quantization: str = ""
    context_window_tokens: int = _ROOMY_TOKENS
    """Context window; the default fits every workload."""
    role: PoolRole = ""
    """`prefill`: it computes prompts for the other pools of its model."""
    kv_bytes_per_token: int = 131_072
    """KV bytes that a prefill pool transfers per prompt token."""
    kv_transfer_bytes_per_s: float = 12.5e9

    host_kv_tokens: int = 0
    """Tokens that host memory holds after eviction from an engine's KV cache; 0: no host memory."""
    reload_ms_per_token: float = 0.0052
    """Reload time from host memory: 128 KiB at 25 GB/s."""

    def transfer_s(self, tokens: int) -> float:
        return tokens * self.kv_bytes_per_token / self.kv_transfer_bytes_per_s


@dataclass(frozen=True, slots=True)
class Zone:
    name: str
    region: str = ""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts of a gateway (`functions.gateway.limits` has the same)."""

    connect_s: float = 1.0
    first_byte_s: float = 60.0
    idle_s: float = 30.0
    answer_s: float = 600.0
    cold_s: float = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    replicas: int = 0
    profile: EngineProfile = PROFILES["h100-8b"]
    pools: tuple[PoolSetting, ...] = ()
    """Pools; empty: one pool of `replicas` with `profile`."""
    gateways: int = 1
    """Number of gateways, assigned to the zones in turn."""
    router: MakeRouter | None = None
    """Another router, which replaces shoal's own."""
    routing: RoutingEntry = DEFAULT_ROUTING
    admission: AdmissionEntry | None = DEFAULT_ADMISSION
    """Admission policy; None: requests are dispatched on arrival."""
    ladder: bool = True
    """True if gateways shed and shift (`decisions.overload.gateway_share`); needs an admission policy."""
    block_tokens: int = 512
    """Block size of the workload."""
    seed: int = 0
    zones: tuple[Zone, ...] = (Zone(""),)
    cross_region_s: float = 0.07
    """Extra round trip of a client that another region's gateway serves."""
    quotas: Mapping[TenantId, QuotaEntry] = field(default_factory=dict)
    quota: QuotaEntry | None = None
    """Quota of tenants that `quotas` does not name."""
    pool_use: Mapping[TenantId, PoolUse] = field(default_factory=dict)
    """Use of dedicated pools by tenant; others use shared pools."""
    timeouts: Timeouts = field(default_factory=Timeouts)
    heartbeat_s: float = 1.0
    heartbeat_delay_s: float = 0.05
    signals_s: float = 10.0
    """Seconds over which `Simulation.signals` looks back."""
    signals_delay_s: float = 1.0
    """Age of the newest signals: gateways report once a second."""
    extra_s: float = 600.0
    """Seconds after the last request for those in progress."""
    until_s: float = inf
    """Latest end of the run."""

    @property
    def all_pools(self) -> tuple[PoolSetting, ...]:
        return self.pools or (PoolSetting(name=POOL, profile=self.profile, replicas=self.replicas),)
