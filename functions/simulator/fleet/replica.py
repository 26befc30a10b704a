"""One replica: an engine, the agent that reports on it once a second, and its lifecycle state.

    ordered -> starting -> ready -> draining -> gone
                  |          ^
                  '-> warm --'   promoted
    lost: its process or its node is dead; it may be restarted, as another incarnation with an empty cache

A heartbeat has the contents of a real agent's: current counts, measured rates (`decisions.health.engine_rates`), and
the engine's health (`decisions.health.engine`, checked only while there is doubt). `fluid_engine` is the engine;
`lifecycle` changes the states.
"""

from dataclasses import dataclass
from enum import Enum
from math import inf

from functions.api.ids import ReplicaId
from functions.decisions.health.engine import (
    Counters,
    EngineHealth,
    Evidence,
    HealthPolicy,
    Probe,
    initial_health,
    judge,
)
from functions.decisions.health.engine_rates import EngineRates, RateCounters, update
from functions.decisions.health.pace import PaceMeter, WorkCounters, observe
from functions.decisions.routing.replicas import ReplicaPhase
from functions.fleet.heartbeat import Heartbeat
from functions.simulator.fleet.adapter_tiers import ReplicaAdapterTiers
from functions.simulator.fleet.engine_profile import EngineProfile
from functions.simulator.fleet.fluid_engine import FluidEngine, FluidSequence
from functions.simulator.fleet.prefix_cache import PrefixCache
from functions.simulator.fleet.reported_prefixes import ReportedPrefixes
from functions.simulator.fleet.setting import PoolSetting, Zone
from functions.simulator.fleet.token_gaps import TokenGaps

_KV_BLOCK_TOKENS = 16
_HEALTH = HealthPolicy()


class Life(Enum):
    ORDERED = "ordered"
    STARTING = "starting"
    WARM = "warm"
    READY = "ready"
    DRAINING = "draining"
    LOST = "lost"
    GONE = "gone"


_MOVES = {
    Life.ORDERED: {Life.STARTING, Life.GONE},
    Life.STARTING: {Life.WARM, Life.READY, Life.GONE, Life.LOST},
    Life.WARM: {Life.READY, Life.DRAINING, Life.LOST},
    Life.READY: {Life.DRAINING, Life.LOST},
    Life.DRAINING: {Life.GONE, Life.LOST},
    Life.LOST: {Life.STARTING, Life.GONE},
    Life.GONE: set[Life](),
}
_PHASES: dict[Life, ReplicaPhase] = {
    Life.STARTING: "starting",
    Life.WARM: "warm",
    Life.READY: "ready",
    Life.DRAINING: "draining",
}


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """Number of a pool's replicas in each lifecycle state; `lost` ones are in no other."""

    starting: int = 0
    warm: int = 0
    ready: int = 0
    draining: int = 0
    lost: int = 0


class Replica:
    __slots__ = (
        "_gaps",
        "_health",
        "_heartbeats",
        "_link_free_s",
        "_pace",
        "_past_busy_s",
        "_past_prompts",
        "_rates",
        "_told",
        "adapters",
        "answers",
        "block_tokens",
        "engine",
        "id",
        "incarnation",
        "is_mute",
        "is_unreachable",
        "last_heartbeat",
        "life",
        "pool",
        "profile",
        "since_s",
        "wake_s",
        "wakes",
        "zone",
    )

    def __init__(
        self,
        replica_id: ReplicaId,
        pool: PoolSetting,
        zone: Zone,
        *,
        block_tokens: int,
        gaps: TokenGaps,
        adapters: ReplicaAdapterTiers | None,
        told: ReportedPrefixes | None = None,
    ) -> None:
        self.id = replica_id
        self.pool = pool
        self.zone = zone
        self.profile: EngineProfile = pool.profile
        self.block_tokens = block_tokens
        self.life = Life.ORDERED
        self.since_s = 0.0  # start of its costs
        self.incarnation = 0
        self.is_mute = False  # True if no heartbeat gets out
        self.answers = True  # False if connections are refused
        self.is_unreachable = False  # True if connections are not even refused
        self.last_heartbeat: Heartbeat | None = None  # the last one that reached the bus
        self.wake_s = inf  # time of the engine's next scheduled change
        self.wakes = 0  # number of state changes; actions scheduled before the last one are skipped
        self.adapters = adapters
        self._gaps = gaps
        self._told = told
        self._pace = PaceMeter()
        self._past_busy_s = 0.0
        self._past_prompts = (0, 0)
        self._link_free_s = 0.0  # when the link from host memory is free
        self._reset_engine()

    def move(self, life: Life) -> None:
        """Change the state; raise ValueError, and change nothing, if the transition is not allowed."""
        if life not in _MOVES[self.life]:
            raise ValueError(f"{self.id} is {self.life.value}: it cannot become {life.value}")
        self.life = life
        self.wakes += 1

    def restart_process(self) -> None:
        """Start another process in the same place: its memory is lost, its disk is not."""
        self._past_busy_s, self._past_prompts = self.busy_s, self.prompts
        self.incarnation += 1
        self._reset_engine()
        if self.adapters is not None:
            self.adapters.reset_engine()

    @property
    def busy_s(self) -> float:
        return self._past_busy_s + self.engine.busy_s

    @property
    def prompts(self) -> tuple[int, int]:
        """Prompt tokens looked up in its cache, and those found."""
        cache, (asked, hit) = self.engine.cache, self._past_prompts
        return (asked + cache.asked_tokens, hit + cache.hit_tokens) if cache is not None else (asked, hit)

    @property
    def kv_usage_ratio(self) -> float:
        return min(1.0, max(0.0, self.engine.kv_tokens / self.profile.kv_tokens))

    def heartbeat(self, now_s: float) -> Heartbeat:
        """Measure the engine, unless it is frozen, and return the heartbeat for now; it must have been advanced to this
        time."""
        engine, adapters = self.engine, self.adapters
        if not engine.is_frozen:
            self._measure()
            self._pace = observe(self._pace, self._work(), now_s)
        phase = self._phase(now_s)
        self._heartbeats += 1
        waiting = engine.unscheduled
        return Heartbeat(
            replica_id=self.id,
            pool=self.pool.name,
            host="simulated",
            port=1,
            phase=phase,
            sequence=self._heartbeats,
            incarnation=self.incarnation,
            sent_unix_s=now_s,
            running=engine.running + engine.waiting - waiting,
            waiting=waiting,
            kv_usage_ratio=self.kv_usage_ratio,
            kv_blocks_total=self.profile.kv_tokens // _KV_BLOCK_TOKENS,
            kv_block_tokens=_KV_BLOCK_TOKENS,
            service_ms=self._rates.service_ms,
            prefill_ms_per_token=self._rates.prefill_ms_per_token,
            adapters=adapters.advertised if adapters is not None else (),
            peer_port=1 if adapters is not None else 0,
            zone=self.zone.name,
            adapter_room=adapters.room if adapters is not None and phase == "ready" else 0,
            disk_bloom=adapters.bloom if adapters is not None else "",
            pace=self._pace.pace,
            kv_reload_ms_per_token=self.pool.reload_ms_per_token if self.pool.host_kv_tokens else 0.0,
        )

    def reload_s(self, work: FluidSequence, now_s: float) -> float:
        """Begin the reload of the prompt's tokens from host memory and return the seconds until they are on the
        accelerator; 0 if there are none. Set `work.reloaded_tokens`. A reload waits for those begun before; only
        pools without adapters have any."""
        cache = self.engine.cache
        tokens = cache.to_reload(work.blocks) if cache is not None and self.adapters is None else 0
        if not tokens:
            return 0.0
        work.reloaded_tokens = tokens
        self._link_free_s = max(self._link_free_s, now_s) + tokens * self.pool.reload_ms_per_token / 1000
        return self._link_free_s - now_s

    def is_condemned(self, now_s: float) -> bool:
        """Return True if its agent gives up the engine, since it has hung for too long."""
        health = self._health
        return health is not None and health.phase == "hung" and now_s - health.since_s >= _HEALTH.condemn_hung_after_s

    def _reset_engine(self) -> None:
        profile = self.profile
        cache = None
        if self.block_tokens:
            listener = self._told.listener_of(self.id) if self._told is not None else None
            cache = PrefixCache(profile.kv_tokens, self.block_tokens, listener, host_tokens=self.pool.host_kv_tokens)
        self.engine = FluidEngine(profile, self._gaps, cache)
        self._rates = EngineRates(prefill_ms_per_token=profile.prefill_ms_per_token)
        self._health: EngineHealth | None = None  # None means no doubt about its health
        self._heartbeats = 0
        self._pace = PaceMeter()

    def _measure(self) -> None:
        engine = self.engine
        last = self._rates.last
        if last is not None and last.finished == engine.finished and last.running == engine.running:
            return  # no new measurements
        counters = RateCounters(
            finished=engine.finished,
            e2e_s=engine.e2e_s,
            prefill_s=engine.prefill_s,
            computed_prompt_tokens=engine.computed_tokens,
            running=engine.running,
        )
        self._rates = update(self._rates, counters)

    def _work(self) -> WorkCounters:
        engine = self.engine
        waiting = engine.unscheduled
        return WorkCounters(
            finished=engine.finished,
            queue_s=engine.queue_s,
            prefill_s=engine.prefill_s,
            computed_tokens=engine.computed_tokens,
            gap_s=engine.gap_s,
            gaps=engine.gap_tokens,
            running=engine.running + engine.waiting - waiting,
            waiting=waiting,
        )

    def _phase(self, now_s: float) -> ReplicaPhase:
        phase = _PHASES.get(self.life, "dead")
        if not self.engine.is_frozen and self._health is None:
            return phase
        health = self._health or _well(now_s)
        self._health = judge(health, self._evidence(now_s), now_s, _HEALTH)
        if self._health.phase == "ready":
            if not self.engine.is_frozen:
                self._health = None
            return phase
        return self._health.phase

    def _evidence(self, now_s: float) -> Evidence:
        engine = self.engine
        outstanding = engine.running + engine.waiting
        if engine.is_frozen:
            return Evidence("timed_out", None, outstanding, Probe("pending", now_s))
        counters = Counters(float(engine.computed_tokens), engine.busy_s, float(engine.finished))
        return Evidence("ok", counters, outstanding, Probe("answered", now_s, now_s))


def _well(now_s: float) -> EngineHealth:
    """Return the health of an engine that answered until now."""
    health = initial_health(now_s)
    answered = Evidence("ok", None, 0, Probe("answered", now_s, now_s + 1e-9))
    return judge(health, answered, now_s, _HEALTH)
