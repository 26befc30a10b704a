"""Scaler of pools: applies the decision to each that an AutoscalingPolicy covers, and keeps its state.

One pass over a pool: 1. what is known of it, 2. what its past says of its future, 3. how many (`autoscaling.decide`),
4. what the overload ladder wants besides (borrow and provision; shed and shift are the gateways'), 5. why, for people.

The ladder speaks of now: what is ready, what it borrows, and what should be starting are the pool's size for as long as
it is in force. The scaler takes that over as its own, so that what was added goes by its rules, one replica at a time
after its quiet time, and not when the ladder is left.

All times are of the wall clock: forecasts know days and weeks, and what was asked for outlives a process.
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
from functions.controller.autoscaling.signals import PoolUse, observe, pool_signals, replicas_of
from functions.controller.snapshot.compile_policies import admission_entry, autoscaling_entry, mapped
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
DECIDE_EVERY_S = 15.0  # the ladder is asked each time
MAX_REMEMBERED = 64  # pools without a policy, or not heard of yet
MAX_STARTING = 1000  # replicas of one pool whose start is timed


@dataclass(frozen=True, slots=True)
class DesiredSize:
    """What is wanted of a pool, and why."""

    replicas: int  # that serve, or will as soon as they are there
    warm: int
    cause: str  # one of few words: a metric's label
    reason: str  # for people
    since_unix_s: float  # the number
    rungs: tuple[str, ...] = ()  # of the overload ladder, in force
    cold_start: Mapping[str, float] = field(default_factory=dict)  # the last one's, seconds by stage


@dataclass(slots=True)
class _Pool:
    state: ScalerState
    use: PoolUse = field(default_factory=PoolUse)
    demand: Demand = field(default_factory=Demand)
    ladder: LadderState = field(default_factory=LadderState)
    scaling: Scaling | None = None
    entry: AutoscalingEntry | None = None  # by which it was decided
    decided_s: float = 0.0
    signals: PoolSignals | None = None
    starts: StartupTimes = field(default_factory=StartupTimes)
    starting_since_s: dict[str, float] = field(default_factory=dict)  # by replica
    wanted: DesiredSize | None = None
    cold_start: Mapping[str, float] = field(default_factory=dict)


class Scaler:
    """Owned by one event loop; all it does is remember and ask."""

    def __init__(
        self, source: Source, speeds: Mapping[str, float] | None = None, memories: Mapping[str, Memory] | None = None
    ) -> None:
        """`source` is where a new replica's weights lie; `speeds` and `memories` an earlier controller has kept."""
        self._pools: dict[str, _Pool] = {}
        self._source = source
        self._speeds = dict(speeds or {})
        self._memories = dict(memories or {})

    def speeds(self) -> dict[str, float]:
        """By pool, tokens a second of a stream with nothing beside it: to be kept, since under load it is not seen."""
        now = {name: pool.use.alone_tokens_per_s for name, pool in self._pools.items()}
        return self._speeds | {name: speed for name, speed in now.items() if speed > 0.0}

    def memories(self) -> dict[str, Memory]:
        """By pool, what its forecast has learnt: to be kept, since days are not seen again within hours."""
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
        """About once a second. By pool; one of which nothing was heard yet is as it was, and not among them.

        `sizes` are what pools have been asked to be until now: one that comes under a policy goes on from there.
        `resting`: of the warm replicas, those that sleep and cannot be woken now
        (`decisions.autoscaling.accelerator_slots`). `reading`: prefill pools. Without a report, or with one of a
        registry that hears nobody, what was known before grows old."""
        entries = {str(entry.pool): entry for entry in policies}
        admissions = tuple(admissions)
        is_heard = report is not None and report.bus_connected
        self._remember(self._pools.keys() - entries.keys())
        self._pools = {
            name: self._pools.get(name) or self._begun(name, sizes.get(name), now_s)
            for name in entries
            if is_heard or name in self._pools
        }
        for name, pool in self._pools.items():
            if report is not None and is_heard:
                self._look(pool, name, report, now_s, reads=name in reading)
            if pool.signals is not None:
                admission = most_specific(admissions, entries[name].pool, DEFAULT_ADMISSION)
                signals = _without(pool.signals, (resting or {}).get(name, 0))
                pool.wanted = self._decide(pool, signals, entries[name], admission, now_s)
        return {name: pool.wanted for name, pool in self._pools.items() if pool.wanted is not None}

    # inside

    def _remember(self, gone: Set[str]) -> None:
        """Of pools that leave their policy, as for a push and its revert, what was learnt stays for when they return;
        of so many, those that were looked at last."""
        self._memories |= {name: Memory(self._pools[name].demand, self._pools[name].starts) for name in sorted(gone)}
        by_age = sorted(self._memories.items(), key=lambda each: each[1].demand.looked_s or 0.0)
        self._memories = dict(by_age[-MAX_REMEMBERED:])

    def _begun(self, name: str, size: int | None, now_s: float) -> _Pool:
        """A pool that has just come under a policy, or did so under an earlier controller, whose reasons are not known:
        nothing of it is taken away for the quiet time."""
        memory = resume_memory(self._memories.pop(name, Memory()), now_s)
        quiet_until_s = now_s + max(QUIET_S, memory.starts.expected_s(self._source))
        state = ScalerState(desired=size, quiet_until_s=quiet_until_s)
        use = PoolUse(self._speeds.get(name, 0.0))
        return _Pool(state, use=use, demand=memory.demand, starts=memory.starts)

    def _look(self, pool: _Pool, name: str, report: PoolReport, now_s: float, *, reads: bool) -> None:
        replicas = replicas_of(report, name)
        pool.use = observe(pool.use, replicas, now_s, reads=reads)
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
        is_at_zero = not policy.min_replicas and not signals.ready  # there is nothing that could be overloaded
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
        """How long a replica was seen starting, until it was loaded."""
        for replica_id, since_s in list(pool.starting_since_s.items()):
            phase = phases.get(replica_id, "gone")
            if phase != "starting":
                del pool.starting_since_s[replica_id]
                if phase in ("ready", "warm"):
                    pool.starts = pool.starts.with_start(self._source, now_s - since_s)
        for replica_id, phase in phases.items():
            if phase == "starting" and len(pool.starting_since_s) < MAX_STARTING:
                pool.starting_since_s.setdefault(replica_id, now_s)


def _without(signals: PoolSignals, resting: int) -> PoolSignals:
    """Nobody borrows a replica that cannot be woken."""
    return replace(signals, warm=max(0, signals.warm - resting)) if resting else signals


def _means(pool: _Pool, policy: ScalePolicy, rules: BandRules, signals: PoolSignals) -> Means:
    return Means(
        wait_s=rules.max_wait_s,
        replica_tokens_per_s=pool.demand.replica_per_s,
        startable=max(0, policy.max_replicas - signals.ready - signals.starting),
        start_s=policy.startup_s,
    )


def _with_ladder(scaling: Scaling, rungs: Rungs, signals: PoolSignals, policy: ScalePolicy) -> tuple[int, str, str]:
    """The larger of what the scaler and the ladder want; within the policy's bounds."""
    acting = [rung for rung in rungs.on if rung in ("borrow", "provision") and rungs.strength(rung) > 0]
    wanted = min(policy.max_replicas, signals.ready + rungs.borrow + rungs.provision)
    if not acting or wanted <= scaling.desired:
        return scaling.desired, scaling.cause, scaling.reason
    return wanted, acting[-1], f"overload ladder: {rungs.why}"


@dataclass(frozen=True, slots=True)
class Policies:
    """Autoscaling and admission policies of one revision, and which of its pools read prompts for others."""

    revision: str = ""
    scaling: tuple[AutoscalingEntry, ...] = ()
    admission: tuple[AdmissionEntry, ...] = ()
    reading: frozenset[str] = frozenset()

    @classmethod
    def of(cls, revision: str, loaded: Loaded) -> "Policies":
        return cls(
            revision,
            tuple(mapped(policy, autoscaling_entry) for policy in loaded.objects_of(AutoscalingPolicy)),
            tuple(mapped(policy, admission_entry) for policy in loaded.objects_of(AdmissionPolicy)),
            frozenset(
                each.value.pool for each in loaded.objects_of(InferenceService) if each.value.pool and each.value.role
            ),
        )

    def cover(self, pool: str) -> bool:
        return any(entry.pool == pool for entry in self.scaling)


@dataclass(frozen=True, slots=True)
class PoolSize:
    """Size of a pool as status and `shoal status -o json` show it."""

    pool: str
    serving: int  # that are asked to serve
    warm: int  # that are asked to be warm
    desired: int | None  # what the autoscaler wants; None: the pool has no AutoscalingPolicy, or nothing is known yet
    cause: str
    reason: str
    since_unix_s: float | None
    rungs: tuple[str, ...]  # of the overload ladder, as the controller sees it
    held: str  # why it is not (yet) what is wanted
    cold_start: Mapping[str, float]  # the last start that was measured, seconds by stage

    @classmethod
    def of(
        cls, pool: str, allocation: Allocation, wanted: DesiredSize | None, operators: int | None, held: str
    ) -> "PoolSize":
        if operators is not None:
            held = f"--replicas {operators} goes before the autoscaler"
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

    def plain(self) -> dict[str, Any]:
        return asdict(self)
