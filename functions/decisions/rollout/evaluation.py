"""Evaluation of a rollout: hold, pass its stage, or roll back; while it loads, start it. Pure functions.

A stage passes when all of this is true, and is held until then:
  1. it has lasted its duration,
  2. the new version ended at least `minRequests` requests in it, and each condition has enough values,
  3. gateways have reported within `fresh_s`,
  4. no condition is suspected by its plain estimate (`Finding.is_suspected`).
A stage is halted when one condition is proven. In between it is held: a 1 % stage with 60 requests neither halts on
noise nor passes without evidence.

A policy's `falseAlarmRate` is for the whole rollout, so it is divided among the conditions of all stages
(Bonferroni). Worked example (test_the_rate_is_shared_by_all_conditions): 1 % and 6 conditions make alpha = 1/600;
with two tests each, a weight of 1,200 halts.

A base's stage also needs the replicas of the next stage (`replica_shares`). If an adapter of the old version does not
load on the new one, no stage begins or passes: its share of requests would be rejected there.

A lost replica of a base's new version is one failure (`losses`). While no replica has the new version, the old one
answers its requests, which proves nothing: the stage is held, and halted after `deadline_s`. Worked example
(test_base_candidate_without_replicas_is_held_and_rolled_back_at_the_deadline): the only replica with v2 is
killed; held for 599 s, halted at 600 s.

Loading ends when the new version is on every ready replica that has the old one, and on half of the ready ones. For a
base, it ends when the new version has as many replicas as its first stage needs. Loading fails if no replica has the
new version and all ready ones report failures for `patience_s`, or after `deadline_s`.

Neighbours: `conditions` tests one condition; `lifecycle` applies the verdict's event.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from functions.decisions.rollout.conditions import FEW, ConditionFinding, judge
from functions.decisions.rollout.events import AnyEvent, Breached, LoadFailed, StagePassed, VersionLoaded
from functions.decisions.rollout.evidence import TrialEvidence
from functions.decisions.rollout.lifecycle import Rollout
from functions.decisions.rollout.messages import finding_text, seconds_text
from functions.decisions.rollout.replica_shares import can_serve_share, next_percent

VerdictKind = Literal["hold", "advance", "halt", "loaded", "load_failed"]


@dataclass(frozen=True, slots=True)
class RolloutTimeouts:
    """Time limits of a rollout, in seconds."""

    fresh_s: float = 45.0
    """Older evidence is ignored. Three of the gateways' full reports, which come every 15 s."""
    deadline_s: float = 600.0
    """Limit for loading: an adapter takes seconds, a slow store minutes. Also the limit for a base's lost version."""
    patience_s: float = 20.0
    """Time for which all replicas must report load failures: a store that was briefly down is retried."""


@dataclass(frozen=True, slots=True)
class Residency:
    """Location of the two versions: counts of the pool's ready replicas."""

    ready: int = 0
    with_control: int = 0
    with_candidate: int = 0
    with_both: int = 0
    refusing: int = 0  # replicas that cannot load the candidate; for a base, an adapter on the candidate
    refusal: str = ""  # the reason from one of them
    aim: int = 1  # for a base: planned replicas of the candidate; 1 while unknown
    since_unix_s: float = 0.0  # start of the oldest replica: a pool that slept could not load before
    without_s: float = 0.0  # for a base: time without the candidate while some replicas were ready

    @property
    def lacks_candidate(self) -> bool:
        """True if some replicas are ready and none has the candidate."""
        return self.ready > 0 and self.with_candidate == 0


@dataclass(frozen=True, slots=True)
class RolloutVerdict:
    kind: VerdictKind
    reason: str
    findings: tuple[ConditionFinding, ...] = ()
    widens: bool = False  # a base's stage has passed and waits for replicas of the new version

    @property
    def event(self) -> AnyEvent | None:
        """Event to send to the registry; None for a hold."""
        match self.kind:
            case "advance":
                return StagePassed()
            case "halt":
                return Breached(self.reason)
            case "loaded":
                return VersionLoaded()
            case "load_failed":
                return LoadFailed(self.reason)
            case "hold":
                return None


def evaluate(
    rollout: Rollout,
    evidence: TrialEvidence,
    residency: Residency,
    now_unix_s: float,
    patience: RolloutTimeouts | None = None,
) -> RolloutVerdict:
    """Return the verdict on any rollout: advance, halt, hold, or how its loading ended. One that is over, or paused
    before it was loaded, is held."""
    patience = patience or RolloutTimeouts()
    if rollout.state == "loading":
        began_unix_s = max(rollout.stage_began_unix_s, residency.since_unix_s)
        return _loading(rollout, residency, now_unix_s - began_unix_s, patience)
    if rollout.percent in {0, 100}:
        return RolloutVerdict("hold", rollout.reason or rollout.state)
    findings = _findings(rollout, evidence)
    proven = "; ".join(finding_text(finding) for finding in findings if finding.is_proven)
    if words := proven or _lost_for_good(rollout, residency, patience):
        return RolloutVerdict("halt", f"{_stage_words(rollout)}: {words}"[:2000], findings)
    if rollout.state == "paused":
        return RolloutVerdict("hold", rollout.reason, findings)
    obstacles = _obstacles(rollout, evidence, findings, now_unix_s, patience)
    obstacle = _missing_replicas(rollout, residency) or next(obstacles, "")
    if obstacle:
        return RolloutVerdict("hold", f"{_stage_words(rollout)}: {obstacle}", findings)
    return _passed(rollout, residency, findings)


def _passed(rollout: Rollout, where: Residency, findings: tuple[ConditionFinding, ...]) -> RolloutVerdict:
    words = f"{_stage_words(rollout)}: passed"
    if rollout.is_of_base and not _can_serve_share(next_percent(rollout), where):
        words += f"; replicas of {rollout.to_version} start one by one"
        return RolloutVerdict("hold", words, findings, widens=True)
    return RolloutVerdict("advance", words, findings)


def _can_serve_share(percent: int, where: Residency) -> bool:
    return can_serve_share(percent, where.with_candidate, where.with_control, where.aim)


def alpha_of(rollout: Rollout) -> float:
    """Return the share of the rollout's false-alarm rate that each of its halt conditions may use."""
    conditions = sum(len(stage.auto_halt) for stage in rollout.policy.stages)
    return max(1e-12, rollout.policy.false_alarm_ratio / max(1, conditions))


def _findings(rollout: Rollout, evidence: TrialEvidence) -> tuple[ConditionFinding, ...]:
    alpha, few = alpha_of(rollout), min(FEW, max(1, rollout.policy.min_requests))
    texts = rollout.current.auto_halt
    return tuple(judge(text, evidence.candidate, evidence.control, alpha, few) for text in texts)


def _lost_for_good(rollout: Rollout, where: Residency, patience: RolloutTimeouts) -> str:
    if not (rollout.is_of_base and where.lacks_candidate and where.without_s >= patience.deadline_s):
        return ""
    return f"no replica has had {rollout.to_version} for {seconds_text(where.without_s)}"


def _missing_replicas(rollout: Rollout, where: Residency) -> str:
    """Return why replicas cannot serve the share of a base's stage; "" if they can, and for an adapter's rollout."""
    if not rollout.is_of_base:
        return ""
    if where.lacks_candidate:
        share = f"{rollout.from_version} serves its share until one is back"
        return f"no replica has {rollout.to_version}: {share}"
    return f"an adapter does not load on {rollout.to_version}: {where.refusal}" if where.refusing else ""


def _obstacles(
    rollout: Rollout,
    evidence: TrialEvidence,
    findings: tuple[ConditionFinding, ...],
    now_unix_s: float,
    patience: RolloutTimeouts,
) -> Iterator[str]:
    """Yield the reasons why the stage does not pass yet, the most important first; none if it passes."""
    heard, least = evidence.heard_unix_s, rollout.policy.min_requests
    if heard is None:
        yield "no gateway has reported yet"
    elif now_unix_s - heard > patience.fresh_s:
        yield f"no report for {seconds_text(now_unix_s - heard)}: held until gateways report again"
    yield from (finding_text(finding) for finding in findings if finding.is_suspected)
    if evidence.candidate.requests < least:
        yield f"{evidence.candidate.requests} of {least} requests of {rollout.to_version}"
    yield from (f"{finding.text}: {finding.missing}" for finding in findings if finding.missing)
    lasts_s, lasted_s = rollout.current.duration_s or 0.0, now_unix_s - rollout.stage_began_unix_s
    if lasted_s < lasts_s:
        yield f"no problems, {seconds_text(lasted_s)} of {seconds_text(lasts_s)}"


def _loading(rollout: Rollout, where: Residency, since_s: float, patience: RolloutTimeouts) -> RolloutVerdict:
    if rollout.is_of_base:
        is_everywhere = _can_serve_share(rollout.current.percent, where) and not where.refusing
    else:
        is_everywhere = where.with_both == where.with_control and 2 * where.with_candidate >= where.ready
    if where.ready and is_everywhere:
        return RolloutVerdict("loaded", f"{rollout.to_version} is on {where.with_candidate} of {where.ready} replicas")
    refusal = f": {where.refusal}" if where.refusal else ""
    words = f"{rollout.to_version} is on {where.with_candidate} of {where.ready} ready replicas{refusal}"
    all_refuse = where.ready > 0 and where.with_candidate == 0 and where.refusing == where.ready
    if all_refuse and since_s >= patience.patience_s:
        return RolloutVerdict("load_failed", f"no replica can load {rollout.to_version}{refusal}"[:2000])
    if where.ready and since_s >= patience.deadline_s:
        return RolloutVerdict("load_failed", f"not loaded within {seconds_text(patience.deadline_s)}: {words}"[:2000])
    return RolloutVerdict("hold", f"loading: {words}")


def _stage_words(rollout: Rollout) -> str:
    return f"stage {rollout.stage + 1} of {len(rollout.policy.stages)} ({rollout.current.percent}%)"
