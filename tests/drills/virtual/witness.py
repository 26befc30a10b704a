"""Witness of a run: its log, and what was observed of requests from outside and at a few functions inside.

Spies in front of functions of the product record calls and change nothing. Traffic on the wire is observed on the
wire. `checks` compares the two.
"""

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from unittest.mock import patch

from functions.decisions.quota.account import QuotaAccount
from functions.decisions.quota.reservation import Reservation
from functions.gateway.gateway import Gateway
from functions.gateway.http.headers import request_id_of
from functions.gateway.request import ending
from functions.gateway.request.attempt import Attempt
from functions.gateway.request.exchange import RequestExchange
from functions.gateway.request.request import Ended
from tests.drills.virtual.bills import Bills
from tests.drills.virtual.loop import NODE, Node, VirtualLoop
from tests.drills.virtual.pipes import PipeTransport
from tests.drills.virtual.usage_seen import UsageSeen

_UNREAD = "ASGI callable returned without completing response."
_REQUEST_ID = re.compile(rb"\r\nx-request-id: ([^\r]+)\r\n")


@dataclass(frozen=True, slots=True)
class Begun:
    """An attempt as its gateway started it, and what the gateway knew of the replica."""

    at_s: float
    node: Node
    request_id: str
    replica: str
    pool: str
    last_phase: str
    last_beat_s: float
    is_silent: bool


@dataclass(frozen=True, slots=True)
class Settled:
    node: Node
    reservation: Reservation
    accounts: tuple[QuotaAccount, ...]
    figures: tuple[int, int, float, float]  # input, output, KV, accelerator
    first: bool  # true if this call charged it


@dataclass
class Witness:
    loop: VirtualLoop
    bills: Bills
    lines: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)  # logged, raised into the loop, or raised by a protocol
    handled: dict[str, Node] = field(default_factory=dict)
    opened: Counter[tuple[Node, str]] = field(default_factory=Counter)
    closed: Counter[tuple[Node, str]] = field(default_factory=Counter)
    reservations: list[tuple[Node, Reservation]] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)
    taken: dict[QuotaAccount, list[int]] = field(default_factory=dict)
    account_nodes: dict[QuotaAccount, Node] = field(default_factory=dict)
    begun: list[Begun] = field(default_factory=list)
    sent: list[tuple[float, Node, str, str]] = field(default_factory=list)  # time, gateway, request, replica
    first_bytes_s: dict[str, float] = field(default_factory=dict)  # first byte of each answer, as a gateway wrote it
    usage: UsageSeen = field(default_factory=UsageSeen)
    beats: dict[tuple[Node, str], tuple[tuple[int, int], str, float]] = field(default_factory=dict)
    hears_since_s: dict[Node, float] = field(default_factory=dict)

    def say(self, text: str) -> None:
        node = NODE.get(None)
        self.lines.append(f"{self.loop.time():11.6f} {node.name if node is not None else '-':<6} {text}")

    def hash(self) -> str:
        digest = hashlib.sha256("\n".join(self.lines).encode())
        digest.update(b"%d %.9f" % (self.loop.steps, self.loop.time()))
        return digest.hexdigest()

    # on the wire

    def wrote(self, end: PipeTransport, data: bytes) -> None:
        source, target = end.node.name, end.peer.node.name
        if source[0] != "g":
            return
        if target[0] == "r" and data.startswith(b"POST "):
            found = _REQUEST_ID.search(data)
            request_id = found[1].decode() if found is not None else "?"
            self.sent.append((self.loop.time(), end.node, request_id, target))
            self.say(f"sends {request_id} to {target}")
        elif target[0] == "c":
            request_id = end.answers
            if request_id and request_id not in self.first_bytes_s:
                self.first_bytes_s[request_id] = self.loop.time()
                self.say(f"begins to answer {request_id}: {data[:15].decode(errors='replace')}")

    def raised(self, end: PipeTransport, error: Exception) -> None:
        self.errors.append(f"{end.node} raised into its transport: {error!r}")

    def unhandled(self, loop: Any, context: dict[str, Any]) -> None:
        self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    # spies inside

    def _handle(self, real: Any) -> Callable[..., Any]:
        def handle(gateway: Gateway, route: Any, headers: Any, *rest: Any, **more: Any) -> Any:
            self.handled[request_id_of(headers)] = NODE.get()
            return real(gateway, route, headers, *rest, **more)

        return handle

    def _start(self, real: Any) -> Callable[..., Any]:
        def start(exchange: RequestExchange) -> None:
            self.opened[NODE.get(), exchange.admitted.request_id] += 1
            real(exchange)

        return start

    def _ended(self, real: Any) -> Callable[..., Any]:
        def ended(services: Any, *exchange_and_how: Any) -> Ended:
            made: Ended = real(services, *exchange_and_how)
            if NODE.get().alive:  # a killed process charges nothing for the ends of its cancelled tasks
                self.bills.ended(services.usage, made, self.loop.time())
                self.usage.ended(made)
            request_id = made.admitted.request_id
            self.closed[NODE.get(), request_id] += 1
            failures = ",".join(failure.value for failure in made.failures)
            self.say(f"ended {request_id} with {made.status} {made.code} after {made.attempts} attempts ({failures})")
            return made

        return ended

    def _reservation(self, real: Any) -> Callable[..., Any]:
        def init(reservation: Reservation, accounts: tuple[QuotaAccount, ...]) -> None:
            real(reservation, accounts)
            self.reservations.append((NODE.get(), reservation))

        return init

    def _settle(self, real: Any) -> Callable[..., Any]:
        def settle(reservation: Reservation, *figures: Any) -> bool:
            first: bool = real(reservation, *figures)
            self.settled.append(Settled(NODE.get(), reservation, reservation._accounts, figures[:4], first))
            return first

        return settle

    def _take(self, real: Any) -> Callable[..., Any]:
        def take(account: QuotaAccount, costs: Any, now_us: int) -> None:
            taken = self.taken.setdefault(account, [0] * 5)
            self.account_nodes[account] = NODE.get()
            for index, cost in enumerate(costs):
                taken[index] += cost
            real(account, costs, now_us)

        return take

    def _begin(self, real: Any) -> Callable[..., Any]:
        def begin(attempt: Attempt) -> None:
            node, replica = NODE.get(), attempt.replica
            _, phase, beat_s = self.beats.get((node, replica.id), ((0, 0), "unknown", 0.0))
            heard_s = max(beat_s, self.hears_since_s.get(node, 0.0))
            request_id = attempt._admitted.request_id
            services = attempt._services
            # most replicas are silent, or this one answers
            doubted = services.fleet.expiry.doubted | services.fleet.expiry.serving
            is_silent = services.state.bus_down or replica.id in doubted
            self.begun.append(
                Begun(self.loop.time(), node, request_id, replica.id, replica.pool, phase, heard_s, is_silent)
            )
            self.say(f"tries {request_id} at {replica.id}")
            real(attempt)

        return begin

    def _heard(self, real: Any) -> Callable[..., Any]:
        def heard(gateway: Gateway, beat: Any) -> None:
            key, order = (NODE.get(), beat.replica_id), (beat.incarnation, beat.sequence)
            known = self.beats.get(key)
            if known is None or order > known[0]:
                self.beats[key] = (order, beat.phase, self.loop.time())
            real(gateway, beat)

        return heard

    def _hears_again(self, real: Any) -> Callable[..., Any]:
        def bus_recovered(gateway: Gateway) -> None:
            if gateway.services.state.bus_down:
                self.hears_since_s[NODE.get()] = self.loop.time()
            real(gateway)

        return bus_recovered

    @contextmanager
    def watching(self) -> Iterator[None]:
        doors: tuple[tuple[type | ModuleType, str, Callable[[Any], Callable[..., Any]]], ...] = (
            (Gateway, "handle", self._handle),
            (RequestExchange, "start", self._start),
            (ending, "ended_of", self._ended),
            (Gateway, "receive_heartbeat", self._heard),
            (Gateway, "bus_recovered", self._hears_again),
            (Attempt, "start", self._begin),
            (Reservation, "__init__", self._reservation),
            (Reservation, "settle", self._settle),
            (QuotaAccount, "spend", self._take),
        )
        with ExitStack() as stack:
            for owner, name, spy in doors:
                stack.enter_context(patch.object(owner, name, spy(getattr(owner, name))))
            stack.enter_context(_listening(self))
            stack.enter_context(self.usage.watching())
            yield


class _Ear(logging.Handler):
    def __init__(self, witness: Witness) -> None:
        super().__init__(logging.WARNING)
        self._witness = witness

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= logging.ERROR and not _is_expected(record):
            reason = f": {record.exc_info[1]!r}" if record.exc_info else ""
            self._witness.errors.append(f"logged: {text}{reason}")
        self._witness.say(f"log: {text}")


def _is_expected(record: logging.LogRecord) -> bool:
    """Return whether the record is expected: of a killed process, an engine with faults, or a late reader.

    The gateway's plain lane leaves it to uvicorn to report an answer that a client did not read in time.
    """
    node = NODE.get(None)
    if node is None or record.name != "uvicorn.error":
        return False
    return not node.alive or node.name[0] == "r" or record.getMessage() == _UNREAD


@contextmanager
def _listening(witness: Witness) -> Iterator[None]:
    """Add the product's log records to the run's log; an error among them counts as a fault."""
    ear, loggers = _Ear(witness), [logging.getLogger(name) for name in ("functions", "uvicorn.error")]
    kept = [(each.propagate, each.level) for each in loggers]
    for each in loggers:
        each.addHandler(ear)
        each.propagate = False
        each.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for each, (propagate, level) in zip(loggers, kept, strict=True):
            each.removeHandler(ear)
            each.propagate, each.level = propagate, level
