"""Scaling from zero and to zero, for policies with a minimum of 0. Pure functions.

    0 -> 1   requests wait for the pool: start one replica, however many wait, and no second one before it serves
    n -> 0   no requests for `idle_after_s`: all replicas are drained together; no scaleDown rule removes the last one

No requests means that none arrives, waits, or is in progress at any gateway. Unknown (no gateway reports) is not
idle. The idle time starts no earlier than a replica began to serve: a client that was told to retry must find the
replica. A start that never serves is abandoned after `idle_after_s` and two start-up times without a request.

Forecasts and rules do not apply here: the operator has decided that a first wait costs less than an idle accelerator,
and a forecast from few requests is mostly chance.

Worked example (test_worked_example_of_a_night): five requests come at 0 s for a pool without replicas: one replica.
It serves from 90 s on, the last answer ends at 200 s, `idleAfter` is 10 minutes: at 800 s the pool goes to zero.
"""

from dataclasses import dataclass
from typing import Literal

from functions.decisions.autoscaling.policy import ScalePolicy
from functions.decisions.autoscaling.signals import PoolSignals

LATE_STARTS = 2  # start-up times after which a start without waiting requests is abandoned


@dataclass(frozen=True, slots=True)
class Idleness:
    """State kept from one decision to the next."""

    since_s: float | None = None  # start of the time without requests
    serves_since_s: float | None = None  # start of the time with a ready replica


@dataclass(frozen=True, slots=True)
class AtZero:
    replicas: int
    cause: Literal["demand", "idle", "waiting"]
    reason: str


def update_idleness(idleness: Idleness, signals: PoolSignals, now_s: float) -> Idleness:
    """Return the idleness after one more period of signals: since when the pool has been idle, and since when a replica
    has served (None: not now)."""
    since_s = now_s if idleness.since_s is None else idleness.since_s
    serves_s = now_s if idleness.serves_since_s is None else idleness.serves_since_s
    return Idleness(since_s if _is_idle(signals) else None, serves_s if signals.ready else None)


def decide_near_zero(
    idleness: Idleness, policy: ScalePolicy, signals: PoolSignals, current: int, now_s: float
) -> AtZero | None:
    """Return the replicas of a pool that is empty, has only its first start, or is idle; None leaves it to the rules.

    `current` is the number of replicas wanted now.
    """
    if current == 0:
        if signals.waking:
            return AtZero(1, "demand", f"{_requests(signals.waking)}: the pool starts from zero")
        return AtZero(0, "idle", "no replicas: the next request starts one")
    if _idle_s(idleness, now_s) >= _allowed_s(idleness, policy):
        return AtZero(0, "idle", f"no requests for {_idle_s(idleness, now_s):.0f} s: the pool scales to zero")
    if current == 1 and not signals.ready:
        return AtZero(1, "waiting", "the first replica is starting")
    return None


def _is_idle(signals: PoolSignals) -> bool:
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
