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

STUCK_AFTER_S = 5.0  # the loop judges the engine every second; silent for this long, and its word is worth nothing


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
    draft_tokens_total: int = 0  # guessed ahead, since the engine began; 0 where it does not guess
    accepted_draft_tokens_total: int = 0  # of these
    host_kv_bytes: int = 0  # of host memory, for KV blocks that leave the accelerator
    host_hit_tokens_total: int = 0  # prompt tokens found there, since the engine began

    @property
    def outstanding(self) -> int:
        return self.running + self.waiting


@dataclass(frozen=True, slots=True)
class Adapters:
    """What the reconciler last found and meant to do."""

    known: bool = False  # whether a snapshot has been seen and a plan made against this engine's own list
    advertised: tuple[EngineName, ...] = ()
    loading: tuple[EngineName, ...] = ()  # what the first plan for this engine loads ahead, still on its way
    reason: str = ""
    room: int = 0  # how many more could be loaded at once
    cold: int = 0  # how many wait for a first request
    failures: Mapping[EngineName, str] = field(default_factory=dict)  # in words
    without_room: tuple[EngineName, ...] = ()  # a rollout's versions beyond what this engine holds, by rank


@dataclass(frozen=True, slots=True)
class Disk:
    """What lies on the node's disk, as last looked at."""

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
    busy_adapters: frozenset[EngineName] = frozenset()  # with requests running or waiting
    rates: EngineRates = field(default_factory=EngineRates)
    pace: PaceMeter = field(default_factory=PaceMeter)
    token_rate: TokenRate = field(default_factory=TokenRate)
    hands_over: bool = False  # it reads prompts for other pools, by the newest snapshot
    worked_s: float = 0.0  # when a look last found a prompt in the engine, or that it had read one; monotonic
    accelerators: int = 1  # of one replica, as its pool's service has it, by the newest snapshot
    reload: ReloadRate = field(default_factory=ReloadRate)
    declared_reload: DeclaredReload = field(default_factory=DeclaredReload)  # the pool's, by the newest snapshot
    adapters: Adapters = field(default_factory=Adapters)
    disk: Disk = field(default_factory=Disk)
    peer_port: int = 0  # where the agent loads adapters and gives chunks; 0 until it listens
    snapshot_epoch: int = 0  # as of which the adapters wanted are the newest
    snapshot_problem: Callable[[], str] = lambda: ""  # why the last snapshot was refused; "" while none was
    prefix_events: Callable[[], bool | None] = lambda: None  # whether KV events come; None: nothing would show it yet
    engine_version: str = ""
    weights: Digest | None = None  # of the base, as the engine has loaded them; None: not known, or not yet
    cold_start: Mapping[ColdStage, float] = field(default_factory=dict)  # seconds by stage; empty: not measured
    draining: bool = False
    standby: bool = False  # loaded and well, and kept without traffic until it is promoted
    warming: bool = False  # the engine is well, and asked for what it compiles at a first request of its kind
    asleep: bool = False  # the engine's weights are in host memory: it computes nothing until it is woken
    falling_asleep: bool = False  # it was asked to, and has not answered: it computes nothing either
    condemned: str = ""  # why the engine should be killed; "" while it should not
    accelerator_fault: str = ""  # what takes it out until somebody clears it (`accelerator_fault`); "": nothing

    @property
    def computes(self) -> bool:
        """Whether the engine would answer a probe, were it well."""
        return not self.asleep and not self.falling_asleep

    def phase(self) -> tuple[ReplicaPhase, str]:
        """What to tell the fleet, and why. A lost engine outranks draining: out either way, and the cause matters.
        A failed accelerator drains it: nothing new comes, and what is under way may end by itself."""
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
        """Why an engine that is well serves nothing for a while."""
        if self.warming:
            return "its engine is being warmed up"
        return "its engine is asleep and is being woken" if self.asleep and not self.standby else ""

    def take_epoch(self, epoch: int) -> None:
        """The registry has confirmed that nothing newer concerns this pool."""
        self.snapshot_epoch = epoch

    def not_ready(self) -> str:
        """Why the replica should get no work yet, or "".

        Only the first fill of an engine holds the replica back: what comes later (a rollout's candidate, a new version)
        is loaded beside what serves, however slowly. Neither does an adapter whose load failed: one tenant's broken
        artifact must not take the pool down. It is named in the heartbeat's reason, and no request for it is routed
        here.
        """
        phase, reason = self.phase()
        if phase not in ("ready", "warm"):
            return f"{phase}: {reason}"
        if not self.adapters.known:
            return "no snapshot yet: adapters are unknown"
        if self.adapters.loading:
            return f"loading {', '.join(self.adapters.loading)}"
        return ""
