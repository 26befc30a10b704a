"""Simulation of pools, gateways and a workload in virtual time.

    simulate(Setting(replicas=8, profile=PROFILES["h100-8b"]), workload) -> Outcome

It is deterministic: the same setting, workload and seed give the same outcome on any machine. Gateways decide with
`functions.decisions` unchanged, and see replicas through heartbeats that are a second apart and arrive late.

An actor is called with the `Simulation` at a fixed period of virtual time, first after one period. Autoscalers,
ladders, faults and recorders are actors; they use the public methods of `Simulation`. Related modules: `lifecycle`
and `faults` are the replicas, `gateway` the gateways, `signals` the controller's view.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from math import inf
from random import Random
from zlib import crc32

from functions.api.ids import PoolName, ReplicaId
from functions.api.snapshot import AdmissionEntry
from functions.decisions.admission.bands import rules_of
from functions.decisions.autoscaling.signals import PoolSignals
from functions.decisions.catalogue_policies import DEFAULT_ADMISSION
from functions.fleet.heartbeat import SILENCE_LIMIT_S, Heartbeat, to_view
from functions.gateway.admission.queue import AdmissionQueues
from functions.simulator.events import Events
from functions.simulator.fleet.adapter_agents import AdapterAgents
from functions.simulator.fleet.catalogue import SettingCatalogue
from functions.simulator.fleet.comparison import ModelledEngines
from functions.simulator.fleet.context import Context
from functions.simulator.fleet.faults import ReplicaFaults
from functions.simulator.fleet.gateway import SimulatedGateway
from functions.simulator.fleet.lifecycle import ReplicaLifecycle
from functions.simulator.fleet.outcome import BandOutcome, Outcome, PoolOutcome
from functions.simulator.fleet.quota_bus import QuotaBus
from functions.simulator.fleet.replica import Replica, ReplicaCounts
from functions.simulator.fleet.setting import POOL, Setting, Zone
from functions.simulator.fleet.signals import PoolFigures, PoolTotals
from functions.simulator.fleet.start_times import StartSource
from functions.simulator.fleet.token_gaps import TokenGaps
from functions.simulator.virtual_loop import VirtualLoop, quiet_gateways, seldom_collected
from functions.simulator.workload.request import WorkloadRequest

__all__ = ["POOL", "SLO_S", "Setting", "Simulation", "simulate"]

SLO_S = 1.5  # default SLO of a band without one; the platform should meet it for 99 of 100
_SWEEP_S = 0.25
_SECOND_S = 1.0
_FOREGROUND = (0, 1)  # bands that are not meant to wait


def simulate(setting: Setting, workload: Iterable[WorkloadRequest]) -> Outcome:
    return Simulation(setting, workload).run()


def _pool_outcome(admission: AdmissionEntry | None) -> PoolOutcome:
    return PoolOutcome(tuple(BandOutcome(rule.slo_s or SLO_S) for rule in rules_of(admission or DEFAULT_ADMISSION)))


class Simulation:
    def __init__(self, setting: Setting, workload: Iterable[WorkloadRequest], actors: Iterable["Actor"] = ()) -> None:
        self.setting = setting
        self.catalogue = SettingCatalogue(setting)
        self.events = Events()
        self._loop = VirtualLoop(self.events)  # type: ignore[abstract]  # no sockets, processes or signals
        self.rng = Random(setting.seed)  # noqa: S311 - the same seed, the same draws; for actors
        self._workload: Iterator[WorkloadRequest] = iter(workload)
        self._actors = tuple(actors)
        pools = setting.all_pools
        self.outcome = Outcome({pool.name: _pool_outcome(pool.admission or setting.admission) for pool in pools})
        self._gaps = {pool.name: TokenGaps() for pool in pools}
        most_s = int(setting.signals_s + setting.signals_delay_s) + 2
        self._figures = {pool.name: PoolFigures(most_s, reads=bool(pool.role)) for pool in pools}
        self._steps_s = {pool.name: pool.profile.least_step_s for pool in pools}
        self._ready_s = dict.fromkeys(self._figures, 0.0)
        self.lifecycle = ReplicaLifecycle(setting, self.events, self.outcome, self._gaps, self._deliver_heartbeat)
        self.faults = ReplicaFaults(self.events, self.lifecycle, setting.timeouts)
        self._agents = AdapterAgents(self.events, self.lifecycle.replicas)
        self.lifecycle.adapters_tick = self._agents.tick
        self._engines = ModelledEngines(self.lifecycle.replicas, self.events)
        has_limits = bool(setting.quotas) or setting.quota is not None
        names = [_name(number) for number in range(setting.gateways)]
        self._bus = QuotaBus(names) if has_limits and setting.gateways > 1 else None
        self.context = Context(
            setting=setting,
            catalogue=self.catalogue,
            events=self.events,
            outcome=self.outcome,
            engines=self.lifecycle.engines,
            told=self.lifecycle.told,
            figures=self._figures,
            load_adapter=self._agents.load,
            over=self._over,
        )
        self.gateways = [self._new_gateway(number) for number in range(setting.gateways)]
        self._under_way = 0
        self._has_ended = False  # True after the workload's last request has arrived

    def run(self) -> Outcome:
        self.lifecycle.start_initial_replicas()
        self._schedule_next_request()
        for number in range(len(self.gateways)):
            self._sweep(number)
        self.events.after(_SECOND_S, self._close_second)
        for every_s, act in self._actors:
            self.events.after(every_s, partial(self._act, every_s, act))
        if self.setting.until_s < inf:
            self.events.at(self.setting.until_s, self.events.stop)
        with seldom_collected(), quiet_gateways(), self._loop.running():
            for gateway in self.gateways:
                gateway.start()
            self.events.run_until_stopped()
        self.lifecycle.settle()
        for gaps in self._gaps.values():
            self.outcome.gaps.merge(gaps)
        self.outcome.seconds = self.events.now_s
        self.outcome.events = self.events.happened
        return self.outcome

    # State, for actors.

    @property
    def now_s(self) -> float:
        return self.events.now_s

    @property
    def under_way(self) -> int:
        """Number of requests that are not over, including scheduled follow-up requests."""
        return self._under_way

    def requests_under_way(self) -> Iterator[WorkloadRequest]:
        """Yield the requests in progress, by gateway and in order of arrival."""
        return (client.request for gateway in self.gateways for client in gateway.clients.values())

    def pools(self) -> tuple[PoolName, ...]:
        return tuple(self._figures)

    def counts(self, pool: PoolName) -> ReplicaCounts:
        return self.lifecycle.counts(pool)

    def ready_ids(self, pool: PoolName) -> tuple[ReplicaId, ...]:
        return tuple(replica.id for replica in self.lifecycle.ready(pool))

    def starting_ids(self, pool: PoolName) -> tuple[ReplicaId, ...]:
        return tuple(replica.id for replica in self.lifecycle.starting(pool))

    def replica_ids(self) -> tuple[ReplicaId, ...]:
        """Return the ids of the replicas of all pools in all states, except those that are gone."""
        return tuple(self.lifecycle.replicas)

    def signals(self, pool: PoolName) -> PoolSignals:
        """Return the pool's signals of the last `signals_s`, with the delay of gateways' reports; the demand that wakes
        a pool has no delay."""
        setting = self.setting
        known_s = self.events.now_s - setting.signals_delay_s
        counts = self.lifecycle.counts(pool)
        signals = self._figures[pool].signals_over(known_s, setting.signals_s, self._steps_s[pool], counts)
        if pool not in self.catalogue.may_sleep:
            return signals
        asking = [gateway.waking_demand(pool) for gateway in self.gateways if gateway.is_up]  # without the delay
        return replace(signals, waking=sum(each for each, _ in asking), open_requests=sum(each for _, each in asking))

    def gaps(self, pool: PoolName) -> TokenGaps:
        """Return the gaps between the pool's tokens since the start."""
        return self._gaps[pool]

    def accelerator_seconds(self, pool: PoolName) -> float:
        return self.lifecycle.accelerator_seconds(pool)

    # Actions, for actors.

    def start_replica(self, pool: PoolName, source: StartSource | None = None, *, warm: bool = False) -> ReplicaId:
        """Start a replica that is ready (or warm) after its source's start time; None: the pool's own source."""
        return self.lifecycle.start(pool, source, warm=warm)

    def promote(self, pool: PoolName) -> ReplicaId | None:
        """Begin to promote the replica that has been warm for longest. Return its id, or None if there is none."""
        return self.lifecycle.promote(pool)

    def drain(self, replica_id: ReplicaId) -> None:
        self.lifecycle.drain(replica_id)

    def crash(self, replica_id: ReplicaId, *, unreachable: bool = False) -> None:
        self._on(replica_id, lambda replica: self.faults.crash(replica, unreachable=unreachable))

    def restart(self, replica_id: ReplicaId, source: StartSource = "disk") -> None:
        self._on(replica_id, lambda replica: self.faults.restart(replica, source))

    def hang(self, replica_id: ReplicaId, for_s: float, *, mute: bool = False) -> None:
        """Hang a replica for `for_s` seconds; `mute`: it sends no heartbeats either."""
        self._on(replica_id, lambda replica: self.faults.hang(replica, for_s, mute=mute))

    def slow(self, replica_id: ReplicaId, factor: float, for_s: float) -> None:
        self._on(replica_id, lambda replica: self.faults.slow(replica, factor, for_s))

    def partition(self, number: int, for_s: float) -> None:
        """Cut gateway `number` off from the bus for `for_s` seconds; it continues with its last state."""
        gateway = self.gateways[number]
        gateway.cut_off(self.events.now_s + for_s)
        self.events.after(for_s, partial(self._in_touch, gateway))

    def restart_gateway(self, number: int, after_s: float = 2.0) -> None:
        """Stop a gateway, which breaks its connections, and replace it after `after_s` by one without state."""
        gateway = self.gateways[number]
        if gateway.is_up:
            gateway.stop("gateway_lost")
        self.events.after(after_s, partial(self._replace_gateway, number))

    def lose_zone(self, name: str) -> None:
        """Crash all replicas of a zone as if its nodes were gone, and stop its gateways; it does not recover by
        itself."""
        for replica in list(self.lifecycle.replicas.values()):
            if replica.zone.name == name:
                self.faults.crash(replica, unreachable=True)
        for gateway in self.gateways:
            if gateway.zone.name == name and gateway.is_up:
                gateway.stop("gateway_lost")

    def lose_region(self, name: str) -> None:
        for zone in self.setting.zones:
            if zone.region == name:
                self.lose_zone(zone.name)

    # Workload.

    def _schedule_next_request(self) -> None:
        """Schedule the next request at its time. After the last one, stop once all are over, or after `extra_s`."""
        request = next(self._workload, None)
        if request is None:
            self._has_ended = True
            self._stop_if_over()
            self.events.after(self.setting.extra_s, self.events.stop)
            return
        self.events.at(request.at_s, partial(self._dispatch_next, request))

    def _dispatch_next(self, request: WorkloadRequest) -> None:
        self._under_way += 1
        self._dispatch(request)
        self._schedule_next_request()

    def _dispatch(self, request: WorkloadRequest) -> None:
        gateway = self._gateway_of(request)
        if gateway is None:
            band = self.outcome.band(self._pool_of(request), request.band)
            band.asked += 1
            band.lost["no_gateway"] += 1
            self._over(request)
            return
        if request.region and gateway.zone.region != request.region:
            # both directions together: the client waits just as long
            self.events.after(self.setting.cross_region_s, partial(self._dispatch_across_regions, gateway, request))
            return
        gateway.receive_request(request)

    def _pool_of(self, request: WorkloadRequest) -> PoolName:
        found = PoolName(request.pool) if request.pool is not None else None
        return found if found in self._figures else next(iter(self._figures))

    def _dispatch_across_regions(self, gateway: SimulatedGateway, request: WorkloadRequest) -> None:
        if gateway.is_up:
            gateway.receive_request(request)
        else:
            self._dispatch(request)

    def _over(self, request: WorkloadRequest) -> None:
        """Finish a request and schedule those that follow it; called once for each that arrived."""
        self._under_way -= 1
        if request.then is not None:
            for follower in request.then(self.events.now_s):
                self._under_way += 1
                self.events.at(follower.at_s, partial(self._dispatch, follower))
        self._stop_if_over()

    def _stop_if_over(self) -> None:
        if self._has_ended and not self._under_way:
            self.events.stop()

    def _gateway_of(self, request: WorkloadRequest) -> SimulatedGateway | None:
        """Return a gateway that is up, of the request's region if possible: fixed by its session, or else by tenant and
        time. None if all are down."""
        if len(self.gateways) == 1 and self.gateways[0].is_up:
            return self.gateways[0]
        up = [gateway for gateway in self.gateways if gateway.is_up]
        near = [gateway for gateway in up if gateway.zone.region == request.region] if request.region else up
        if not near:
            near = up
        key = request.session or f"{request.tenant}{request.at_s}"
        return near[crc32(key.encode()) % len(near)] if near else None

    # Periodic events.

    def _deliver_heartbeat(self, replica: Replica, heartbeat: Heartbeat) -> None:
        """Deliver a heartbeat to the gateways of its region that are up and connected to the bus."""
        region, view = replica.zone.region, to_view(heartbeat)
        replica.last_heartbeat = heartbeat
        for gateway in self.gateways:
            if gateway.is_up and not gateway.services.state.bus_down and gateway.zone.region == region:
                gateway.receive_heartbeat(heartbeat, view)

    def _sweep(self, number: int) -> None:
        gateway = self.gateways[number]
        if gateway.is_up:
            gateway.sweep()
        self.events.after(_SWEEP_S, partial(self._sweep, number))

    def _close_second(self) -> None:
        now_s = self.events.now_s
        for name, figures in self._figures.items():
            figures.close(now_s, self._pool_totals(name))
        if self._bus is not None:
            self._bus.model.forget_expired(int(now_s * 1_000_000))
        self.events.after(_SECOND_S, self._close_second)

    def _pool_totals(self, pool: PoolName) -> PoolTotals:
        past, fullest = self.lifecycle.past[pool], 0.0
        busy_s, asked_tokens, hit_tokens = past.busy_s, past.asked_tokens, past.hit_tokens
        for replica in self.lifecycle.members[pool].values():
            busy_s += replica.busy_s
            asked, hit = replica.prompts
            asked_tokens, hit_tokens = asked_tokens + asked, hit_tokens + hit
            fullest = max(fullest, replica.kv_usage_ratio)
        ready = sum(1 for _ in self.lifecycle.ready(pool))
        self._ready_s[pool] += ready * _SECOND_S
        waits = [
            _wait(gateway.services.admission, pool, self.events.now_s) for gateway in self.gateways if gateway.is_up
        ]
        return PoolTotals(
            busy_s=busy_s,
            ready_s=self._ready_s[pool],
            asked_tokens=asked_tokens,
            hit_tokens=hit_tokens,
            gaps=self._gaps[pool].copy(),
            kv_usage_ratio=fullest,
            queue_s=max((wait_s for wait_s, _, _ in waits), default=0.0),
            queued_tokens=sum(tokens for _, tokens, _ in waits),
            foreground_queued_tokens=sum(tokens for _, _, tokens in waits),
        )

    def _act(self, every_s: float, act: Callable[["Simulation"], None]) -> None:
        act(self)
        self.events.after(every_s, partial(self._act, every_s, act))

    def _on(self, replica_id: ReplicaId, what: Callable[[Replica], None]) -> None:
        """Apply a fault to a replica; does nothing if the replica is gone."""
        replica = self.lifecycle.replicas.get(replica_id)
        if replica is not None:
            what(replica)

    # Gateways.

    def _new_gateway(self, number: int) -> SimulatedGateway:
        setting = self.setting
        zone: Zone = setting.zones[number % len(setting.zones)]
        router = setting.router(self._engines, _draws(setting.seed + number)) if setting.router is not None else None
        return SimulatedGateway(_name(number), zone, self.context, router=router, bus=self._bus)

    def _replace_gateway(self, number: int) -> None:
        """Start a new gateway, which reads every replica's last heartbeat from the bus; do nothing if one is up
        already."""
        if self.gateways[number].is_up:
            return  # replaced already
        gateway = self.gateways[number] = self._new_gateway(number)
        gateway.start()
        self._catch_up(gateway)

    def _in_touch(self, gateway: SimulatedGateway) -> None:
        if gateway.is_up and gateway.reconnect_if_due():
            self._catch_up(gateway)

    def _catch_up(self, gateway: SimulatedGateway) -> None:
        for replica in list(self.lifecycle.replicas.values()):
            last = replica.last_heartbeat
            if last is None or self.events.now_s - last.sent_unix_s > SILENCE_LIMIT_S:
                continue
            if replica.zone.region == gateway.zone.region:
                gateway.receive_heartbeat(last)


Actor = tuple[float, Callable[[Simulation], None]]
"""Period in seconds, and the function to call."""


def _draws(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - the same seed, the same draws


def _name(number: int) -> str:
    return f"g{number}-"


def _wait(rooms: AdmissionQueues, pool: PoolName, now_s: float) -> tuple[float, float, float]:
    """Return the seconds that the next request would wait if it is not batch, and queued KV tokens: all, and without
    batch. All are 0 if the pool has no queues."""
    admission = next((admission for name, admission, _ in rooms.figures() if name == pool), None)
    if admission is None:
        return 0.0, 0.0, 0.0
    wait_s = max(admission.band_wait_s(band, now_s) for band in _FOREGROUND)
    queued_tokens = [queue.queued_kv_tokens for queue in admission.queues]
    return wait_s, sum(queued_tokens), sum(queued_tokens[band] for band in _FOREGROUND)
