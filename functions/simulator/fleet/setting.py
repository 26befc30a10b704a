"""What a simulated fleet is: pools of replicas, the gateways before them, zones, tenants' limits.

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

POOL = PoolName("base")  # of a setting that names none
_ROOMY_TOKENS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterTimes:
    """A pool's adapters, and how many of them each tier of a replica holds."""

    names: tuple[str, ...]
    gpu_slots: int = 8
    cpu_slots: int = 16
    """The engine's --max-cpu-loras: what `decisions.adapters.state` plans for."""
    disk_slots: int = 1_000
    gpu_s: float = 0.01
    """From host memory into a slot: 200 MB over PCIe at 25 GB/s."""
    disk_s: float = 0.3
    """Measured with the agent's round trip: 0.1 to 0.3 s (docs/explanation/routing.md)."""
    store_s: float = 1.2
    """On top, for what is not on the node's disk."""
    resident: bool = False
    """Replicas of the beginning hold them, dealt out in turn, as in a fleet that has run for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSetting:
    name: PoolName
    profile: EngineProfile
    replicas: int
    warm: int = 0
    """Loaded and without traffic, from the beginning."""
    start: StartTimes = field(default_factory=StartTimes)
    source: StartSource = "cold"
    """Where a replica's weights come from unless whoever starts it says otherwise."""
    adapters: AdapterTimes | None = None
    zones: tuple[str, ...] = ()
    """Replicas are dealt out to these in turn; empty: to all of the setting's."""
    routing: RoutingEntry | None = None
    """None: the setting's."""
    admission: AdmissionEntry | None = None
    """None: the setting's."""
    model: str = ""
    """The pool whose model it serves beside that one; empty: its own."""
    may_sleep: bool = False
    """It may have no replica, and then a request waits for its first one."""
    dedicated_to: tuple[TenantId, ...] = ()
    is_tenants_own: bool = False
    """The model that bears its name is a tenant's own: it has no pools but those that are dedicated to the tenant."""
    spot: bool = False
    quantization: str = ""
    context_window_tokens: int = _ROOMY_TOKENS
    """Unless it is said, whatever a workload asks for fits."""
    role: PoolRole = ""
    """prefill: it computes prompts for the other pools of its model."""
    kv_bytes_per_token: int = 131_072
    """Of a prefill pool: what it hands over, and how fast."""
    kv_transfer_bytes_per_s: float = 12.5e9

    host_kv_tokens: int = 0
    """That host memory holds of what leaves an engine's KV cache; 0: nothing is kept."""
    reload_ms_per_token: float = 0.0052
    """From there: 128 KiB at 25 GB/s."""

    def transfer_s(self, tokens: int) -> float:
        return tokens * self.kv_bytes_per_token / self.kv_transfer_bytes_per_s


@dataclass(frozen=True, slots=True)
class Zone:
    name: str
    region: str = ""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a gateway waits (`functions.gateway.limits` has the same)."""

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
    """Empty: one pool of `replicas` with `profile`."""
    gateways: int = 1
    """Dealt out to the zones in turn."""
    router: MakeRouter | None = None
    """Another one in the place of shoal's own."""
    routing: RoutingEntry = DEFAULT_ROUTING
    admission: AdmissionEntry | None = DEFAULT_ADMISSION
    """None: whoever comes is dispatched."""
    ladder: bool = True
    """Gateways shed and shift (`decisions.overload.gateway_share`) where there is a waiting room."""
    block_tokens: int = 512
    """Of the workload."""
    seed: int = 0
    zones: tuple[Zone, ...] = (Zone(""),)
    cross_region_s: float = 0.07
    """A round trip, which whoever is served by another region's gateway pays."""
    quotas: Mapping[TenantId, QuotaEntry] = field(default_factory=dict)
    quota: QuotaEntry | None = None
    """Of tenants that `quotas` does not name."""
    pool_use: Mapping[TenantId, PoolUse] = field(default_factory=dict)
    """Of pools that are dedicated; whom it does not name uses shared ones."""
    timeouts: Timeouts = field(default_factory=Timeouts)
    heartbeat_s: float = 1.0
    heartbeat_delay_s: float = 0.05
    signals_s: float = 10.0
    """What `Simulation.signals` looks back on."""
    signals_delay_s: float = 1.0
    """How old the newest of that is: gateways report once a second."""
    extra_s: float = 600.0
    """After the last request, for what is still under way."""
    until_s: float = inf
    """The run ends then at the latest."""

    @property
    def all_pools(self) -> tuple[PoolSetting, ...]:
        return self.pools or (PoolSetting(name=POOL, profile=self.profile, replicas=self.replicas),)
