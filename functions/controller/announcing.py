"""Pushes and rollouts as events: what differs between two looks at the branch and at the registry's rollouts. Pure.

    look, look ──► `shoal.push`     a revision was applied, refused, overtaken or has failed
                   `shoal.rollout`  a rollout began, or its state, stage or attempt is another

The first look of a process (of a term, on Kubernetes) tells nothing: it cannot know what was told before. So an event
is told at most once, and what happens while nobody leads is in the audit, not here; so are steps of a rollout that
lasted less than the time between two looks.
Neighbours: `branch_word` has the report, `functions.telemetry.otlp_sender` takes the events.
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
class Look:
    report: BranchReport
    book: Book


@dataclass(slots=True)
class Announcer:
    """`look` is called each time that the branch's word is made."""

    sender: OtlpSender
    _former: Look | None = field(default=None)

    def look(self, report: BranchReport, book: Book, now_unix_s: float) -> None:
        """A book that the registry has not told yet is no look."""
        if not book.is_known:
            return
        now = Look(report, book)
        if self._former is not None:
            for event in events_between(self._former, now, now_unix_s):
                self.sender.event(event)
        self._former = now


def events_between(former: Look, now: Look, now_unix_s: float) -> list[SpanEvent]:
    return [*_pushes(former.report, now.report, now_unix_s), *_moves(former.book, now.book, now_unix_s)]


def _pushes(former: BranchReport, report: BranchReport, now_unix_s: float) -> Iterator[SpanEvent]:
    known = {(past.revision, past.result) for past in former.history}
    new = [past for past in reversed(report.history) if (past.revision, past.result) not in known]
    yield from (_push(report.source, past) for past in new)
    if report.history:
        return
    if report.applied and report.applied != former.applied:  # the cluster's own objects: there is no history of them
        yield _push(report.source, PastRevision(report.applied, "applied", at_unix_s=now_unix_s))
    if report.problems and report.problems != former.problems:
        detail = f"{report.problem_count} problem(s); the first: {report.problems[0]}"
        yield _push(report.source, PastRevision(report.tip, "refused", detail=detail, at_unix_s=now_unix_s))


def _push(source: str, past: PastRevision) -> SpanEvent:
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


def _moves(former: Book, now: Book, now_unix_s: float) -> Iterator[SpanEvent]:
    if now.channels == former.channels:
        return
    known = {row.id: row for row in former.rollouts}
    for row in now.rollouts:
        before = known.get(row.id)
        if before is None or (before.state, before.trial) != (row.state, row.trial):
            yield _move(row, "" if before is None else before.state, now_unix_s)


def _move(row: Rollout, former_state: str, now_unix_s: float) -> SpanEvent:
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
