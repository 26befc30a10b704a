"""One step of a process's life: (state, event, now) -> (state, actions). Pure.

The meaning of an event depends on the phase. If it has none (a probe that returns after the process died), the state
does not change. `lifecycle`'s table decides which phase may follow which.
"""

from dataclasses import replace

from functions.controller.local.lifecycle import (
    RUNNING,
    SERVING,
    Action,
    Adopted,
    Event,
    Exited,
    GroupSwept,
    HandedOver,
    LivenessProbed,
    Permitted,
    ProcessState,
    ReadinessProbed,
    Spawned,
    SpawnFailed,
    StartRequested,
    StopRequested,
    TakeoverFailed,
    TakeoverStarted,
    Ticked,
)
from functions.controller.local.spec import Timing
from functions.decisions.health.backoff import BackoffPolicy, delay_s, failures_after

KILL_AGAIN_AFTER_S = 5.0  # a process that outlives SIGKILL (uninterruptible sleep) is killed again

Step = tuple[ProcessState, tuple[Action, ...]]


def step(state: ProcessState, event: Event, now_s: float, timing: Timing, backoff: BackoffPolicy) -> Step:
    match event:
        case Spawned() | Adopted() | SpawnFailed() | Exited() | GroupSwept():
            return _process_event(state, event, now_s, timing, backoff)
        case ReadinessProbed(ok=ok, detail=detail):
            return _readiness(state, ok, detail, now_s), ()
        case LivenessProbed():
            return _liveness(state, event, now_s, timing)
        case Ticked():
            return _tick(state, now_s, timing)
        case _:
            return _request(state, event, now_s, timing)


def _process_event(
    state: ProcessState,
    event: Spawned | Adopted | SpawnFailed | Exited | GroupSwept,
    now_s: float,
    timing: Timing,
    backoff: BackoffPolicy,
) -> Step:
    match event:
        case Spawned(pid=pid):
            return replace(state, pid=pid), ()
        case Adopted(pid=pid, restarts=restarts):
            started, _ = _start(state, now_s, timing)
            return replace(started, pid=pid, restarts=restarts, ever_ready=True, reason="adopted"), ()
        case SpawnFailed(reason=reason):
            return _crash(state, reason, now_s, backoff)
        case Exited(how=how):
            return _exit(state, how, now_s, backoff)
        case GroupSwept():
            return _swept(state, now_s, backoff)


def _request(
    state: ProcessState,
    event: Permitted | StopRequested | StartRequested | TakeoverStarted | HandedOver | TakeoverFailed,
    now_s: float,
    timing: Timing,
) -> Step:
    match event:
        case Permitted():
            return _start(state, now_s, timing) if state.phase == "pending" else (state, ())
        case StopRequested():
            return _stop(state, event, now_s, timing)
        case StartRequested():
            return _start_again(state, now_s, timing)
        case TakeoverStarted():
            return replace(state, superseded=True), ()
        case HandedOver():
            return _hand_over(state, now_s, timing), ()
        case TakeoverFailed():
            return replace(state, superseded=False), ()


def _hand_over(state: ProcessState, now_s: float, timing: Timing) -> ProcessState:
    if state.phase not in SERVING:
        return state
    draining = state.moved("draining", now_s, "handed over; finishing open requests")
    return replace(draining, superseded=True, removed=True, deadline_s=now_s + timing.handover_drain_s)


def _start_again(state: ProcessState, now_s: float, timing: Timing) -> Step:
    if state.phase == "stopped":
        return replace(state.moved("pending", now_s), failures=0, restarts=state.restarts + 1), ()
    if state.phase == "backoff":
        return _start(replace(state, failures=0), now_s, timing)
    return state, ()


def _start(state: ProcessState, now_s: float, timing: Timing) -> Step:
    started = replace(
        state.moved("starting", now_s),
        pid=None,
        ready_since_s=None,
        not_live_since_s=None,
        deadline_s=now_s + timing.start_s,
        restarts=state.restarts + (1 if state.phase == "backoff" else 0),
    )
    return started, ("spawn",)


def _readiness(state: ProcessState, ok: bool, detail: str, now_s: float) -> ProcessState:
    if ok and state.phase in ("starting", "unready"):
        since_s = state.ready_since_s if state.ready_since_s is not None else now_s
        return replace(state.moved("ready", now_s), ever_ready=True, ready_since_s=since_s)
    if not ok and state.phase == "ready":
        return state.moved("unready", now_s, detail)
    if not ok and state.phase in ("starting", "unready"):
        return replace(state, reason=detail)
    return state


def _liveness(state: ProcessState, probed: LivenessProbed, now_s: float, timing: Timing) -> Step:
    """Return the state after a liveness probe, and kill the group once failures lasted `liveness_failing_s`. Failures
    count only after the process was ready in this run; `start_s` limits a slow start. Time that the process waited for
    a processor (`starved_s`) is deducted."""
    if state.phase not in ("ready", "unready"):
        return state, ()
    if probed.ok:
        return replace(state, not_live_since_s=None), ()
    since_s = now_s
    if state.not_live_since_s is not None:
        since_s = min(now_s, state.not_live_since_s + probed.starved_s)
    if now_s - since_s < timing.liveness_failing_s:
        return replace(state, not_live_since_s=since_s), ()
    # Counting starts over, so the kill is repeated only if the process still exists after another whole period.
    return replace(state, not_live_since_s=None, reason=f"not live: {probed.detail}"), ("kill_group",)


def _exit(state: ProcessState, how: str, now_s: float, backoff: BackoffPolicy) -> Step:
    if state.phase not in RUNNING:
        return state, ()
    if state.phase == "draining":
        return replace(state, last_exit=how, deadline_s=None), ("sweep_group",)
    if state.superseded:
        return replace(state.moved("draining", now_s, "handed over"), last_exit=how), ("sweep_group",)
    return _crash(state, how, now_s, backoff)


def _crash(state: ProcessState, how: str, now_s: float, backoff: BackoffPolicy) -> Step:
    healthy_s = now_s - state.ready_since_s if state.ready_since_s is not None else 0.0
    reason = f"{state.reason}; {how}" if state.reason.startswith("not ") else how
    crashed = replace(
        state.moved("crashed", now_s, reason),
        last_exit=how,
        failures=failures_after(state.failures, healthy_s, backoff),
    )
    return crashed, ("sweep_group",)


def _swept(state: ProcessState, now_s: float, backoff: BackoffPolicy) -> Step:
    if state.phase == "crashed":
        waiting = replace(state.moved("backoff", now_s, state.reason), pid=None)
        return replace(waiting, retry_at_s=now_s + delay_s(max(1, state.failures), backoff)), ()
    if state.phase == "draining":
        return replace(state.moved("stopped", now_s), pid=None, ready_since_s=None, not_live_since_s=None), ()
    return state, ()


def _stop(state: ProcessState, event: StopRequested, now_s: float, timing: Timing) -> Step:
    state = replace(state, removed=event.remove or state.removed)
    if state.phase in ("pending", "backoff", "crashed"):
        actions: tuple[Action, ...] = ("sweep_group",) if state.phase == "crashed" else ()
        return replace(state.moved("stopped", now_s), pid=None), actions
    if state.phase in SERVING:
        return replace(state.moved("draining", now_s), deadline_s=now_s + timing.drain_s), ("terminate",)
    # it could finish its requests without a limit; from now on it cannot
    if state.phase == "draining" and state.superseded:
        return replace(state, superseded=False, deadline_s=now_s + timing.drain_s), ("terminate",)
    return state, ()


def _tick(state: ProcessState, now_s: float, timing: Timing) -> Step:
    if state.phase == "backoff" and state.retry_at_s is not None and now_s >= state.retry_at_s:
        return _start(state, now_s, timing)
    if state.deadline_s is None or now_s < state.deadline_s:
        return state, ()
    if state.phase == "starting":
        late = f"not ready after {timing.start_s:.0f} s ({state.reason or 'no answer'})"
        return replace(state, deadline_s=now_s + KILL_AGAIN_AFTER_S, reason=late), ("kill_group",)
    if state.phase == "draining":
        return replace(state, deadline_s=now_s + KILL_AGAIN_AFTER_S), ("kill_group",)
    return state, ()
