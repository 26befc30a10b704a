"""Status of the agent: written by its event loop, read by the heartbeat loop's thread and the routes.

Every field holds a frozen value that is replaced whole, so a reader on another thread sees old or new, never half.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from functions.api.ids import Digest, EngineName, PoolName, ReplicaId
from functions.decisions.health.engine import EngineHealth
from functions.decisions.health.engine_rates import EngineRates
from functions.decisions.health.pace import PaceMeter
from functions.decisions.health.reload_rate import DeclaredReload, ReloadRate
from functions.decisions.health.token_rate import TokenRate
from functions.decisions.routing.choice import ReplicaPhase
from functions.fleet.heartbeat import ColdStage

STUCK_AFTER_S = 5.0  # the loop judges the engine every second; after this silence its verdict is worthless


@dataclass(frozen=True, slots=True)
class Identity:
    replica_id: ReplicaId
    pool: PoolName
    engine_host: str
    engine_port: int
    incarnation_unix_ms: int
    zone: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The engine's gauges as last read."""

    running: int = 0
    waiting: int = 0
    kv_usage_ratio: float = 0.0
    kv_blocks_total: int = 0
    kv_block_tokens: int = 16
    decode_tokens_per_s: float = 0.0
    draft_tokens_total: int = 0  # proposed since the engine began; 0 without speculative decoding
    accepted_draft_tokens_total: int = 0  # the accepted part of these
    host_kv_bytes: int = 0  # host memory for KV blocks that leave the accelerator
    host_hit_tokens_total: int = 0  # prompt tokens found there, since the engine began

    @property
    def outstanding(self) -> int:
        return self.running + self.waiting


@dataclass(frozen=True, slots=True)
class Adapters:
    """Adapters as the reconciler last found and planned them."""

    known: bool = False  # True once a plan was made from a snapshot and this engine's own list
    advertised: tuple[EngineName, ...] = ()
    loading: tuple[EngineName, ...] = ()  # loads ahead of the first plan for this engine that are still under way
    reason: str = ""
    room: int = 0  # number of adapters that could be loaded now
    cold: int = 0  # number of adapters that wait for a first request
    failures: Mapping[EngineName, str] = field(default_factory=dict)  # reason of each failed load
    without_room: tuple[EngineName, ...] = ()  # a rollout's versions beyond what this engine holds, by rank


@dataclass(frozen=True, slots=True)
class Disk:
    """Artifacts on the node's disk at the last pass."""

    artifacts: int = 0
    size_bytes: int = 0
    bloom: str = ""  # for the heartbeat


@dataclass(slots=True)
class AgentStatus:
    identity: Identity
    health: EngineHealth
    clock: Callable[[], float]  # monotonic seconds
    judged_s: float  # when the monitor last ended a tick
    load: EngineLoad = field(default_factory=EngineLoad)
    load_read_s: float = 0.0  # when `load` was last read from the engine
    busy_adapters: frozenset[EngineName] = frozenset()  # adapters with requests running or waiting
    rates: EngineRates = field(default_factory=EngineRates)
    pace: PaceMeter = field(default_factory=PaceMeter)
    token_rate: TokenRate = field(default_factory=TokenRate)
    hands_over: bool = False  # True for a prefill pool, by the newest snapshot
    worked_s: float = 0.0  # when a poll last found a request in the engine or a newly computed prompt; monotonic
    accelerators: int = 1  # number per replica, by the newest snapshot
    reload: ReloadRate = field(default_factory=ReloadRate)
    declared_reload: DeclaredReload = field(default_factory=DeclaredReload)  # the pool's, by the newest snapshot
    adapters: Adapters = field(default_factory=Adapters)
    disk: Disk = field(default_factory=Disk)
    peer_port: int = 0  # port for adapter loads and chunks; 0 until it listens
    snapshot_epoch: int = 0  # epoch for which the wanted adapters are current
    snapshot_problem: Callable[[], str] = lambda: ""  # why the last snapshot was refused; "" if none was
    prefix_events: Callable[[], bool | None] = lambda: None  # True if KV events arrive; None: unknown yet
    engine_version: str = ""
    weights: Digest | None = None  # the base's weights as the engine has loaded them; None: unknown
    cold_start: Mapping[ColdStage, float] = field(default_factory=dict)  # seconds by stage; empty: not measured
    draining: bool = False
    standby: bool = False  # loaded and well, without traffic until it is promoted
    warming: bool = False  # the engine is well and is sent one request of each kind that it compiles
    asleep: bool = False  # the engine's weights are in host memory; it computes nothing until it is woken
    falling_asleep: bool = False  # sleep was requested and not answered yet; it computes nothing either
    condemned: str = ""  # why the engine should be killed; "" if it should not
    accelerator_fault: str = ""  # why the replica is out until it is cleared (`accelerator_fault`); "": no fault

    @property
    def computes(self) -> bool:
        """True unless the engine is asleep or falling asleep, when it answers no probe even if healthy."""
        return not self.asleep and not self.falling_asleep

    def phase(self) -> tuple[ReplicaPhase, str]:
        """Return phase and reason for the fleet. A stuck agent counts as hung; a failed accelerator drains; a lost
        engine outranks draining."""
        silent_s = self.clock() - self.judged_s
        if silent_s > STUCK_AFTER_S:
            return "hung", f"the agent's own loop has been stuck for {silent_s:.0f} s"
        if self.health.phase in ("hung", "dead"):
            return self.health.phase, self.health.reason
        if self.accelerator_fault or self.draining:
            return "draining", self.accelerator_fault or f"draining, {self.load.outstanding} requests left"
        if self.health.phase == "ready" and (not_yet := self._not_yet()):
            return "starting", not_yet
        if self.standby and self.health.phase == "ready":
            return "warm", "loaded and asleep, without traffic" if self.asleep else "loaded, without traffic"
        return self.health.phase, self.health.reason or self.adapters.reason or self.snapshot_problem()

    def _not_yet(self) -> str:
        """Return why an engine that is healthy does not serve yet (warm-up, or waking), or "" if it may."""
        if self.warming:
            return "its engine is being warmed up"
        return "its engine is asleep and is being woken" if self.asleep and not self.standby else ""

    def confirm_epoch(self, epoch: int) -> None:
        """Record that the registry confirmed this epoch: nothing newer concerns this pool."""
        self.snapshot_epoch = epoch

    def not_ready(self) -> str:
        """Return why the replica should get no work yet, or "".

        Only the first fill of an engine blocks readiness: later adapters (a rollout's candidate, a new version) load
        while the replica serves, however slowly. A failed load does not block it either: one tenant's broken artifact
        must not take the pool down. The heartbeat's reason names that adapter, and no request for it is routed here.
        """
        phase, reason = self.phase()
        if phase not in ("ready", "warm"):
            return f"{phase}: {reason}"
        if not self.adapters.known:
            return "no snapshot yet: adapters are unknown"
        if self.adapters.loading:
            return f"loading {', '.join(self.adapters.loading)}"
        return ""
