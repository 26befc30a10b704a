"""One replica: an engine, and the agent that tells of it once a second.

A beat is what a real agent would send: counts of the moment, and rates that it measured (`decisions.engine_rates`).
Neighbours: `fluid_engine` is the engine; `simulation` drives both.
"""

from math import inf

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.decisions.engine_rates import EngineRates, RateCounters, update
from functions.decisions.replicas import ReplicaView
from functions.simulator.fleet.engine_profile import EngineProfile
from functions.simulator.fleet.fluid_engine import FluidEngine
from functions.simulator.fleet.prefix_cache import PrefixCache
from functions.simulator.fleet.token_gaps import TokenGaps

_NO_ADAPTERS: frozenset[EngineName] = frozenset()


class Replica:
    __slots__ = ("_rates", "engine", "id", "pool", "profile", "view", "wake_s")

    def __init__(
        self,
        replica_id: ReplicaId,
        pool: PoolName,
        profile: EngineProfile,
        *,
        block_tokens: int,
        gaps: TokenGaps,
    ) -> None:
        self.id = replica_id
        self.pool = pool
        self.profile = profile
        cache = PrefixCache(profile.kv_tokens, block_tokens) if block_tokens else None
        self.engine = FluidEngine(profile, gaps, cache)
        self.wake_s = inf  # when the engine will be looked at next
        self._rates = EngineRates(prefill_ms_per_token=profile.prefill_ms_per_token)
        self.view = self.beat()

    def beat(self) -> ReplicaView:
        """What gateways hear now."""
        engine, profile = self.engine, self.profile
        counters = RateCounters(
            finished=engine.finished,
            e2e_s=engine.e2e_s,
            prefill_s=engine.prefill_s,
            computed_prompt_tokens=engine.computed_tokens,
            running=engine.running,
        )
        self._rates = update(self._rates, counters)
        self.view = ReplicaView(
            id=self.id,
            pool=self.pool,
            host="",
            port=0,
            phase="ready",
            running=engine.running,
            waiting=engine.waiting,
            kv_usage_ratio=min(1.0, max(0.0, engine.kv_tokens / profile.kv_tokens)),
            adapters=_NO_ADAPTERS,
            service_ms=self._rates.service_ms,
            prefill_ms_per_token=self._rates.prefill_ms_per_token,
            kv_capacity_tokens=profile.kv_tokens,
        )
        return self.view
