"""Pushes and rollouts as events: the differences between two observations of the branch and the rollouts. Pure.

    observation, observation ──► `shoal.push`     a revision was applied, refused, superseded or has failed
                                 `shoal.rollout`  a rollout began, or its state, stage or attempt changed

The first observation of a process (on Kubernetes: of a term of leadership) sends no event, because earlier events are
unknown. So an event is sent at most once. Changes without a leader, and rollout steps shorter than the interval
between two observations, are only in the audit. Neighbours: `branch_word` makes the report,
`functions.telemetry.otlp_sender` sends the events.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from functions.controller.rollouts.book import Book
from functions.decisions.rollout.lifecycle import Rollout
from functions.decisions.rollout.messages import rollout_text
from functions.fleet.branch_report import BranchReport, PastRevision
from functions.telemetry.otlp_sender import OtlpSender, SpanEvent

PUSH, ROLLOUT = "shoal.push", "shoal.rollout"


@dataclass(frozen=True, slots=True)
class AnnouncedState:
    report: BranchReport
    book: Book


@dataclass(slots=True)
class Announcer:
    """Sender of events; `send_events` is called each time that a branch report is made."""

    sender: OtlpSender
    _former: AnnouncedState | None = field(default=None)

    def send_events(self, report: BranchReport, book: Book, now_unix_s: float) -> None:
        """Send the events between the previous observation and this one; the first observation sends none. Do nothing
        if the registry has not filled `book` yet."""
        if not book.is_known:
            return
        now = AnnouncedState(report, book)
        if self._former is not None:
            for event in events_between(self._former, now, now_unix_s):
                self.sender.event(event)
        self._former = now


def events_between(former: AnnouncedState, now: AnnouncedState, now_unix_s: float) -> list[SpanEvent]:
    return [*_push_events(former.report, now.report, now_unix_s), *_rollout_events(former.book, now.book, now_unix_s)]


def _push_events(former: BranchReport, report: BranchReport, now_unix_s: float) -> Iterator[SpanEvent]:
    known = {(past.revision, past.result) for past in former.history}
    new = [past for past in reversed(report.history) if (past.revision, past.result) not in known]
    yield from (_push_event(report.source, past) for past in new)
    if report.history:
        return
    if report.applied and report.applied != former.applied:  # objects of the cluster itself have no history
        yield _push_event(report.source, PastRevision(report.applied, "applied", at_unix_s=now_unix_s))
    if report.problems and report.problems != former.problems:
        detail = f"{report.problem_count} problem(s); the first: {report.problems[0]}"
        yield _push_event(report.source, PastRevision(report.tip, "refused", detail=detail, at_unix_s=now_unix_s))


def _push_event(source: str, past: PastRevision) -> SpanEvent:
    return SpanEvent(
        PUSH,
        past.at_unix_s,
        f"{past.revision} {past.result}" + (f": {past.detail}" if past.detail else ""),
        {
            "shoal.source": source,
            "shoal.revision": past.revision,
            "shoal.result": past.result,
            "shoal.message": past.message,
            "shoal.detail": past.detail,
        },
        "error" if past.result in ("refused", "failed") else "info",
    )


def _rollout_events(former: Book, now: Book, now_unix_s: float) -> Iterator[SpanEvent]:
    if now.channels == former.channels:
        return
    known = {row.id: row for row in former.rollouts}
    for row in now.rollouts:
        before = known.get(row.id)
        if before is None or (before.state, before.trial) != (row.state, row.trial):
            yield _rollout_event(row, "" if before is None else before.state, now_unix_s)


def _rollout_event(row: Rollout, former_state: str, now_unix_s: float) -> SpanEvent:
    return SpanEvent(
        ROLLOUT,
        now_unix_s,
        rollout_text(row) + (f" ({row.reason})" if row.reason else ""),
        {
            "shoal.rollout": row.id,
            "shoal.model": row.model,
            "shoal.channel": row.channel,
            "shoal.pool": row.pool,
            "shoal.from_version": row.from_version,
            "shoal.to_version": row.to_version,
            "shoal.former_state": former_state,
            "shoal.state": row.state,
            "shoal.stage": row.stage,
            "shoal.percent": row.percent,
            "shoal.attempt": row.attempt,
            "shoal.lock_version": row.lock_version,
        },
        "warning" if row.state == "rolled_back" else "info",
    )
