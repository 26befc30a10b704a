"""Evaluation of a drill's timeline: alert times, requests that failed wrongly, recovery. Pure.

Times are seconds. Alert and effect count from the injection of the fault, clearing and recovery from its removal.

    recovery = the later of  the time from which the fleet stayed well
                             the end of the last steady request that was not whole
               minus the removal of the fault, at least 0

Worked example (test_recovery_is_when_the_last_of_both_is_well): fault removed at 30 s, fleet well from 34 s on, last
refusal at 36.5 s: recovery 6.5 s.
"""

from collections import Counter
from dataclasses import dataclass

from functions.cli.drill.declared import STEADY, Drill
from functions.cli.drill.timeline import DrillTimeline, Ending, RequestOutcome


@dataclass(frozen=True, slots=True)
class Check:
    what: str
    ok: bool | None  # None means not checked; `words` gives the reason
    words: str = ""


@dataclass(frozen=True, slots=True)
class DrillVerdict:
    checks: tuple[Check, ...]
    effect_after_s: float | None
    fired_after_s: float | None
    cleared_after_s: float | None
    recovered_after_s: float | None
    mended_after_s: float | None
    endings: dict[str, int]
    wrongly_failed: int
    examples: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return all(check.ok is not False for check in self.checks)


_EXAMPLES = 5


def judge(drill: Drill, seen: DrillTimeline) -> DrillVerdict:
    effect_s = effect_seen_s(seen)
    fired_s, cleared_s = fired_and_cleared(drill.alert, seen)
    recovered_s = recovery_s(seen)
    wrong = wrongly_failed(drill, seen, recovered_s)
    effect_after_s = _since(effect_s, seen.injected_s)
    fired_after_s = _since(fired_s, seen.injected_s)
    cleared_after_s = _since(cleared_s, seen.taken_back_s)
    mended_after_s = _since(mended_s(seen), seen.injected_s)
    checks = (
        Check(f"seen: {drill.effect.words}", effect_s is not None, _after(effect_after_s)),
        _requests(seen.outcomes, wrong),
        _mixed(seen.outcomes),
        _alert(f"{drill.alert} fires", seen, fired_after_s, drill.fires_within_s),
        _alert(f"{drill.alert} clears", seen, cleared_after_s, drill.clears_within_s),
        _bounded("recovered", recovered_s, drill.recovers_within_s),
        *_mended(drill, seen, mended_after_s),
        *_accounts(seen),
    )
    return DrillVerdict(
        checks=checks,
        effect_after_s=effect_after_s,
        fired_after_s=fired_after_s,
        cleared_after_s=cleared_after_s,
        recovered_after_s=recovered_s,
        mended_after_s=mended_after_s,
        endings=dict(sorted(Counter(each.ending for each in seen.outcomes).items())),
        wrongly_failed=len(wrong),
        examples=tuple(_example(each) for each in wrong[:_EXAMPLES]),
    )


def effect_seen_s(seen: DrillTimeline) -> float | None:
    """Return the second of the drill at which the effect was first seen after the fault, in the drill's own polls or by
    Prometheus; None if never."""
    points = [*((look.at_s, look.shows_effect) for look in seen.looks), *seen.shown]
    return min((at_s for at_s, shows in points if shows and at_s >= seen.injected_s), default=None)


def fired_and_cleared(alert: str, seen: DrillTimeline) -> tuple[float | None, float | None]:
    """Return the second of the drill at which the alert first fired after the fault, and at which it cleared for the
    last time; None for each that did not happen."""
    changes = [change for change in seen.alerts if change.name == alert and change.at_s >= seen.injected_s]
    fired_s = next((change.at_s for change in changes if change.state == "firing"), None)
    if fired_s is None or changes[-1].state == "firing":
        return fired_s, None
    last_s = max(change.at_s for change in changes if change.state == "firing")
    return fired_s, next(change.at_s for change in changes if change.at_s > last_s)


def recovery_s(seen: DrillTimeline) -> float | None:
    """Return the seconds from the fault's removal until the fleet stayed well and the last steady request had failed,
    or None if the fleet was not well at the end."""
    well_s = well_from_s(seen)
    if well_s is None:
        return None
    bad = [each.ended_s for each in _steady(seen.outcomes) if each.ending != "whole" and each.ended_s > seen.injected_s]
    return max(0.0, max([well_s, *bad]) - seen.taken_back_s)


def mended_s(seen: DrillTimeline) -> float | None:
    """Return the second of the drill at which the platform's own repair was first seen complete, or None if never."""
    return next((look.at_s for look in seen.looks if look.is_mended and look.at_s >= seen.injected_s), None)


def well_from_s(seen: DrillTimeline) -> float | None:
    """Return the second of the drill from which every poll found the fleet well, or None if the last one did not."""
    since_s: float | None = None
    for look in seen.looks:
        if not look.is_well:
            since_s = None
        elif since_s is None:
            since_s = look.at_s
    return since_s


def wrongly_failed(drill: Drill, seen: DrillTimeline, recovered_s: float | None) -> list[RequestOutcome]:
    """Return the requests whose ending the drill does not tolerate, or not at that time."""
    until_s = seen.taken_back_s + min(drill.recovers_within_s, recovered_s if recovered_s is not None else 1e9)
    found = []
    for each in seen.outcomes:
        allowed: frozenset[Ending] = drill.tolerates if each.traffic == STEADY else drill.spike_tolerates
        is_within = each.ended_s >= seen.injected_s and each.began_s <= until_s
        if each.ending == "mixed" or (each.ending != "whole" and not (is_within and each.ending in allowed)):
            found.append(each)
    return found


def _steady(outcomes: tuple[RequestOutcome, ...]) -> list[RequestOutcome]:
    return [each for each in outcomes if each.traffic == STEADY]


def _requests(outcomes: tuple[RequestOutcome, ...], wrong: list[RequestOutcome]) -> Check:
    words = f"{len(wrong)} of {len(outcomes)} failed wrongly"
    return Check("every request is whole, or refused if allowed", bool(outcomes) and not wrong, words)


def _mixed(outcomes: tuple[RequestOutcome, ...]) -> Check:
    mixed = sum(each.ending == "mixed" for each in outcomes)
    return Check("no answer is from another model or tenant", mixed == 0, f"{mixed} mixed" if mixed else "")


def _alert(what: str, seen: DrillTimeline, after_s: float | None, within_s: float) -> Check:
    if not seen.sees_alerts:
        return Check(what, None, "not checked: no Prometheus runs here")
    return _bounded(what, after_s, within_s)


def _mended(drill: Drill, seen: DrillTimeline, after_s: float | None) -> list[Check]:
    if drill.mend is None:
        return []
    if after_s is None and any(look.is_held for look in seen.looks):
        return [Check(drill.mend.words, None, "the controller holds it back: `shoal status` says why")]
    return [_bounded(drill.mend.words, after_s, drill.mend.within_s)]


def _accounts(seen: DrillTimeline) -> list[Check]:
    """Return the checks that ledger and traces contain the usage of all whole answers; none if the accounts were not
    read."""
    told = seen.accounts
    if told is None:
        return []
    return [
        _has_all(
            "the ledger contains the usage of whole answers",
            told.ledger_tokens,
            told.owed_tokens,
            "tokens",
            told.why_not,
        ),
        _has_all("every whole answer has a trace", told.trace_rows, told.owed_rows, "rows", told.why_not),
    ]


def _has_all(what: str, found: int | None, owed: int, unit: str, why_not: str) -> Check:
    if found is None:
        return Check(what, None, why_not)
    return Check(what, found >= owed, f"{found} {unit}, {owed} are owed")


def _bounded(what: str, after_s: float | None, within_s: float) -> Check:
    ok = after_s is not None and after_s <= within_s
    return Check(what, ok, f"{_after(after_s)}; the limit is {within_s:.0f} s")


def _after(after_s: float | None) -> str:
    return f"after {after_s:.1f} s" if after_s is not None else "never"


def _since(at_s: float | None, zero_s: float) -> float | None:
    return max(0.0, at_s - zero_s) if at_s is not None else None


def _example(outcome: RequestOutcome) -> str:
    took_s = outcome.ended_s - outcome.began_s
    begun = f"{outcome.traffic} at {outcome.began_s:.1f} s"
    return f"{begun}: {outcome.ending} after {took_s:.1f} s, {outcome.status} {outcome.detail}"
