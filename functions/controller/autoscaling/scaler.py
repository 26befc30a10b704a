"""Scaler of pools: apply the decision to each pool with an AutoscalingPolicy, and store its state.

One pass over a pool: 1. collect its signals, 2. forecast its demand, 3. decide its size (`autoscaling.decide`), 4.
add what the overload ladder wants (borrow and provision; gateways do shed and shift), 5. state the reason for people.

The ladder decides about the present: ready, borrowed and starting replicas are the pool's size while it is in force.
The scaler adopts that size as its own. So added replicas leave by the scaler's rules, one at a time after its quiet
time, and not when the ladder ends.

All times are wall-clock times: forecasts know days and weeks, and desired sizes outlive a process.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from functions.api.kinds.admission_policy import AdmissionPolicy
from functions.api.kinds.autoscaling_policy import AutoscalingPolicy
from functions.api.kinds.inference_service import InferenceService
from functions.api.loader import Loaded
from functions.api.snapshot import AdmissionEntry, AutoscalingEntry
from functions.controller.autoscaling.allocation import Allocation
from functions.controller.autoscaling.signals import PoolUtilization, pool_signals, replicas_of, update_utilization
from functions.controller.snapshot.compile_policies import admission_entry, autoscaling_entry, policy_entry
from functions.decisions.admission.bands import BandRules, rules_of
from functions.decisions.autoscaling.decide import ScalerState, Scaling, decide
from functions.decisions.autoscaling.forecast import Demand, forecast_demand, update_demand
from functions.decisions.autoscaling.forecast_memory import Memory, Source, StartupTimes, resume_memory
from functions.decisions.autoscaling.policy import QUIET_S, ScalePolicy
from functions.decisions.autoscaling.signals import PoolSignals
from functions.decisions.catalogue_policies import DEFAULT_ADMISSION, most_specific
from functions.decisions.overload import ladder
from functions.decisions.overload.ladder import OFF, LadderState, Means, Rungs
from functions.fleet.pool_board import PoolReport

_INTERACTIVE = 0
DECIDE_EVERY_S = 15.0  # the ladder is evaluated in every pass
MAX_REMEMBERED = 64  # pools without a policy, or not reported yet
MAX_STARTING = 1000  # replicas of one pool whose start is timed


@dataclass(frozen=True, slots=True)
class DesiredSize:
    replicas: int  # serving replicas, including those that still start
    warm: int
    cause: str  # one of a few words, used as a metric's label
    reason: str  # for people
    since_unix_s: float  # when this number was first wanted
    rungs: tuple[str, ...] = ()  # rungs of the overload ladder in force
    cold_start: Mapping[str, float] = field(default_factory=dict)  # seconds by stage of the last cold start


@dataclass(slots=True)
class _Pool:
    state: ScalerState
    use: PoolUtilization = field(default_factory=PoolUtilization)
    demand: Demand = field(default_factory=Demand)
    ladder: LadderState = field(default_factory=LadderState)
    scaling: Scaling | None = None
    entry: AutoscalingEntry | None = None  # entry used for the last decision
    decided_s: float = 0.0
    signals: PoolSignals | None = None
    starts: StartupTimes = field(default_factory=StartupTimes)
    starting_since_s: dict[str, float] = field(default_factory=dict)  # by replica
    wanted: DesiredSize | None = None
    cold_start: Mapping[str, float] = field(default_factory=dict)


class Scaler:
    """State of all scaled pools, and the decision for each. Owned by one event loop."""

    def __init__(
        self, source: Source, speeds: Mapping[str, float] | None = None, memories: Mapping[str, Memory] | None = None
    ) -> None:
        """`source` is where a new replica's weights are stored; `speeds` and `memories` come from an earlier
        controller."""
        self._pools: dict[str, _Pool] = {}
        self._source = source
        self._speeds = dict(speeds or {})
        self._memories = dict(memories or {})

    def speeds(self) -> dict[str, float]:
        """Return the tokens per second of a single stream by pool, as measured or else as an earlier controller saved
        them. They must be saved: under load they cannot be measured."""
        now = {name: pool.use.alone_tokens_per_s for name, pool in self._pools.items()}
        return self._speeds | {name: speed for name, speed in now.items() if speed > 0.0}

    def memories(self) -> dict[str, Memory]:
        """Return by pool what its forecast has learnt, also for pools that have left their policy. It must be saved:
        learning it again takes days."""
        return {name: Memory(pool.demand, pool.starts) for name, pool in self._pools.items()} | self._memories

    def step(
        self,
        report: PoolReport | None,
        policies: Iterable[AutoscalingEntry],
        admissions: Iterable[AdmissionEntry],
        sizes: Mapping[str, int],
        now_s: float,
        *,
        resting: Mapping[str, int] | None = None,
        reading: Set[str] = frozenset(),
    ) -> dict[str, DesiredSize]:
        """Return the desired size of each pool; call about once a second. A pool without any report so far is left
        out.

        `sizes` has the sizes requested until now; a pool that comes under a policy continues from there. `resting`
        counts the sleeping warm replicas that cannot be woken now (`decisions.autoscaling.accelerator_slots`).
        `reading` has the prefill pools. Without a report, or if the registry is not connected to the bus, the former
        signals grow old.
        """
        entries = {str(entry.pool): entry for entry in policies}
        admissions = tuple(admissions)
        is_heard = report is not None and report.bus_connected
        self._store_memories(self._pools.keys() - entries.keys())
        self._pools = {
            name: self._pools.get(name) or self._new_pool(name, sizes.get(name), now_s)
            for name in entries
            if is_heard or name in self._pools
        }
        for name, pool in self._pools.items():
            if report is not None and is_heard:
                self._observe_pool(pool, name, report, now_s, reads=name in reading)
            if pool.signals is not None:
                admission = most_specific(admissions, entries[name].pool, DEFAULT_ADMISSION)
                signals = _without_resting(pool.signals, (resting or {}).get(name, 0))
                pool.wanted = self._decide(pool, signals, entries[name], admission, now_s)
        return {name: pool.wanted for name, pool in self._pools.items() if pool.wanted is not None}

    # inside

    def _store_memories(self, gone: Set[str]) -> None:
        """Store what was learnt about pools that leave their policy, for example by a push and its revert. If there are
        too many, those observed last stay."""
        self._memories |= {name: Memory(self._pools[name].demand, self._pools[name].starts) for name in sorted(gone)}
        by_age = sorted(self._memories.items(), key=lambda each: each[1].demand.looked_s or 0.0)
        self._memories = dict(by_age[-MAX_REMEMBERED:])

    def _new_pool(self, name: str, size: int | None, now_s: float) -> _Pool:
        """Return the state of a pool that has just come under a policy, in this or an earlier controller. Reasons of an
        earlier controller are unknown, so the pool is not reduced during the quiet time."""
        memory = resume_memory(self._memories.pop(name, Memory()), now_s)
        quiet_until_s = now_s + max(QUIET_S, memory.starts.expected_s(self._source))
        state = ScalerState(desired=size, quiet_until_s=quiet_until_s)
        use = PoolUtilization(self._speeds.get(name, 0.0))
        return _Pool(state, use=use, demand=memory.demand, starts=memory.starts)

    def _observe_pool(self, pool: _Pool, name: str, report: PoolReport, now_s: float, *, reads: bool) -> None:
        replicas = replicas_of(report, name)
        pool.use = update_utilization(pool.use, replicas, now_s, reads=reads)
        pool.signals = pool_signals(replicas, report.pools.get(name), pool.use, now_s)
        told = [each.cold_start for each in replicas if each.cold_start]
        pool.cold_start = told[-1] if told else pool.cold_start
        self._time_starts(pool, {each.replica_id: each.phase for each in replicas}, now_s)

    def _decide(
        self, pool: _Pool, signals: PoolSignals, entry: AutoscalingEntry, admission: AdmissionEntry, now_s: float
    ) -> DesiredSize:
        rules = rules_of(admission)[_INTERACTIVE]
        policy = ScalePolicy.from_entry(entry, slo_s=rules.slo_s, startup_s=pool.starts.expected_s(self._source))
        is_due = pool.scaling is None or entry != pool.entry or now_s - pool.decided_s >= DECIDE_EVERY_S
        if pool.scaling is None or is_due or (signals.waking and not pool.scaling.desired):
            pool.demand = update_demand(pool.demand, signals, policy)
            pool.state, pool.scaling = decide(
                pool.state, policy, signals, now_s, forecast_demand(pool.demand, policy, now_s)
            )
            pool.entry, pool.decided_s = entry, now_s
        pool.ladder, rungs = ladder.step(pool.ladder, signals, _means(pool, policy, rules, signals), now_s)
        is_at_zero = not policy.min_replicas and not signals.ready  # a pool at zero cannot be overloaded
        rungs = OFF if is_at_zero else rungs
        replicas, cause, reason = _with_ladder(pool.scaling, rungs, signals, policy)
        if replicas > pool.scaling.desired:
            quiet_until_s = max(pool.state.quiet_until_s or 0.0, now_s + policy.quiet_after_growing_s)
            pool.state = replace(pool.state, desired=replicas, grew_s=now_s, quiet_until_s=quiet_until_s)
            pool.scaling = replace(pool.scaling, desired=replicas)
        before = pool.wanted
        since_s = before.since_unix_s if before is not None and before.replicas == replicas else now_s
        return DesiredSize(replicas, entry.warm, cause, reason, since_s, rungs.on, pool.cold_start)

    def _time_starts(self, pool: _Pool, phases: Mapping[str, str], now_s: float) -> None:
        """Record the time from when each replica was first seen starting until it is loaded; forget replicas that went
        away before."""
        for replica_id, since_s in list(pool.starting_since_s.items()):
            phase = phases.get(replica_id, "gone")
            if phase != "starting":
                del pool.starting_since_s[replica_id]
                if phase in ("ready", "warm"):
                    pool.starts = pool.starts.with_start(self._source, now_s - since_s)
        for replica_id, phase in phases.items():
            if phase == "starting" and len(pool.starting_since_s) < MAX_STARTING:
                pool.starting_since_s.setdefault(replica_id, now_s)


def _without_resting(signals: PoolSignals, resting: int) -> PoolSignals:
    """Return the signals with `resting` warm replicas fewer: sleeping ones that cannot be woken cannot be borrowed."""
    return replace(signals, warm=max(0, signals.warm - resting)) if resting else signals


def _means(pool: _Pool, policy: ScalePolicy, rules: BandRules, signals: PoolSignals) -> Means:
    return Means(
        wait_s=rules.max_wait_s,
        replica_tokens_per_s=pool.demand.replica_per_s,
        startable=max(0, policy.max_replicas - signals.ready - signals.starting),
        start_s=policy.startup_s,
    )


def _with_ladder(scaling: Scaling, rungs: Rungs, signals: PoolSignals, policy: ScalePolicy) -> tuple[int, str, str]:
    """Return the desired size, its cause and its reason: the overload ladder's if its active rungs want more replicas
    than the scaler, at most the policy's maximum; otherwise the scaler's."""
    acting = [rung for rung in rungs.on if rung in ("borrow", "provision") and rungs.strength(rung) > 0]
    wanted = min(policy.max_replicas, signals.ready + rungs.borrow + rungs.provision)
    if not acting or wanted <= scaling.desired:
        return scaling.desired, scaling.cause, scaling.reason
    return wanted, acting[-1], f"overload ladder: {rungs.why}"


@dataclass(frozen=True, slots=True)
class Policies:
    """Autoscaling and admission policies of one revision, and its prefill pools."""

    revision: str = ""
    scaling: tuple[AutoscalingEntry, ...] = ()
    admission: tuple[AdmissionEntry, ...] = ()
    reading: frozenset[str] = frozenset()

    @classmethod
    def of(cls, revision: str, loaded: Loaded) -> "Policies":
        return cls(
            revision,
            tuple(policy_entry(policy, autoscaling_entry) for policy in loaded.objects_of(AutoscalingPolicy)),
            tuple(policy_entry(policy, admission_entry) for policy in loaded.objects_of(AdmissionPolicy)),
            frozenset(
                each.value.pool for each in loaded.objects_of(InferenceService) if each.value.pool and each.value.role
            ),
        )

    def covers_pool(self, pool: str) -> bool:
        return any(entry.pool == pool for entry in self.scaling)


@dataclass(frozen=True, slots=True)
class PoolSize:
    """Size of a pool as status and `shoal status -o json` show it."""

    pool: str
    serving: int  # replicas requested to serve
    warm: int  # replicas requested to be warm
    desired: int | None  # size that the autoscaler wants; None: no AutoscalingPolicy, or still unknown
    cause: str
    reason: str
    since_unix_s: float | None
    rungs: tuple[str, ...]  # rungs of the overload ladder, as the controller sees it
    held: str  # reason why the size is not the desired one (yet)
    cold_start: Mapping[str, float]  # seconds by stage of the last measured start

    @classmethod
    def from_allocation(
        cls, pool: str, allocation: Allocation, wanted: DesiredSize | None, operators: int | None, held: str
    ) -> "PoolSize":
        if operators is not None:
            held = f"--replicas {operators} overrides the autoscaler"
        return cls(
            pool=pool,
            serving=allocation.serving,
            warm=len(allocation.standby),
            desired=wanted.replicas if wanted is not None else None,
            cause=wanted.cause if wanted is not None else "",
            reason=wanted.reason if wanted is not None else "",
            since_unix_s=wanted.since_unix_s if wanted is not None else None,
            rungs=wanted.rungs if wanted is not None else (),
            held=held,
            cold_start=wanted.cold_start if wanted is not None else {},
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
