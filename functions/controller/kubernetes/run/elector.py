"""Elector: a thread that competes for leadership, and the guard that every write of a term passes.

The thread does nothing else, so that no reconcile, however long, delays a renewal. A term ends by itself when no
renewal succeeded in time, because `TermGuard.check` reads the clock.

Laws: a request to the Lease never waits beyond the term that it would prolong. A process that was stopped for longer
than its term (SIGSTOP, a suspended machine) writes nothing when it wakes, since the clock went on.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from functions.controller.kubernetes.errors import LeadershipLost
from functions.controller.kubernetes.run.election import (
    CreateLease,
    LeaseObservation,
    LeaseRecord,
    RenewLease,
    TakeLease,
    Term,
    WaitForLeader,
    decide,
    observe,
    term_after,
    token_of,
)
from functions.controller.kubernetes.run.lease import LeaseClient, LeaseTaken, LeaseUnreachable

_REQUEST_TIMEOUT_S = 5.0
_SHORTEST_TIMEOUT_S = 0.1
_JITTER_RATIO = 0.2

_log = logging.getLogger(__name__)


def boot_clock() -> float:
    """Return seconds on a clock that runs while the machine sleeps, which Linux's monotonic clock does not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass(frozen=True, slots=True)
class TermGuard:
    """One term's right to write, for any thread."""

    token: int
    _elector: "Elector"

    def check(self) -> None:
        """Raise LeadershipLost once the term is over, even if a later one of the same process has begun."""
        if self.remaining_s() <= 0:
            raise LeadershipLost(f"term {self.token} is over; another controller may be writing now")

    def remaining_s(self) -> float:
        """Return the seconds that a request which begins now may take: until the term ends, 0 if it is over. If that is
        0 or less, none may begin."""
        term = self._elector.term
        return term.until_s - self._elector.now_s() if term is not None and term.token == self.token else 0.0


class Elector:
    """Election thread. `run` belongs to that thread; any thread may use `term`, `guard`, `end_outranked_term` and
    `stop`."""

    def __init__(
        self,
        client: LeaseClient,
        me: str,
        on_change: Callable[[], None],
        *,
        lowest_token: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = boot_clock,
        rng: random.Random | None = None,
    ) -> None:
        """`lowest_token` returns the highest token known from elsewhere: a Lease that was deleted begins above it. It
        raises LeaseUnreachable if that is unknown now: a term below that token could never write."""
        self.me = me
        self.problem = ""
        self.leader = ""
        self.now_s = clock
        self._client = client
        self._timing = client.timing
        self._on_change = on_change
        self._lowest_token = lowest_token
        self._rng = rng or random.Random()  # noqa: S311 - spreads requests; guards nothing
        self._outranked_by = 0
        self._seen: LeaseObservation | None = None
        self._term: Term | None = None
        self._stopped = threading.Event()
        self._ended = threading.Event()  # set when `run` is over

    @property
    def term(self) -> Term | None:
        """Current term, or None if there is none or it ran out."""
        term = self._term
        return term if term is not None and term.holds(self.now_s()) else None

    def guard(self) -> TermGuard | None:
        """Return the right to write during the current term, or None if this process does not lead."""
        term = self.term
        return TermGuard(term.token, self) if term is not None else None

    def run(self) -> None:
        """Compete for leadership until `stop`, then end the term."""
        while not self._stopped.is_set():
            self.step()
            self._stopped.wait(self._timing.retry_s * self._rng.uniform(1 - _JITTER_RATIO, 1.0))
        self._term = None
        self._ended.set()

    def end_outranked_term(self, token: int) -> None:
        """End our term if `token`, which a store of state has seen before refusing ours, is higher. The next term
        begins above it.

        So a new Lease beside a database that was kept (a reinstallation) does not stay below it for ever. A process
        that has lost the Lease gains nothing: only its holder takes a term.
        """
        term = self._term
        if term is not None and term.token < token:
            _log.warning("term %d ends: the registry has seen term %d; the next one begins above it", term.token, token)
            self._outranked_by = max(self._outranked_by, token)
            self._term = None

    def stop(self) -> None:
        """End the term; no guard permits a write any more. The Lease stays ours until it runs out."""
        self._stopped.set()
        self._term = None

    def release_lease(self) -> None:
        """Release the Lease if it is ours, so that the next leader need not wait; a failure is logged. Call after
        `stop`, with no write under way. Waits until `run` has ended."""
        self._ended.wait(2 * _REQUEST_TIMEOUT_S)
        record = self._seen.record if self._seen is not None else None
        if record is None or record.holder != self.me:
            return
        try:
            self._client.replace("", record, record.transitions, _REQUEST_TIMEOUT_S)
            _log.info("released the Lease after term %d", token_of(record))
        except (LeaseTaken, LeaseUnreachable) as error:
            _log.warning("the Lease could not be released; the next leader waits until it expires: %s", error)

    def step(self) -> None:
        """Read the Lease, write it if due, and call `on_change` if leadership began, ended or got another term.
        Temporary errors are logged, not raised."""
        before = self.term
        try:
            self._act()
            self.problem = ""
        except LeaseTaken as error:
            _log.info("%s", error)
        except LeaseUnreachable as error:
            if str(error) != self.problem:
                _log.warning("the Lease cannot be read or written: %s", error)
            self.problem = str(error)
        after = self.term
        if (before is None) != (after is None) or (before and after and before.token != after.token):
            _log.info("leading, term %d" if after else "not leading%.0s", after.token if after else 0)
            self._on_change()

    def _act(self) -> None:
        record = self._client.read(self._timeout_s())
        self._seen = observe(self._seen, record, self.now_s())
        self.leader = record.holder if record is not None else ""
        match decide(self.me, self._seen, self.term, self.now_s(), self._timing):
            case CreateLease():
                floor = max(self._lowest_token(), self._outranked_by)
                self._write(lambda timeout_s: self._client.create(self.me, floor, timeout_s))
            case TakeLease(known):
                transitions = max(known.transitions + 1, self._lowest_token(), self._outranked_by)
                self._write(lambda timeout_s: self._client.replace(self.me, known, transitions, timeout_s))
            case RenewLease(known):
                self._write(lambda timeout_s: self._client.replace(self.me, known, known.transitions, timeout_s))
            case WaitForLeader():
                self._term = None

    def _write(self, write: Callable[[float], LeaseRecord]) -> None:
        sent_s = self.now_s()
        record = write(self._timeout_s())
        self._seen = observe(self._seen, record, self.now_s())
        self.leader = self.me
        self._term = term_after(record, sent_s, self._timing)

    def _timeout_s(self) -> float:
        term = self.term
        left_s = term.until_s - self.now_s() if term is not None else _REQUEST_TIMEOUT_S
        return max(_SHORTEST_TIMEOUT_S, min(_REQUEST_TIMEOUT_S, left_s))
