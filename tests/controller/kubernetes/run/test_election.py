"""Two candidates never lead at once, whatever their clocks show."""

import heapq
import itertools
import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.controller.kubernetes.run.election import (
    CreateLease,
    LeaseObservation,
    LeaseRecord,
    LeaseTiming,
    RenewLease,
    TakeLease,
    Term,
    WaitForLeader,
    decide,
    observe,
    term_after,
    token_of,
)

TIMING = LeaseTiming()
OURS = LeaseRecord("me", 3, "10:00:00", "7")
THEIRS = LeaseRecord("other", 3, "10:00:00", "7")


@pytest.mark.parametrize(
    ("record", "seen_for_s", "term", "action"),
    [
        (None, 0, None, CreateLease()),
        (OURS, 0, Term(4, until_s=101), RenewLease(OURS)),
        (OURS, 0, Term(4, until_s=100), TakeLease(OURS)),  # expired at this instant: a new term
        (OURS, 0, Term(3, until_s=200), TakeLease(OURS)),  # the record belongs to another term than ours
        (OURS, 0, None, TakeLease(OURS)),
        (replace(THEIRS, holder=""), 0, None, TakeLease(replace(THEIRS, holder=""))),  # released
        (THEIRS, 14.9, None, WaitForLeader("other")),
        (THEIRS, 15.0, None, TakeLease(THEIRS)),
        (THEIRS, 0, Term(4, until_s=200), WaitForLeader("other")),  # overruled: the record decides
    ],
)
def test_candidate_decision_by_lease_and_term(
    record: LeaseRecord | None, seen_for_s: float, term: Term | None, action: object
) -> None:
    now_s = 100.0
    assert decide("me", LeaseObservation(record, now_s - seen_for_s), term, now_s, TIMING) == action


def test_renewal_restarts_the_lease_timer() -> None:
    first = observe(None, THEIRS, 10.0)
    assert observe(first, THEIRS, 20.0).since_s == 10.0
    renewed = replace(THEIRS, renewed="10:00:02", resource_version="8")
    assert observe(first, renewed, 20.0).since_s == 20.0


def test_the_old_term_ends_before_the_next_begins() -> None:
    """The prologue's example: renewed at 0 s, seen by the other at 2 s."""
    term = term_after(OURS, sent_s=0.0, timing=TIMING)
    seen = LeaseObservation(OURS, since_s=2.0)
    assert not term.holds(10.0)
    assert decide("other", seen, None, 16.9, TIMING) == WaitForLeader("me")
    assert decide("other", seen, None, 17.0, TIMING) == TakeLease(OURS)


@pytest.mark.parametrize("times", [(15, 15, 2), (10, 15, 2), (15, 10, 10), (15, 10, 0)])
def test_non_increasing_timing_is_refused(times: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="must grow"):
        LeaseTiming(*times)


# -- two or three candidates on one Lease, with skewed clocks, slow networks and long pauses ---------------------------


@dataclass
class _Candidate:
    name: str
    offset_s: float
    rate: float
    seen: LeaseObservation | None = None
    term: Term | None = None

    def clock(self, true_s: float) -> float:
        return self.offset_s + true_s * self.rate

    def leads(self, true_s: float) -> bool:
        return self.term is not None and self.term.holds(self.clock(true_s))


class _Rig:
    """A Lease with compare-and-swap writes, and messages with delays."""

    def __init__(self, candidates: list[_Candidate], rng: random.Random) -> None:
        self.record: LeaseRecord | None = None
        self.tokens: list[int] = []
        self._candidates = candidates
        self._rng = rng
        self._numbers = itertools.count(1)
        self._events: list[tuple[float, int, _Candidate, object]] = []

    def run(self, until_s: float) -> None:
        for candidate in self._candidates:
            self._later(self._rng.uniform(0, 3), candidate, "look")
        while self._events and self._events[0][0] < until_s:
            now_s, _, candidate, what = heapq.heappop(self._events)
            self._step(now_s, candidate, what)
            leaders = [each.name for each in self._candidates if each.leads(now_s)]
            assert len(leaders) <= 1, f"{leaders} lead at {now_s}"

    def _later(self, at_s: float, candidate: _Candidate, what: object) -> None:
        heapq.heappush(self._events, (at_s, next(self._numbers), candidate, what))

    def _delay_s(self) -> float:
        return self._rng.choice([0.001, 0.01, 0.5, self._rng.uniform(0, 8)])

    def _step(self, now_s: float, candidate: _Candidate, what: object) -> None:
        match what:
            case "look":
                self._later(now_s + self._delay_s(), candidate, ("read", self.record))
            case ("read", record):
                candidate.seen = observe(candidate.seen, record, candidate.clock(now_s))  # type: ignore[arg-type]
                self._act(now_s, candidate)
            case ("arrives", sent_s, old, new, gives_up_at_s):
                stored = None
                if self.record == old:
                    stored = self.record = replace(new, resource_version=str(next(self._numbers)))  # type: ignore[type-var]
                answered_s = now_s + self._delay_s()
                if answered_s < gives_up_at_s and self._rng.random() < 0.8:  # type: ignore[operator]
                    self._later(answered_s, candidate, ("answer", sent_s, stored))
                else:  # the sender gave up, or the message is lost
                    self._later(max(now_s, gives_up_at_s), candidate, ("answer", sent_s, None))  # type: ignore[call-overload]
            case ("answer", sent_s, record):
                if record is not None:
                    candidate.seen = observe(candidate.seen, record, candidate.clock(now_s))  # type: ignore[arg-type]
                    candidate.term = term_after(record, sent_s, TIMING)  # type: ignore[arg-type]
                    if candidate.leads(now_s):
                        self.tokens.append(candidate.term.token)
                self._later(now_s + self._pause_s(), candidate, "look")

    def _pause_s(self) -> float:
        """Return the time to the candidate's next step; now and then a candidate is stopped."""
        return self._rng.choice([2.0, 2.0, 2.0, 2.0, self._rng.uniform(2, 60)])

    def _act(self, now_s: float, candidate: _Candidate) -> None:
        local_s = candidate.clock(now_s)
        assert candidate.seen is not None
        new = None
        match decide(candidate.name, candidate.seen, candidate.term, local_s, TIMING):
            case CreateLease():
                new = LeaseRecord(candidate.name, 0, str(now_s))
            case TakeLease(record):
                new = LeaseRecord(candidate.name, record.transitions + 1, str(now_s))
            case RenewLease(record):
                new = LeaseRecord(candidate.name, record.transitions, str(now_s))
            case WaitForLeader():
                candidate.term = None
        if new is None:
            self._later(now_s + self._pause_s(), candidate, "look")
        else:
            arrival = ("arrives", local_s, candidate.seen.record, new, now_s + 5)
            self._later(now_s + self._delay_s(), candidate, arrival)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    offsets=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=3),
    rates=st.lists(st.floats(0.92, 1.08), min_size=3, max_size=3),
)
def test_leaders_never_overlap_and_tokens_grow(seed: int, offsets: list[float], rates: list[float]) -> None:
    candidates = [_Candidate(f"c{i}", offset, rates[i]) for i, offset in enumerate(offsets)]
    rig = _Rig(candidates, random.Random(seed))
    rig.run(until_s=600)
    assert rig.tokens == sorted(rig.tokens)
    assert rig.record is not None, "somebody led"


def test_two_terms_never_share_a_token() -> None:
    """A process that acquires the Lease again after its term expired gets a higher token."""
    assert decide("me", LeaseObservation(OURS, 0.0), Term(token_of(OURS), 50.0), 60.0, TIMING) == TakeLease(OURS)
