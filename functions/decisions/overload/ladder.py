"""The overload ladder: shed, shift, borrow, provision; cheapest first, undone in the reverse order.

    shed        lower bands are rejected first, light tenants wait less: immediate, but requests are rejected
    shift       other models or other pools answer: immediate, but clients may get another model than they requested
    borrow      warm replicas receive traffic: within a second, but the warm pool is smaller
    provision   new replicas are started: minutes, and accelerators

`step` is called about once a second, by each gateway for its own part (shed and shift) and by the controller for the
pool (borrow and provision). The pool is strained if the next interactive request would wait for half of its maximum
wait, or is rejected for lack of room. It is calm if the offered load (including rejected and shifted requests) is at
most nine tenths of what the ready replicas do, and the wait is below a quarter. Between the two, nothing changes.

    up      one rung after CLIMB_S of strain while the rungs in force do not carry the excess (`ladder_formulas`), or
            after SETTLE_S although they do: no request is rejected for long while another means exists. A rung without
            means (no fallback, nothing warm) is skipped.
    early   provisioning helps only after minutes. It starts early, while shed is in force, if shift and borrow will
            foreseeably not be enough until then: if the load that they leave needs more replicas than are ready,
            starting or warm. The number started is enough for the whole load, since shifted requests should return.
    down    one rung after its own quiet time of calm, provision 60 s, borrow 30 s, shift 10 s, shed 5 s; twice as
            long, up to eight times, if the ladder was needed again within RELAPSE_S.

Worked example (test_worked_example_of_the_ladder): 4 replicas do 5,000 tokens a second each, 100,000 arrive; two are
warm, a fallback accepts half, a start takes 300 s. Strained from 10 s on: shed is in force at 11 s, shift at 12 s,
borrow (both) at 13 s, and provision at 14 s, foreseen since 12 s: the half that stays needs 13 replicas, and 6 are
there. The whole load needs 25: 19 are started.

So each rung turns on at most once in its quiet time, whatever the signals do: nothing flaps. An unknown signal (None)
changes nothing and requests nothing new. At every step the figures determine the load of each rung, which may be zero.

Neighbours: `ladder_formulas`; `gateway_share` calls `step` for a gateway's pool, the controller for whole pools.
"""

from dataclasses import dataclass, replace
from math import exp
from typing import Literal

from functions.decisions.admission.bands import BATCH_FLOOR_RATIO
from functions.decisions.autoscaling.signals import PoolSignals
from functions.decisions.overload.ladder_formulas import excess_ratio, floor_ratios, kept_ratios, replicas_wanted

RungName = Literal["shed", "shift", "borrow", "provision"]
RUNGS: tuple[RungName, ...] = ("shed", "shift", "borrow", "provision")
QUIET_S = (5.0, 10.0, 30.0, 60.0)  # calm time after which the rung is left
CLIMB_S = 1.0
SETTLE_S = 5.0
FORESEE_S = 2.0
RELAPSE_S = 300.0
MAX_PATIENCE = 8
_BUSY_RATIO = 0.6  # a pool that rejects at this utilization shows its real rate
_STRAINED_RATIO, _CALM_RATIO = 0.5, 0.25  # shares of the maximum wait
_CALM_LOAD_RATIO = 0.9
REFUSED_RATIO = 0.01  # smaller shares of rejected requests are chance
_RISE_S, _FALL_S = 2.0, 10.0  # time constants for smoothing the offered load
_SHED, _SHIFT, _BORROW, _PROVISION = range(4)
_NO_BANDS = (1.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Means of one pool against overload, and its limits."""

    wait_s: float  # maximum wait of an interactive request for room
    replica_tokens_per_s: float | None = None  # rate of a full ready replica, in the unit of the signals
    band_ratios: tuple[float, ...] = _NO_BANDS  # share of each band in the arriving load
    share_ratios: tuple[float, ...] = (0.6, 0.3, BATCH_FLOOR_RATIO)  # share of the pool per band, even in overload
    shiftable_ratio: float = 0.0  # share of the arriving load that other pools would accept now
    startable: int = 0  # replicas that may still be started
    start_s: float = 300.0  # time until a started replica helps
    expected_tokens_per_s: float | None = None  # forecast load at that time; None: no forecast


@dataclass(frozen=True, slots=True)
class LadderState:
    """State of one pool's ladder, as one observer knows it. Times are monotonic seconds."""

    level: int = 0  # number of rungs in force, from the cheapest on
    early: bool = False  # provision is in force before its turn
    since_s: float = 0.0  # start of the level
    strained_s: float | None = None  # start of the strain; None: not strained
    calm_s: float | None = None
    foreseen_s: float | None = None
    seen_s: float | None = None
    tokens_per_s: float = 0.0  # offered load, smoothed
    patience: int = 1  # factor of the quiet times
    left_s: float | None = None  # time at which the last rung was last left


@dataclass(frozen=True, slots=True)
class Rungs:
    """Rungs in force, and what each should do now."""

    on: tuple[RungName, ...] = ()
    kept_ratios: tuple[float, ...] = (1.0, 1.0, 1.0)  # shed: share of each band's requests to admit
    shift_ratio: float = 0.0  # share of all arriving requests to send to other pools
    borrow: int = 0  # warm replicas to promote now
    provision: int = 0  # replicas that should be starting, including those that already are
    excess_ratio: float = 0.0  # share of the load that the ready replicas cannot do in time
    why: str = ""

    def strength(self, rung: RungName) -> float:
        """Return how much the rung carries: a share of the requests for shed and shift, a number of replicas for borrow
        and provision."""
        if rung == "shed":
            return 1.0 - min(self.kept_ratios)
        if rung == "shift":
            return self.shift_ratio
        return float(self.borrow if rung == "borrow" else self.provision)


OFF = Rungs()


@dataclass(frozen=True, slots=True)
class _Carried:
    """Distribution of the excess over the rungs, as if all of them were in force."""

    excess: float
    kept: tuple[float, ...]
    after_shed: float
    shift: float
    after_shift: float
    borrow: int
    provision: int
    not_enough: bool  # shift and borrow do not carry the load until started replicas help


def step(state: LadderState, signals: PoolSignals, means: Means, now_s: float) -> tuple[LadderState, Rungs]:
    """Advance the ladder by one observation, and return the new state and rungs. Without load signals the rungs in
    force stay."""
    if signals.queue_seconds is None or signals.arriving_tokens_per_s is None:
        state = replace(state, strained_s=None, calm_s=None, foreseen_s=None)
        return state, Rungs(_in_force(state, _has_means(signals, means)), why="unknown: no recent load signals")
    state = _offered(state, signals.arriving_tokens_per_s, now_s)
    carried = _carry(state, signals, means)
    state = _timers(state, signals, means, carried, now_s)
    usable = _has_means(signals, means)
    state = _climb(state, carried, usable, now_s)
    state = _descend(state, usable, now_s)
    return state, _rungs(state, signals, means, carried, usable)


def _offered(state: LadderState, tokens_per_s: float, now_s: float) -> LadderState:
    """Return the state with the smoothed offered load, which follows a rise faster than a fall."""
    if state.seen_s is None:
        return replace(state, tokens_per_s=tokens_per_s, seen_s=now_s, since_s=now_s)
    over_s = _RISE_S if tokens_per_s > state.tokens_per_s else _FALL_S
    part = 1.0 - exp(-max(0.0, now_s - state.seen_s) / over_s)
    return replace(state, tokens_per_s=state.tokens_per_s + part * (tokens_per_s - state.tokens_per_s), seen_s=now_s)


def _carry(state: LadderState, signals: PoolSignals, means: Means) -> _Carried:
    rate, offered = _rate(signals, means), state.tokens_per_s
    if not rate:  # the size of the excess is unknown
        return _Carried(
            0.0, (1.0,) * len(means.band_ratios), 0.0, 0.0, 0.0, min(1, signals.warm), signals.starting, False
        )
    capacity = signals.ready * rate
    excess = excess_ratio(offered, capacity, signals.foreground_queued_tokens or 0.0, means.wait_s)
    floors = floor_ratios(means.share_ratios, means.band_ratios, capacity / offered if offered else 1.0)
    kept, after_shed = kept_ratios(excess, means.band_ratios, floors)
    shift = min(after_shed, means.shiftable_ratio)
    now_wanted = replicas_wanted(offered, rate)
    then = max(offered, means.expected_tokens_per_s or 0.0)
    borrow = min(signals.warm, max(0, now_wanted - signals.ready))
    missing = max(0, replicas_wanted(then, rate) - signals.ready - borrow)
    not_enough = replicas_wanted(then * (1.0 - shift), rate) > signals.ready + signals.starting + signals.warm
    return _Carried(
        excess, kept, after_shed, shift, after_shed - shift, borrow,
        min(missing, signals.starting + means.startable), not_enough,
    )  # fmt: skip


def _rate(signals: PoolSignals, means: Means) -> float | None:
    """Return a replica's learnt rate in tokens per second (None: unknown), but not more than a full pool that rejects
    requests shows.

    A pool is full if its utilization is three fifths or more, or requests wait. Shed and shift keep a full pool's use
    below what it can do (test_spike_under_shed_provisions_replicas). An idle pool that rejects does not show its rate.

    Worked example (test_refusing_pool_reveals_its_rate): of 90 requests a second, 54,000 tokens, 27 are
    rejected and 15 shifted. 4 replicas do 54,000 x 48 / 90 / 4 = 7,200 each, though 10,000 were learnt when they were
    half idle.
    """
    rate, arrivals = means.replica_tokens_per_s, signals.arrivals_per_s or 0.0
    is_full = (signals.utilization_ratio or 0.0) >= _BUSY_RATIO or _waits(signals, means)
    if signals.degraded_per_s is None or not signals.ready or not arrivals or not (is_full and _refuses(signals)):
        return rate
    shed = max(signals.shed_per_s or 0.0, signals.overflow_per_s or 0.0)
    taken_ratio = max(0.0, 1.0 - (shed + signals.degraded_per_s) / arrivals)
    seen = (signals.arriving_tokens_per_s or 0.0) * taken_ratio / signals.ready
    return min(rate or seen, seen) or rate


def _waits(signals: PoolSignals, means: Means) -> bool:
    return (signals.queue_seconds or 0.0) >= _STRAINED_RATIO * means.wait_s


def _refuses(signals: PoolSignals) -> bool:
    """Return True if the pool rejects requests for lack of room, and more than by chance."""
    return (signals.overflow_per_s or 0.0) > REFUSED_RATIO * (signals.arrivals_per_s or 0.0)


def _has_means(signals: PoolSignals, means: Means) -> tuple[bool, bool, bool, bool]:
    return True, means.shiftable_ratio > 0.0, signals.warm > 0, means.startable + signals.starting > 0


def _timers(
    state: LadderState, signals: PoolSignals, means: Means, carried: _Carried, now_s: float
) -> LadderState:  # fmt: skip
    wait_s, rate = signals.queue_seconds or 0.0, _rate(signals, means)
    refused = _refuses(signals)
    too_much = carried.excess > 0.0 if rate else refused
    strained = _waits(signals, means) or (refused and too_much) or (state.level > 0 and too_much)
    fits = not rate or state.tokens_per_s <= _CALM_LOAD_RATIO * signals.ready * rate
    calm = not strained and fits and wait_s < _CALM_RATIO * means.wait_s
    foreseen = state.level > 0 and carried.not_enough and means.start_s > SETTLE_S
    return replace(
        state,
        strained_s=_since(state.strained_s, strained, now_s),
        calm_s=_since(state.calm_s, calm, now_s),
        foreseen_s=_since(state.foreseen_s, foreseen, now_s),
    )


def _since(former_s: float | None, holds: bool, now_s: float) -> float | None:
    if not holds:
        return None
    return now_s if former_s is None else former_s


def _climb(state: LadderState, carried: _Carried, usable: tuple[bool, ...], now_s: float) -> LadderState:
    early = state.early or (state.foreseen_s is not None and now_s - state.foreseen_s >= FORESEE_S)
    state = replace(state, early=early)
    if state.strained_s is None or now_s - max(state.strained_s, state.since_s) < CLIMB_S:
        return state
    is_carried = state.level > _SHED and _left_over(state.level, carried) <= 0.0
    if is_carried and now_s - state.since_s < SETTLE_S:
        return state
    upper = next((rung for rung in range(state.level, len(RUNGS)) if usable[rung]), None)
    if upper is None:
        return state
    if state.level == 0:
        relapsed = state.left_s is not None and now_s - state.left_s < RELAPSE_S
        state = replace(state, patience=min(MAX_PATIENCE, 2 * state.patience) if relapsed else 1)
    return replace(state, level=upper + 1, since_s=now_s)


def _left_over(level: int, carried: _Carried) -> float:
    """Return the excess that the rungs in force do not carry; 1 if the excess is 0 or unknown."""
    if not carried.excess:
        return 1.0
    return carried.after_shed if level == _SHED + 1 else carried.after_shift


def _descend(state: LadderState, usable: tuple[bool, ...], now_s: float) -> LadderState:
    if state.calm_s is None or (not state.level and not state.early):
        return state
    top = _PROVISION if state.early else state.level - 1
    quiet_since_s = max(state.calm_s, state.since_s)
    if usable[top] and now_s - quiet_since_s < QUIET_S[top] * state.patience:
        return state
    level = top if state.level > top else state.level
    state = replace(state, level=level, early=False, since_s=now_s)
    return replace(state, left_s=now_s) if level == 0 else state


def _in_force(state: LadderState, usable: tuple[bool, ...]) -> tuple[RungName, ...]:
    return tuple(
        name
        for rung, name in enumerate(RUNGS)
        if usable[rung] and (rung < state.level or (rung == _PROVISION and state.early))
    )


def _rungs(
    state: LadderState, signals: PoolSignals, means: Means, carried: _Carried, usable: tuple[bool, ...]
) -> Rungs:  # fmt: skip
    on = _in_force(state, usable)
    if not on:
        return OFF
    rate = _rate(signals, means)
    can = f"{signals.ready * rate:,.0f}" if rate else "an unknown number of"
    return Rungs(
        on,
        carried.kept if "shed" in on else (1.0,) * len(carried.kept),
        carried.shift if "shift" in on else 0.0,
        carried.borrow if "borrow" in on else 0,
        carried.provision if "provision" in on else 0,
        carried.excess,
        f"{state.tokens_per_s:,.0f} tokens/s are offered, {signals.ready} replicas do {can}; "
        f"the next one waits {signals.queue_seconds or 0.0:.2f} s of {means.wait_s:.2f} s",
    )
