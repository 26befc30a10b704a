"""Pushes and rollouts as events: each sent once, with its result, to a real collector."""

from contextlib import closing
from itertools import pairwise

import msgspec

from functions.controller.announcing import AnnouncedState, Announcer, events_between
from functions.controller.rollouts.book import Book, fold_page
from functions.decisions.rollout.events import RolledBack, VersionLoaded
from functions.decisions.rollout.lifecycle import Rollout, transition
from functions.fleet.branch_report import BranchReport, PastRevision
from functions.telemetry.otlp import Collector
from functions.telemetry.otlp_sender import OtlpSender
from tests.controller.rollouts.test_book import page
from tests.decisions.rollout.rollouts import rollout
from tests.telemetry.collectors import attributes, collector

FORMER = PastRevision("main@a", "applied", "good", "", 5.0)
REFUSED = PastRevision("main@b", "refused", "worse", "3 problem(s); the first: policies/x.yaml:3", 9.0)
APPLIED = PastRevision("main@c", "applied", "better", "", 11.0)
EMPTY = fold_page(Book(), page(1))


def report(*history: PastRevision) -> BranchReport:
    return BranchReport("main", history=history)


def book(change: int, *rollouts: Rollout) -> Book:
    return fold_page(EMPTY, page(change, *rollouts))


def test_every_push_since_the_last_look_is_sent_in_order() -> None:
    """Two pushes came between two looks; the newest alone would hide the refused one."""
    former, now = AnnouncedState(report(FORMER), EMPTY), AnnouncedState(report(APPLIED, REFUSED, FORMER), EMPTY)
    refused, applied = events_between(former, now, 12.0)
    assert (refused.severity, refused.at_unix_s) == ("error", 9.0)
    assert refused.words == "main@b refused: 3 problem(s); the first: policies/x.yaml:3"
    assert (applied.attributes["shoal.revision"], applied.severity, applied.at_unix_s) == ("main@c", "info", 11.0)
    assert events_between(now, now, 13.0) == []


def test_repeated_result_is_not_another_push() -> None:
    again = msgspec.structs.replace(REFUSED, count=2, at_unix_s=20.0)
    assert events_between(AnnouncedState(report(REFUSED), EMPTY), AnnouncedState(report(again), EMPTY), 21.0) == []


def test_object_source_without_history_sends_the_revision_in_force() -> None:
    former = BranchReport("kubernetes", tip="objects@1", applied="objects@1")
    wrong = BranchReport(
        "kubernetes", tip="objects@2", applied="objects@1", problems=("no such pool",), problem_count=1
    )
    mended = BranchReport("kubernetes", tip="objects@3", applied="objects@3")
    (refused,) = events_between(AnnouncedState(former, EMPTY), AnnouncedState(wrong, EMPTY), 2.0)
    (applied,) = events_between(AnnouncedState(wrong, EMPTY), AnnouncedState(mended, EMPTY), 3.0)
    assert [each.attributes["shoal.result"] for each in (refused, applied)] == ["refused", "applied"]


def test_rollout_steps_are_sent_one_by_one() -> None:
    begun = rollout()
    running = transition(begun, VersionLoaded(), 100.0)
    back = transition(running, RolledBack("an operator said so"), 200.0)
    looks = [
        AnnouncedState(report(), book(2 + number, *rows))
        for number, rows in enumerate(((), (begun,), (running,), (back,)))
    ]
    told = [events_between(*pair, 300.0) for pair in pairwise(looks)]
    assert [len(each) for each in told] == [1, 1, 1]
    states = [(each.attributes["shoal.former_state"], each.attributes["shoal.state"]) for (each,) in told]
    assert states == [("", "loading"), ("loading", "running"), ("running", "rolled_back")]
    assert told[2][0].severity == "warning" and "an operator said so" in told[2][0].words


def test_starting_controller_sends_no_old_events() -> None:
    """Otherwise each restart would send the whole history again."""
    with collector() as taken, closing(Collector(taken.url, {})) as client:
        announcer = Announcer(OtlpSender(client, "shoal-controller", "c0"))
        announcer.send_events(report(FORMER), Book(), 1.0)
        announcer.send_events(report(FORMER), book(2, rollout()), 2.0)
        announcer.send_events(report(REFUSED, FORMER), book(3, transition(rollout(), VersionLoaded(), 3.0)), 3.0)
        announcer.sender.send()
        push, move = taken.events()
        assert (push.event_name, attributes(push)["shoal.revision"]) == ("shoal.push", "main@b")
        assert (move.event_name, attributes(move)["shoal.state"]) == ("shoal.rollout", "running")
