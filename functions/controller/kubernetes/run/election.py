"""Leader election over one Lease: a pure function of what was observed and of the local clock.

The law: at no instant do two processes hold a valid term, as long as their clocks run at nearly the same rate.
Absolute times do not matter, because no process reads another's timestamps. A candidate starts its own stopwatch when
it first sees a record, and takes over once that record has not changed for `lease_s`. A leader counts from the moment
*before* its last successful renewal was sent, and stops after `renew_deadline_s`.

Worked example (test_the_old_term_ends_before_the_next_begins), lease 15 s, deadline 10 s: the leader sends its last
renewal at 0 s. It arrives at 1 s, and a candidate sees it at 2 s. The leader's term ends at 10 s; the candidate takes
over at 17 s at the earliest. The gap covers a request under way, and 20 % of error in the clocks' rates.

Each term has a token above every earlier one (the Lease's `leaseTransitions`, plus one). A leader that lost its term
and takes it again also gets a new token. Writes carry the token, and the stores of state refuse a lower one.

Neighbours: `lease` has the record's wire format; `elector` reads and writes it.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Times with the defaults of Kubernetes' own controllers. `retry_s`: between renewals, or between reads."""

    lease_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry_s < self.renew_deadline_s < self.lease_s:
            raise ValueError("the times of a lease must grow: retry_s < renew_deadline_s < lease_s")


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """Content of the Lease. `renewed` is the holder's clock, compared only for equality, never as a time."""

    holder: str  # empty: released
    transitions: int
    renewed: str
    resource_version: str = ""
    acquired: str = ""  # for people


@dataclass(frozen=True, slots=True)
class LeaseObservation:
    """A record, and since when, on the local clock, it has not changed."""

    record: LeaseRecord | None
    since_s: float


@dataclass(frozen=True, slots=True)
class Term:
    """The right to write until `until_s` on the local clock."""

    token: int
    until_s: float

    def holds(self, now_s: float) -> bool:
        return now_s < self.until_s

    def renewed(self, until_s: float) -> "Term":
        return replace(self, until_s=until_s)


@dataclass(frozen=True, slots=True)
class CreateLease:
    """No Lease exists: create one that we hold."""


@dataclass(frozen=True, slots=True)
class TakeLease:
    """Write our name over `record` if it has not changed."""

    record: LeaseRecord


@dataclass(frozen=True, slots=True)
class RenewLease:
    """Write `record` again with a new `renewed` if it has not changed."""

    record: LeaseRecord


@dataclass(frozen=True, slots=True)
class WaitForLeader:
    """Another process leads."""

    holder: str


Action = CreateLease | TakeLease | RenewLease | WaitForLeader


def observe(seen: LeaseObservation | None, record: LeaseRecord | None, now_s: float) -> LeaseObservation:
    """Return the observation. Its stopwatch starts again whenever the record has changed in any way."""
    if seen is not None and seen.record == record:
        return seen
    return LeaseObservation(record, now_s)


def decide(me: str, seen: LeaseObservation, term: Term | None, now_s: float, timing: LeaseTiming) -> Action:
    record = seen.record
    if record is None:
        return CreateLease()
    if term is not None and term.holds(now_s) and record.holder == me and token_of(record) == term.token:
        return RenewLease(record)
    if record.holder in {"", me}:  # released, or our own expired term: no other process can be writing
        return TakeLease(record)
    if now_s - seen.since_s >= timing.lease_s:
        return TakeLease(record)
    return WaitForLeader(record.holder)


def token_of(record: LeaseRecord) -> int:
    """Return the fencing token of the record's term. It is never 0, which means no token."""
    return record.transitions + 1


def term_after(record: LeaseRecord, sent_s: float, timing: LeaseTiming) -> Term:
    """Return the term that a successful write grants: the record's token, until `renew_deadline_s` after the write was
    sent (`sent_s`), which is before the Lease ends."""
    return Term(token_of(record), sent_s + timing.renew_deadline_s)
