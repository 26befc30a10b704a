"""Scaling from zero and to zero, where a policy's least is 0. Pure.

    0 -> 1   somebody waits for the pool: one replica, however many wait, and no second one before that serves
    n -> 0   nobody has asked for `idle_after_s`: all of them at once, each drained; no scaleDown rule takes the last

Nobody asks: no request arrives, waits, or is under way at any gateway. What is not known (no gateway speaks) is not
idle. The time counts from when the pool last had a replica that serves: what was started for a client who was told to
come back must be there when it does. A start that never comes to serve is given up after `idle_after_s` and two
start-up times without a request.

Forecasts and rules have no say here: a pool sleeps because an operator said that a first wait costs less than an idle
accelerator, and what is foreseen of few requests is mostly chance.

Worked example (test_worked_example_of_a_night): five requests come at 0 s for a pool with nothing: one replica. It
serves from 90 s on, the last answer ends at 200 s, `idleAfter` is 10 minutes: at 800 s the pool goes to zero.
"""

from dataclasses import dataclass
from typing import Literal

from functions.decisions.autoscaling.policy import ScalePolicy
from functions.decisions.autoscaling.signals import PoolSignals

LATE_STARTS = 2  # start-up times after which a start that nobody waits for any more is given up


@dataclass(frozen=True, slots=True)
class Idleness:
    """What is remembered from one look to the next."""

    since_s: float | None = None  # nobody has asked
    serves_since_s: float | None = None  # some replica


@dataclass(frozen=True, slots=True)
class AtZero:
    replicas: int
    cause: Literal["demand", "idle", "waiting"]
    reason: str


def watched(idleness: Idleness, signals: PoolSignals, now_s: float) -> Idleness:
    """One look more."""
    since_s = now_s if idleness.since_s is None else idleness.since_s
    serves_s = now_s if idleness.serves_since_s is None else idleness.serves_since_s
    return Idleness(since_s if _nobody_asks(signals) else None, serves_s if signals.ready else None)


def at_zero(idleness: Idleness, policy: ScalePolicy, signals: PoolSignals, current: int, now_s: float) -> AtZero | None:
    """What a pool with nothing, with only its first start, or without requests is to have; None: the rules decide.

    `current`: replicas that are wanted as of now."""
    if current == 0:
        if signals.waking:
            return AtZero(1, "demand", f"{_requests(signals.waking)} for it: it is started from zero")
        return AtZero(0, "idle", "asleep: the next request starts it")
    if _idle_s(idleness, now_s) >= _allowed_s(idleness, policy):
        return AtZero(0, "idle", f"nobody has asked for {_idle_s(idleness, now_s):.0f} s: it goes to zero")
    if current == 1 and not signals.ready:
        return AtZero(1, "waiting", "its first replica is being started")
    return None


def _nobody_asks(signals: PoolSignals) -> bool:
    if signals.arrivals_per_s is None or signals.queued_tokens is None:
        return False
    return not (signals.arrivals_per_s or signals.queued_tokens or signals.waking or signals.open_requests)


def _idle_s(idleness: Idleness, now_s: float) -> float:
    if idleness.since_s is None:
        return 0.0
    return now_s - max(idleness.since_s, idleness.serves_since_s or idleness.since_s)


def _allowed_s(idleness: Idleness, policy: ScalePolicy) -> float:
    starting_s = LATE_STARTS * policy.startup_s if idleness.serves_since_s is None else 0.0
    return policy.idle_after_s + starting_s


def _requests(count: int) -> str:
    return "a request waits" if count == 1 else f"{count} requests wait"
