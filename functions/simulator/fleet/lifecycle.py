"""Replica lifecycle: ordered, started, promoted, drained, lost and restarted, each with its delay.

Heartbeats report each step to gateways after a delay; like an agent, a replica sends one immediately after a change.
An accelerator costs from its allocation until the replica is gone or lost.

Worked example (test_accelerators_are_paid_from_start_to_end): a replica that is ordered cold at 0 s, has
its accelerator at 300 and is gone at 900 costs 600 accelerator seconds. Related modules: `replica` has the states and
the heartbeats, `start_times` the delays, `faults` makes replicas fail.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from functions.api.ids import PoolName, ReplicaId
from functions.decisions.adapters.demand import AdapterDemand
from functions.fleet.heartbeat import Heartbeat
from functions.simulator.events import Events
from functions.simulator.fleet.adapter_tiers import ReplicaAdapterTiers, demand_of
from functions.simulator.fleet.engine_driver import EngineDriver
from functions.simulator.fleet.outcome import Outcome
from functions.simulator.fleet.replica import Life, Replica, ReplicaCounts
from functions.simulator.fleet.reported_prefixes import ReportedPrefixes
from functions.simulator.fleet.setting import PoolSetting, Setting, Zone
from functions.simulator.fleet.start_times import StartSource
from functions.simulator.fleet.token_gaps import TokenGaps

_LIVE = frozenset({Life.STARTING, Life.WARM, Life.READY, Life.DRAINING})
_GOODBYE_AFTER_S = 1.0  # one heartbeat, so that gateways know that it drains


@dataclass(slots=True)
class Past:
    """Totals of a pool's replicas that are gone."""

    busy_s: float = 0.0
    asked_tokens: int = 0
    hit_tokens: int = 0


class ReplicaLifecycle:
    def __init__(
        self,
        setting: Setting,
        events: Events,
        outcome: Outcome,
        gaps: dict[PoolName, TokenGaps],
        hear: Callable[[Replica, Heartbeat], None],
    ) -> None:
        self._setting = setting
        self._events = events
        self._outcome = outcome
        self._gaps = gaps
        self._hear = hear
        self._settings = {pool.name: pool for pool in setting.all_pools}
        self._zones = {zone.name: zone for zone in setting.zones}
        self._demand = {
            pool.name: demand_of(pool.adapters) if pool.adapters is not None else AdapterDemand()
            for pool in setting.all_pools
        }
        self._dealt: Counter[PoolName] = Counter()
        self._promoting: set[ReplicaId] = set()
        self._spent_s = {pool.name: 0.0 for pool in setting.all_pools}
        self.told = {
            pool.name: ReportedPrefixes()
            for pool in setting.all_pools
            if setting.router is None and (pool.routing or setting.routing).prefix_source == "events"
        }
        self.past = {pool.name: Past() for pool in setting.all_pools}
        self.replicas: dict[ReplicaId, Replica] = {}
        self.members: dict[PoolName, dict[ReplicaId, Replica]] = {pool.name: {} for pool in setting.all_pools}
        self.engines = EngineDriver(events, outcome, self.replicas, connect_s=setting.timeouts.connect_s)
        self.condemn: Callable[[Replica], None] = lambda replica: None
        self.adapters_tick: Callable[[Replica], None] = lambda replica: None

    # Actions.

    def start_initial_replicas(self) -> None:
        """Create the initial replicas, ready or warm at once. Each sends a heartbeat now; the next ones of a pool are
        spread over one heartbeat interval."""
        heartbeat_s = self._setting.heartbeat_s
        for pool in self._setting.all_pools:
            for number in range(pool.replicas + pool.warm):
                replica = self._new(pool)
                replica.move(Life.STARTING)
                replica.move(Life.READY if number < pool.replicas else Life.WARM)
                if replica.adapters is not None and pool.adapters is not None and pool.adapters.resident:
                    replica.adapters.preload_share(number, pool.replicas)
                if replica.adapters is not None:
                    replica.adapters.load_ahead(0.0)
                self._hear(replica, replica.heartbeat(0.0))
                first_s = heartbeat_s * (number + 1) / (pool.replicas + pool.warm)
                self._events.at(first_s, partial(self._heartbeat, replica, replica.incarnation))

    def start(self, pool_name: PoolName, source: StartSource | None, *, warm: bool) -> ReplicaId:
        pool = self._settings[pool_name]
        source = source or pool.source
        replica = self._new(pool)
        self._later(replica, pool.start.before_node_s(source), partial(self._on_node, replica, source, warm))
        return replica.id

    def promote(self, pool_name: PoolName) -> ReplicaId | None:
        """Begin to promote the replica that has been warm for longest and answers. Return its id, or None if there is
        none."""
        for replica in self.members[pool_name].values():
            if replica.life is Life.WARM and replica.answers and replica.id not in self._promoting:
                self._promoting.add(replica.id)
                promote_s = self._settings[pool_name].start.promote_s
                self._later(replica, promote_s, partial(self._take_traffic, replica))
                return replica.id
        return None

    def drain(self, replica_id: ReplicaId) -> None:
        """Stop new requests; the replica is gone when it is empty, or immediately if it has not started yet or is
        lost."""
        replica = self.replicas.get(replica_id)
        if replica is None or replica.life in (Life.DRAINING, Life.GONE):
            return
        if replica.life in (Life.ORDERED, Life.STARTING, Life.LOST):
            self._leave(replica)
            return
        replica.move(Life.DRAINING)
        self._send_heartbeat(replica)
        self._later(replica, _GOODBYE_AFTER_S, partial(self._leave_if_empty, replica))

    def lost(self, replica: Replica) -> None:
        """Mark a replica as lost, since its process or node died."""
        self._stop_costing(replica)
        replica.move(Life.LOST)
        replica.answers = False
        self._promoting.discard(replica.id)

    def restart_process(self, replica: Replica, source: StartSource) -> None:
        """Start a new process in place of a lost one."""
        replica.restart_process()
        replica.answers, replica.is_mute, replica.is_unreachable = True, False, False
        self._on_node(replica, source, warm=False)

    # State.

    def counts(self, pool_name: PoolName) -> ReplicaCounts:
        found = Counter(replica.life for replica in self.members[pool_name].values())
        return ReplicaCounts(
            starting=found[Life.ORDERED] + found[Life.STARTING],
            warm=found[Life.WARM],
            ready=found[Life.READY],
            draining=found[Life.DRAINING],
            lost=found[Life.LOST],
        )

    def ready(self, pool_name: PoolName) -> Iterator[Replica]:
        return (replica for replica in self.members[pool_name].values() if replica.life is Life.READY)

    def starting(self, pool_name: PoolName) -> Iterator[Replica]:
        members = self.members[pool_name].values()
        return (replica for replica in members if replica.life in (Life.ORDERED, Life.STARTING))

    def accelerator_seconds(self, pool_name: PoolName) -> float:
        now_s = self._events.now_s
        live = [replica for replica in self.members[pool_name].values() if replica.life in _LIVE]
        return self._spent_s[pool_name] + sum(now_s - replica.since_s for replica in live)

    def settle(self) -> None:
        """At the end of a run, add the figures of the replicas that still exist and all pools' replica seconds to the
        outcome."""
        for replica in list(self.replicas.values()):
            self._sum_up(replica)
        for name in self.members:
            self._outcome.replica_seconds += self.accelerator_seconds(name)

    def _new(self, pool: PoolSetting) -> Replica:
        number = self._dealt.total()
        zones = pool.zones or tuple(self._zones)
        zone = self._zones.get(zones[self._dealt[pool.name] % len(zones)]) or Zone(zones[0])
        self._dealt[pool.name] += 1
        adapters = ReplicaAdapterTiers(pool.adapters, self._demand[pool.name]) if pool.adapters is not None else None
        replica = Replica(
            ReplicaId(f"r{number:04d}"),
            pool,
            zone,
            block_tokens=self._setting.block_tokens,
            gaps=self._gaps[pool.name],
            adapters=adapters,
            told=self.told.get(pool.name),
        )
        replica.since_s = self._events.now_s
        self.replicas[replica.id] = self.members[pool.name][replica.id] = replica
        return replica

    def _on_node(self, replica: Replica, source: StartSource, warm: bool) -> None:
        replica.since_s = self._events.now_s
        replica.move(Life.STARTING)
        self._heartbeat(replica, replica.incarnation)
        takes_s = replica.pool.start.on_node_s(source)
        self._later(replica, takes_s, partial(self._up, replica, Life.WARM if warm else Life.READY))

    def _up(self, replica: Replica, life: Life) -> None:
        replica.move(life)
        self._send_heartbeat(replica)

    def _take_traffic(self, replica: Replica) -> None:
        self._promoting.discard(replica.id)
        self._up(replica, Life.READY)

    def _leave_if_empty(self, replica: Replica) -> None:
        engine = replica.engine
        if engine.running or engine.waiting:
            self._later(replica, self._setting.heartbeat_s, partial(self._leave_if_empty, replica))
        else:
            self._leave(replica)

    def _leave(self, replica: Replica) -> None:
        if replica.life in _LIVE:
            self._stop_costing(replica)
        replica.move(Life.GONE)
        self._send_heartbeat(replica)
        self._sum_up(replica)
        del self.replicas[replica.id], self.members[replica.pool.name][replica.id]

    def _stop_costing(self, replica: Replica) -> None:
        if replica.life in _LIVE:
            self._spent_s[replica.pool.name] += self._events.now_s - replica.since_s

    def _sum_up(self, replica: Replica) -> None:
        outcome, past = self._outcome, self.past[replica.pool.name]
        asked_tokens, hit_tokens = replica.prompts
        past.busy_s += replica.busy_s
        past.asked_tokens += asked_tokens
        past.hit_tokens += hit_tokens
        outcome.busy_seconds += replica.busy_s
        outcome.prompt_tokens += asked_tokens
        outcome.hit_tokens += hit_tokens
        if replica.adapters is not None:
            outcome.adapter_loads += replica.adapters.loads

    def _later(self, replica: Replica, after_s: float, what: Callable[[], None]) -> None:
        """Schedule an action that is skipped if the replica's state changes first."""
        self._events.after(after_s, partial(self._if_unchanged, replica, replica.wakes, what))

    def _if_unchanged(self, replica: Replica, wakes: int, what: Callable[[], None]) -> None:
        if replica.wakes == wakes:
            what()

    # Heartbeats.

    def _heartbeat(self, replica: Replica, incarnation: int) -> None:
        if replica.life in (Life.LOST, Life.GONE) or replica.incarnation != incarnation:
            return
        self._send_heartbeat(replica)
        if replica.is_condemned(self._events.now_s):
            self.condemn(replica)
        else:
            self._events.after(self._setting.heartbeat_s, partial(self._heartbeat, replica, incarnation))

    def _send_heartbeat(self, replica: Replica) -> None:
        self.engines.advance_engine(replica)
        if replica.adapters is not None and replica.life in _LIVE:
            self.adapters_tick(replica)
        if not replica.is_mute:
            heartbeat = replica.heartbeat(self._events.now_s)
            self._events.after(self._setting.heartbeat_delay_s, partial(self._hear, replica, heartbeat))
