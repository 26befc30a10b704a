"""Judgement of drills from synthetic timelines; each case could make a drill wrongly pass or fail."""

from dataclasses import replace

from functions.cli.drill.declared import Drill, DrillLoad, Effect, Mend, needs
from functions.cli.drill.judging import fired_and_cleared, judge, recovery_s
from functions.cli.drill.timeline import (
    AlertChange,
    DrillTimeline,
    Ending,
    FleetObservation,
    RequestOutcome,
    percentile,
    seconds,
)

DRILL = Drill(
    name="bus-away",
    summary="",
    fault="",
    taken_back="",
    alert="BusAway",
    effect=Effect("it shows", "gateway", "shoal_bus_up", lambda value: value == 0.0),
    inject=lambda stage: None,
    tolerates=frozenset({"refused"}),
    fires_within_s=20.0,
    clears_within_s=20.0,
    recovers_within_s=15.0,
)
LOOKS = tuple(
    FleetObservation(at_s=float(at_s), is_well=not 12 <= at_s < 34, shows_effect=12 <= at_s < 34)
    for at_s in range(0, 50, 2)
)
FIRES = (AlertChange(13, "BusAway", "pending"), AlertChange(18, "BusAway", "firing"))
CLEARS = (AlertChange(38, "BusAway", "inactive"),)


def one(began_s: float, ending: Ending = "whole", took_s: float = 0.5, traffic: str = "steady") -> RequestOutcome:
    return RequestOutcome(traffic, began_s, began_s + took_s, ending, first_s=began_s + 0.1, status=200)


GOOD = DrillTimeline(
    injected_s=10.0,
    taken_back_s=30.0,
    ended_s=50.0,
    outcomes=(*(one(float(at_s)) for at_s in range(40)), one(36.0, "refused")),
    alerts=FIRES + CLEARS,
    looks=LOOKS,
)


def failed_checks(timeline: DrillTimeline) -> list[str]:
    return [check.what for check in judge(DRILL, timeline).checks if check.ok is False]


def test_a_drill_in_which_all_held() -> None:
    found = judge(DRILL, GOOD)
    assert found.passed, found.checks
    assert (found.effect_after_s, found.fired_after_s, found.cleared_after_s) == (2.0, 8.0, 8.0)
    assert found.wrongly_failed == 0 and found.endings == {"refused": 1, "whole": 40}


def test_recovery_is_when_the_last_of_both_is_well() -> None:
    assert recovery_s(GOOD) == 6.5  # recovered at 34 s, last rejection ended at 36.5 s, fault removed at 30 s
    assert recovery_s(replace(GOOD, outcomes=(one(1.0),))) == 4.0
    assert recovery_s(replace(GOOD, looks=LOOKS[:16])) is None, "at the end it was not well"


def test_a_refusal_before_the_fault_or_after_the_recovery_is_wrong() -> None:
    for at_s in (3.0, 46.0):
        found = judge(DRILL, replace(GOOD, outcomes=(*GOOD.outcomes, one(at_s, "refused"))))
        assert not found.passed and found.wrongly_failed >= 1


def test_an_ending_that_is_not_tolerated_is_wrong_even_while_the_fault_lasts() -> None:
    for ending in ("failed", "broken_off"):
        found = judge(DRILL, replace(GOOD, outcomes=(*GOOD.outcomes, one(20.0, ending))))
        assert found.wrongly_failed == 1 and "steady at 20.0 s" in found.examples[0]


def test_another_tenants_text_is_never_tolerated() -> None:
    drill = replace(DRILL, tolerates=frozenset({"refused", "mixed"}))
    found = judge(drill, replace(GOOD, outcomes=(*GOOD.outcomes, one(20.0, "mixed"))))
    assert [check.what for check in found.checks if check.ok is False][
        -1
    ] == "no answer is from another model or tenant"


def test_no_request_at_all_is_no_proof() -> None:
    assert "every request is whole, or refused if allowed" in failed_checks(replace(GOOD, outcomes=()))


def test_the_spike_has_bounds_of_its_own() -> None:
    drill = replace(DRILL, tolerates=frozenset(), spike=(DrillLoad(traffic="spike"),))
    steady = tuple(each for each in GOOD.outcomes if each.ending == "whole")
    assert judge(drill, replace(GOOD, outcomes=(*steady, one(20.0, "refused", traffic="spike")))).passed
    assert judge(drill, replace(GOOD, outcomes=(*steady, one(20.0, "failed", traffic="spike")))).wrongly_failed == 1


def test_what_was_asked_while_the_fault_lasted_may_be_refused_a_moment_later() -> None:
    drill = replace(DRILL, spike=(DrillLoad(traffic="spike"),))
    late = one(29.8, "refused", took_s=4.9, traffic="spike")
    assert judge(drill, replace(GOOD, outcomes=(one(1.0), late), looks=LOOKS[:5])).wrongly_failed == 0
    assert judge(drill, replace(GOOD, outcomes=(one(1.0), replace(late, began_s=47.0)))).wrongly_failed == 1


def test_an_alert_that_never_fires_or_never_clears() -> None:
    assert failed_checks(replace(GOOD, alerts=FIRES[:1])) == ["BusAway fires", "BusAway clears"]
    assert failed_checks(replace(GOOD, alerts=FIRES)) == ["BusAway clears"]


def test_an_alert_of_before_the_fault_does_not_count() -> None:
    early = (AlertChange(2, "BusAway", "firing"), AlertChange(5, "BusAway", "inactive"))
    assert fired_and_cleared("BusAway", replace(GOOD, alerts=early)) == (None, None)


def test_an_alert_that_fires_again_has_cleared_only_the_last_time() -> None:
    again = (*FIRES, AlertChange(25, "BusAway", "inactive"), AlertChange(32, "BusAway", "firing"))
    assert fired_and_cleared("BusAway", replace(GOOD, alerts=again)) == (18, None)
    assert fired_and_cleared("BusAway", replace(GOOD, alerts=again + CLEARS)) == (18, 38)


def test_without_prometheus_the_alert_is_not_checked_and_said_so() -> None:
    found = judge(DRILL, replace(GOOD, alerts=(), sees_alerts=False))
    unchecked = [check for check in found.checks if check.ok is None]
    assert found.passed and len(unchecked) == 2 and "not checked" in unchecked[0].words


def test_an_effect_between_two_looks_is_seen_by_prometheus() -> None:
    quiet = tuple(replace(look, shows_effect=False) for look in LOOKS)
    assert judge(DRILL, replace(GOOD, looks=quiet)).effect_after_s is None
    assert judge(DRILL, replace(GOOD, looks=quiet, shown=((9.0, True), (14.0, True)))).effect_after_s == 4.0


def test_seconds_for_the_picture_count_each_request_once() -> None:
    made = seconds(GOOD.outcomes, GOOD.ended_s)
    assert sum(each.whole + each.refused + each.failed for each in made) == len(GOOD.outcomes)
    assert sum(each.offered for each in made) == len(GOOD.outcomes)
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.99) == 4.0 and percentile([], 0.99) is None


def test_what_a_fleet_cannot_play_is_said_beforehand() -> None:
    assert needs(DRILL, engine="vllm", replicas=1) == ""
    assert "shoal up --engine sim" in needs(replace(DRILL, simulated_only=True), engine="vllm", replicas=2)
    assert "2 replicas" in needs(replace(DRILL, min_replicas=2), engine="sim", replicas=1)


def _some(value: float | None) -> bool:
    return value is not None and value > 0


ANY = Effect("", "registry", "shoal_replica_troubled", _some)
MENDS = replace(DRILL, mend=Mend("it is restarted", done=ANY, under_way=ANY, held=ANY, within_s=12.0))


def looks_with(**what: bool) -> DrillTimeline:
    """Return GOOD with this platform action from 20 s on."""
    return replace(GOOD, looks=tuple(replace(look, **what) if look.at_s >= 20 else look for look in LOOKS))


def test_what_the_platform_does_about_it_is_waited_for_and_bounded() -> None:
    found = judge(MENDS, looks_with(is_mended=True))
    assert found.passed and found.mended_after_s == 10.0
    late = judge(replace(MENDS, mend=replace(MENDS.mend, within_s=9.0)), looks_with(is_mended=True))
    assert [check.what for check in late.checks if check.ok is False] == ["it is restarted"]
    assert not judge(MENDS, GOOD).passed, "it never was"


def test_what_the_platform_holds_back_is_said_and_is_no_failure() -> None:
    found = judge(MENDS, looks_with(is_held=True))
    assert found.passed and found.mended_after_s is None
    assert [check.ok for check in found.checks if check.what == "it is restarted"] == [None]
