"""Elector: a thread that runs for leader, and the guard that every write of a term passes.

The thread does nothing else, so that no reconcile, however long, delays a renewal. A term ends by itself when no
renewal succeeded in time; nothing has to notice that first, because `TermGuard.check` reads the clock.

Laws: a request to the Lease never waits beyond the term that it would prolong; a process that was stopped for longer
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
    Create,
    LeaseObservation,
    LeaseRecord,
    Renew,
    Take,
    Term,
    Wait,
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
    """Seconds that go on while the machine sleeps, which Linux's monotonic clock does not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass(frozen=True, slots=True)
class TermGuard:
    """One term's right to write. Any thread may ask."""

    token: int
    _elector: "Elector"

    def check(self) -> None:
        """Raises LeadershipLost once the term is over, also if a later one of the same process began."""
        if self.remaining_s() <= 0:
            raise LeadershipLost(f"term {self.token} is over; another controller may be writing now")

    def remaining_s(self) -> float:
        """How long a request may take that begins now; 0 or less: none may begin."""
        term = self._elector.term
        return term.until_s - self._elector.now_s() if term is not None and term.token == self.token else 0.0


class Elector:
    """`run` belongs to one thread; `term`, `guard`, `outranked` and `stop` to any."""

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
        """`lowest_token` is the highest token known from elsewhere: a Lease that was deleted begins above it. It raises
        LeaseUnreachable where that cannot be told now: a term that began below it could write nothing, for ever."""
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
        self._ended = threading.Event()  # `run` is over

    @property
    def term(self) -> Term | None:
        """The current term; None where there is none, or where it ran out."""
        term = self._term
        return term if term is not None and term.holds(self.now_s()) else None

    def guard(self) -> TermGuard | None:
        """The right to write during the current term, or None."""
        term = self.term
        return TermGuard(term.token, self) if term is not None else None

    def run(self) -> None:
        """Until `stop`."""
        while not self._stopped.is_set():
            self.step()
            self._stopped.wait(self._timing.retry_s * self._rng.uniform(1 - _JITTER_RATIO, 1.0))
        self._term = None
        self._ended.set()

    def outranked(self, token: int) -> None:
        """Whoever keeps state has seen this token and refuses ours: our term is over, and the next one begins above it.

        So a Lease that begins anew beside a database that was kept (an installation made again) does not stay below
        for ever. Whoever has lost the Lease wins nothing by it: only its holder takes a term.
        """
        term = self._term
        if term is not None and term.token < token:
            _log.warning("term %d is below %d, which the registry has seen: leading anew", term.token, token)
            self._outranked_by = max(self._outranked_by, token)
            self._term = None

    def stop(self) -> None:
        """End the term; from here on no guard lets a write pass. The Lease stays ours until it runs out."""
        self._stopped.set()
        self._term = None

    def give_back(self) -> None:
        """After `stop`, and only when no write of ours can still be under way: the next leader need not wait."""
        self._ended.wait(2 * _REQUEST_TIMEOUT_S)
        record = self._seen.record if self._seen is not None else None
        if record is None or record.holder != self.me:
            return
        try:
            self._client.replace("", record, record.transitions, _REQUEST_TIMEOUT_S)
            _log.info("gave the Lease back after term %d", token_of(record))
        except (LeaseTaken, LeaseUnreachable) as error:
            _log.warning("the Lease could not be given back; the next leader waits for its end: %s", error)

    def step(self) -> None:
        """One look, and one write where it is due. Raises nothing that may pass."""
        before = self.term
        try:
            self._act()
            self.problem = ""
        except LeaseTaken as error:
            _log.info("%s", error)
        except LeaseUnreachable as error:
            if str(error) != self.problem:
                _log.warning("the Lease cannot be used: %s", error)
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
            case Create():
                floor = max(self._lowest_token(), self._outranked_by)
                self._write(lambda timeout_s: self._client.create(self.me, floor, timeout_s))
            case Take(known):
                transitions = max(known.transitions + 1, self._lowest_token(), self._outranked_by)
                self._write(lambda timeout_s: self._client.replace(self.me, known, transitions, timeout_s))
            case Renew(known):
                self._write(lambda timeout_s: self._client.replace(self.me, known, known.transitions, timeout_s))
            case Wait():
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
