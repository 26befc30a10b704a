"""Evaluation of a rollout: wait, pass its stage, roll back; or, while it loads, begin. Pure.

A stage passes when all of this holds, and is held as long as one of it does not:
  1. it has lasted its duration,
  2. the new version ended at least `minRequests` requests in it, and each condition has enough values,
  3. gateways were heard of within `fresh_s`,
  4. no condition holds even by its plain estimate (`Finding.is_suspected`).
It is halted as soon as one condition is proven. Between halt and pass lies hold: a 1 % stage with 60 requests neither
halts on noise nor passes on silence.

False alarms: a policy's `falseAlarmRate` is for the whole rollout, so each of its conditions, over all stages, gets its
part (Bonferroni). Worked example (test_the_rate_is_shared_by_all_conditions): 1 % and 6 conditions make alpha =
1/600; with two tests each, a weight of 1,200 halts.

A base's stage needs the replicas of the next one besides (`replica_shares`). While adapters that the old version has do
not load on the new one, it neither begins nor passes a stage: their share of requests would be refused there.

A replica of a base's new version that is lost is one failure (`losses`). While no replica has the version its requests
are answered by the old one, which proves nothing: the stage is held, and halted when that lasts for `deadline_s`.
Worked example (test_a_base_whose_new_version_is_on_no_replica_is_held_and_taken_back_at_the_deadline): the only replica
with v2 is killed; held for 599 s, halted at 600 s.

Loading is over when the new version is on every ready replica that has the old one, and on half of the ready ones; a
base's, when as many replicas have it as its first stage needs. It
has failed when nobody has it and all ready replicas say why for `patience_s`, or when `deadline_s` is over.

Neighbours: `conditions` judges one condition; `lifecycle` does what the verdict's event says.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from functions.decisions.rollout.conditions import FEW, Finding, judge
from functions.decisions.rollout.events import AnyEvent, Breached, Loaded, LoadFailed, StagePassed
from functions.decisions.rollout.evidence import Evidence
from functions.decisions.rollout.lifecycle import Rollout
from functions.decisions.rollout.messages import finding_text, seconds_text
from functions.decisions.rollout.replica_shares import is_borne, next_percent

VerdictKind = Literal["hold", "advance", "halt", "loaded", "load_failed"]


@dataclass(frozen=True, slots=True)
class RolloutTimeouts:
    """How long a rollout waits for what, in seconds."""

    fresh_s: float = 45.0
    """Evidence that is older is none. Three of the gateways' whole reports, which come every 15 s."""
    deadline_s: float = 600.0
    """For loading: an adapter takes seconds, a slow store minutes. A base's lost version is waited for as long."""
    patience_s: float = 20.0
    """For replicas that all say that they cannot load it: a store that was away for a moment is tried again."""


@dataclass(frozen=True, slots=True)
class Residency:
    """Where the two versions are: counts of the pool's ready replicas."""

    ready: int = 0
    with_control: int = 0
    with_candidate: int = 0
    with_both: int = 0
    refusing: int = 0  # that say why they cannot load the candidate; of a base, an adapter on the candidate
    refusal: str = ""  # what one of them says
    aim: int = 1  # of a base: how many replicas of the candidate are to come; 1 while that is not known
    since_unix_s: float = 0.0  # when the oldest of them was started: a pool that slept could load nothing before
    without_s: float = 0.0  # of a base: for how long none of them has had the candidate, though some were ready

    @property
    def lacks_candidate(self) -> bool:
        """Where none is ready, that is nothing about a version."""
        return self.ready > 0 and self.with_candidate == 0


@dataclass(frozen=True, slots=True)
class Verdict:
    kind: VerdictKind
    reason: str
    findings: tuple[Finding, ...] = ()
    widens: bool = False  # a base's stage has passed, and waits for replicas of the new version

    @property
    def event(self) -> AnyEvent | None:
        """What to tell the registry; None: nothing."""
        match self.kind:
            case "advance":
                return StagePassed()
            case "halt":
                return Breached(self.reason)
            case "loaded":
                return Loaded()
            case "load_failed":
                return LoadFailed(self.reason)
            case "hold":
                return None


def evaluate(
    rollout: Rollout,
    evidence: Evidence,
    residency: Residency,
    now_unix_s: float,
    patience: RolloutTimeouts | None = None,
) -> Verdict:
    """For any rollout; one that is over, or paused before it was loaded, is held."""
    patience = patience or RolloutTimeouts()
    if rollout.state == "loading":
        began_unix_s = max(rollout.stage_began_unix_s, residency.since_unix_s)
        return _loading(rollout, residency, now_unix_s - began_unix_s, patience)
    if rollout.percent in {0, 100}:
        return Verdict("hold", rollout.reason or rollout.state)
    findings = _findings(rollout, evidence)
    proven = "; ".join(finding_text(finding) for finding in findings if finding.is_proven)
    if words := proven or _lost_for_good(rollout, residency, patience):
        return Verdict("halt", f"{_stage_words(rollout)}: {words}"[:2000], findings)
    if rollout.state == "paused":
        return Verdict("hold", rollout.reason, findings)
    obstacles = _obstacles(rollout, evidence, findings, now_unix_s, patience)
    obstacle = _unborne(rollout, residency) or next(obstacles, "")
    if obstacle:
        return Verdict("hold", f"{_stage_words(rollout)}: {obstacle}", findings)
    return _passed(rollout, residency, findings)


def _passed(rollout: Rollout, where: Residency, findings: tuple[Finding, ...]) -> Verdict:
    words = f"{_stage_words(rollout)}: passed"
    if rollout.is_of_base and not _is_borne(next_percent(rollout), where):
        words += f"; replicas of {rollout.to_version} come, one by one"
        return Verdict("hold", words, findings, widens=True)
    return Verdict("advance", words, findings)


def _is_borne(percent: int, where: Residency) -> bool:
    return is_borne(percent, where.with_candidate, where.with_control, where.aim)


def alpha_of(rollout: Rollout) -> float:
    """Each condition's part of the rollout's false alarms."""
    conditions = sum(len(stage.auto_halt) for stage in rollout.policy.stages)
    return max(1e-12, rollout.policy.false_alarm_ratio / max(1, conditions))


def _findings(rollout: Rollout, evidence: Evidence) -> tuple[Finding, ...]:
    alpha, few = alpha_of(rollout), min(FEW, max(1, rollout.policy.min_requests))
    texts = rollout.current.auto_halt
    return tuple(judge(text, evidence.candidate, evidence.control, alpha, few) for text in texts)


def _lost_for_good(rollout: Rollout, where: Residency, patience: RolloutTimeouts) -> str:
    if not (rollout.is_of_base and where.lacks_candidate and where.without_s >= patience.deadline_s):
        return ""
    return f"no replica has had {rollout.to_version} for {seconds_text(where.without_s)}"


def _unborne(rollout: Rollout, where: Residency) -> str:
    """Why replicas do not bear what a base's stage sends them; nothing where they do."""
    if not rollout.is_of_base:
        return ""
    if where.lacks_candidate:
        share = f"its share is answered by {rollout.from_version} until one comes back"
        return f"no replica has {rollout.to_version}: {share}"
    return f"an adapter does not load on {rollout.to_version}: {where.refusal}" if where.refusing else ""


def _obstacles(
    rollout: Rollout, evidence: Evidence, findings: tuple[Finding, ...], now_unix_s: float, patience: RolloutTimeouts
) -> Iterator[str]:
    """Why the stage does not pass, what matters most first; nothing where it does."""
    heard, least = evidence.heard_unix_s, rollout.policy.min_requests
    if heard is None:
        yield "no gateway has told of it yet"
    elif now_unix_s - heard > patience.fresh_s:
        yield f"nothing heard of it for {seconds_text(now_unix_s - heard)}: held until gateways tell more"
    yield from (finding_text(finding) for finding in findings if finding.is_suspected)
    if evidence.candidate.requests < least:
        yield f"{evidence.candidate.requests} of {least} requests of {rollout.to_version}"
    yield from (f"{finding.text}: {finding.missing}" for finding in findings if finding.missing)
    lasts_s, lasted_s = rollout.current.duration_s or 0.0, now_unix_s - rollout.stage_began_unix_s
    if lasted_s < lasts_s:
        yield f"goes well, {seconds_text(lasted_s)} of {seconds_text(lasts_s)}"


def _loading(rollout: Rollout, where: Residency, since_s: float, patience: RolloutTimeouts) -> Verdict:
    if rollout.is_of_base:
        is_everywhere = _is_borne(rollout.current.percent, where) and not where.refusing
    else:
        is_everywhere = where.with_both == where.with_control and 2 * where.with_candidate >= where.ready
    if where.ready and is_everywhere:
        return Verdict("loaded", f"{rollout.to_version} is on {where.with_candidate} of {where.ready} replicas")
    refusal = f": {where.refusal}" if where.refusal else ""
    words = f"{rollout.to_version} is on {where.with_candidate} of {where.ready} ready replicas{refusal}"
    all_refuse = where.ready > 0 and where.with_candidate == 0 and where.refusing == where.ready
    if all_refuse and since_s >= patience.patience_s:
        return Verdict("load_failed", f"no replica can load {rollout.to_version}{refusal}"[:2000])
    if where.ready and since_s >= patience.deadline_s:
        return Verdict("load_failed", f"not loaded within {seconds_text(patience.deadline_s)}: {words}"[:2000])
    return Verdict("hold", f"loading: {words}")


def _stage_words(rollout: Rollout) -> str:
    return f"stage {rollout.stage + 1} of {len(rollout.policy.stages)} ({rollout.current.percent}%)"
