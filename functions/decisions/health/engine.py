"""Engine health: starting, ready, hung or dead, judged once a second.

Evidence is the answer of /health, the counters in /metrics, and shoal's own one-token probes. The rules:

* dead: the connection is refused, or /health answers 503 (vLLM's API server outlived its engine core).
* hung: the port is open, but for `silent_after_s` neither /health nor /metrics nor a probe answered; or work is
  pending and for `stalled_after_s` no counter moved; or the one-token probes fail. vLLM's /health answers 200 for a
  hung core, so without traffic only a probe can tell.
* slow is not hung: as long as one counter moves while work is pending, the engine stays ready. So does an engine that
  warms up: it compiles, and its step loop makes no progress during that time.
* starting, hung and dead engines become ready when a probe is answered afterwards.

Worked example (test_worked_example_of_a_stopped_engine): ready and idle, probed every 3 s; stopped at t=0.5 s. At t=3
the probe goes unanswered, /health times out from t=1, and at t=4 there was no answer for 4 s: hung. Continued at
t=20, the pending probe is answered: ready at the next tick.
"""

from dataclasses import dataclass, replace
from typing import Literal

EnginePhase = Literal["starting", "ready", "hung", "dead"]
Cause = Literal["", "refused", "unwell", "start_timed_out", "silent", "stalled", "probes_fail"]
HealthAnswer = Literal["ok", "refused", "timed_out", "unwell"]
ProbeState = Literal["none", "pending", "answered", "busy", "failed", "timed_out"]


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    silent_after_s: float = 4.0
    """Four unanswered one-second checks in a row: longer than a garbage collection or one long tokenisation."""
    stalled_after_s: float = 6.0
    """Longer than any one step: 2,048 prompt tokens take 2-4 s on a busy CPU, a tenth of that on a GPU."""
    suspect_after_s: float = 2.0
    """Time of pending work without progress after which a probe is sent."""
    idle_probe_interval_s: float = 3.0
    """An idle engine gives no evidence; one token every 3 s is under 2 % of a CPU replica."""
    recovery_probe_interval_s: float = 1.0
    """Interval while the engine is starting or hung: each second until it answers is lost capacity."""
    probe_failures: int = 2
    """One failed probe may be chance; after two in a row the engine cannot generate."""
    start_timeout_s: float = 600.0
    """vLLM's own VLLM_ENGINE_READY_TIMEOUT_S: an engine that is loading must not be killed earlier."""
    condemn_hung_after_s: float = 30.0
    """A stopped process that continues within this time costs nothing; a restart costs its start time."""
    condemn_unwell_after_s: float = 8.0
    """vLLM's watchdog ends a server with a dead core within 5 s; after that the server must be killed."""
    verdict_s: float = 15.0
    """Time for which an engine that never started stays condemned, before its successor gets a full start timeout."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters that move when the engine works. They fall to zero with a restart, which counts as movement."""

    prompt_tokens: float
    generation_tokens: float
    steps: float


@dataclass(frozen=True, slots=True)
class Probe:
    """The latest one-token probe. Times are monotonic seconds."""

    state: ProbeState = "none"
    started_s: float = 0.0
    ended_s: float = 0.0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence of one tick. `counters` is None if /metrics did not answer."""

    health: HealthAnswer
    counters: Counters | None
    outstanding: int  # running + waiting, from the last readable metrics
    probe: Probe
    warming: bool = False  # the engine runs requests that make it compile: constant counters mean nothing then


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """Health of one engine, and the state for the next tick. Updated by `judge`."""

    phase: EnginePhase
    cause: Cause  # cause of hung or dead; a metric label
    reason: str  # the cause as a sentence
    since_s: float  # start of this phase with this cause
    heard_s: float  # time of the last answer of any kind
    moved_s: float  # time of the last progress, or of the last tick without pending work
    counters: Counters | None = None
    probe_failures: int = 0
    probe_counted_s: float = 0.0  # end of the last counted probe


def initial_health(now_s: float) -> EngineHealth:
    """Return the health of an engine without evidence: starting."""
    return EngineHealth("starting", "", "the engine has not answered yet", now_s, heard_s=now_s, moved_s=now_s)


def judge(before: EngineHealth, evidence: Evidence, now_s: float, policy: HealthPolicy) -> EngineHealth:
    """Return the engine's health after one more tick of evidence."""
    seen = _with_evidence(before, evidence, now_s)
    if evidence.health == "unwell":
        return _enter(seen, "dead", "unwell", "/health answers 503: the engine core has died", now_s)
    if evidence.health == "refused":
        if seen.phase in ("ready", "hung"):
            return _enter(seen, "dead", "refused", "connection refused: no process is listening", now_s)
        return _start_clock(seen, now_s, policy)
    if seen.phase == "dead" and seen.cause != "start_timed_out":
        seen = _enter(seen, "starting", "", "the engine accepts connections again", now_s)
    if seen.phase == "ready":
        return _still_ready(seen, evidence, now_s, policy)
    if _proven_since(seen, evidence):
        return replace(_enter(seen, "ready", "", "", now_s), moved_s=now_s)
    return _start_clock(seen, now_s, policy)


def probe_due(health: EngineHealth, evidence: Evidence, now_s: float, policy: HealthPolicy) -> bool:
    """Return True if a one-token probe should be sent now: at intervals that depend on the engine's health, and never
    while one is pending or the engine refuses connections."""
    if evidence.probe.state == "none":
        return evidence.health != "refused"
    if evidence.probe.state == "pending" or evidence.health == "refused":
        return False
    since_probe_s = now_s - max(evidence.probe.started_s, evidence.probe.ended_s)
    suspicious = evidence.health != "ok" or now_s - health.moved_s >= policy.suspect_after_s
    if health.phase != "ready" or suspicious or health.probe_failures:
        return since_probe_s >= policy.recovery_probe_interval_s
    return evidence.outstanding == 0 and since_probe_s >= policy.idle_probe_interval_s


def condemned(health: EngineHealth, now_s: float, policy: HealthPolicy) -> str:
    """Return why the engine should be killed and restarted, or "" if it should not.

    An engine that refuses connections is usually gone, which its supervisor sees better. Killing on that evidence
    alone would hit a successor that is still starting.
    """
    in_phase_s = now_s - health.since_s
    if health.phase == "hung" and in_phase_s >= policy.condemn_hung_after_s:
        return f"hung for {in_phase_s:.0f} s: {health.reason}"
    if health.cause == "unwell" and in_phase_s >= policy.condemn_unwell_after_s:
        return health.reason
    return health.reason if health.cause == "start_timed_out" else ""


def _with_evidence(before: EngineHealth, evidence: Evidence, now_s: float) -> EngineHealth:
    """Return the health with answers, counters and the end of the latest probe recorded; the phase stays."""
    probe = evidence.probe
    ended = probe.state not in ("none", "pending") and probe.ended_s > before.probe_counted_s
    answered = ended and probe.state == "answered"
    moved = evidence.counters is not None and before.counters is not None and evidence.counters != before.counters
    heard = (
        evidence.health in ("ok", "unwell") or evidence.counters is not None or (ended and probe.state != "timed_out")
    )
    pending = evidence.outstanding > 0 or probe.state in ("pending", "timed_out")
    failures = before.probe_failures + int(ended and probe.state == "failed")
    return replace(
        before,
        heard_s=now_s if heard else before.heard_s,
        moved_s=now_s if moved or answered or not pending or evidence.warming else before.moved_s,
        counters=evidence.counters or before.counters,
        probe_failures=0 if answered else failures,
        probe_counted_s=probe.ended_s if ended else before.probe_counted_s,
    )


def _still_ready(seen: EngineHealth, evidence: Evidence, now_s: float, policy: HealthPolicy) -> EngineHealth:
    silent_s, stalled_s = now_s - seen.heard_s, now_s - seen.moved_s
    if silent_s >= policy.silent_after_s:
        return _enter(seen, "hung", "silent", f"no answer for {silent_s:.0f} s", now_s)
    if stalled_s >= policy.stalled_after_s:
        pending = f"{evidence.outstanding} requests" if evidence.outstanding else "a one-token probe"
        return _enter(seen, "hung", "stalled", f"{pending} pending and no token for {stalled_s:.0f} s", now_s)
    if seen.probe_failures >= policy.probe_failures:
        reason = f"{seen.probe_failures} one-token probes failed: {evidence.probe.detail}"
        return _enter(seen, "hung", "probes_fail", reason, now_s)
    return seen


def _proven_since(seen: EngineHealth, evidence: Evidence) -> bool:
    """Return True if the latest probe was answered after the present phase began, and /health answers too."""
    return evidence.health == "ok" and evidence.probe.state == "answered" and evidence.probe.ended_s > seen.since_s


def _start_clock(seen: EngineHealth, now_s: float, policy: HealthPolicy) -> EngineHealth:
    """Return the health after one more tick without proof that the engine works: a start that takes too long is
    condemned for `verdict_s`, then the clock restarts for its successor."""
    in_phase_s = now_s - seen.since_s
    if seen.cause == "start_timed_out":
        return (
            _enter(seen, "starting", "", "another start is under way", now_s)
            if in_phase_s >= policy.verdict_s
            else seen
        )
    if seen.phase == "hung" or in_phase_s < policy.start_timeout_s:
        return seen
    return _enter(seen, "dead", "start_timed_out", f"not ready within {policy.start_timeout_s:.0f} s", now_s)


def _enter(health: EngineHealth, phase: EnginePhase, cause: Cause, reason: str, now_s: float) -> EngineHealth:
    if (health.phase, health.cause) == (phase, cause):
        return health
    return replace(health, phase=phase, cause=cause, reason=reason, since_s=now_s, probe_failures=0)
