"""One gateway: the real waiting room, router, prefix record and length model, of one pool.

What it knows of replicas is what their beats said; what it knows of its own requests is exact. A request's life is that
of `functions.gateway.exchange`, without bytes:

    come -> waiting room -> route -> engine: first token -> engine: over

Neighbours: `simulation` owns the gateways and the engines, and tells each of the other's.
"""

from collections import OrderedDict
from collections.abc import Callable

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.api.snapshot import AdmissionEntry, RoutingEntry
from functions.decisions.admission import Admission, Refuse
from functions.decisions.admission_ticket import OVER, Ticket, cost_tokens
from functions.decisions.baselines import RouterName, baseline
from functions.decisions.length_model import LengthModel
from functions.decisions.own_load import OwnLoad, Place
from functions.decisions.prefix_record import PrefixRecord
from functions.decisions.replicas import PoolIndex, ReplicaView
from functions.decisions.routing import NoReplica, RouteRequest, predict, route
from functions.decisions.routing_candidates import all_candidates
from functions.simulator.events import Events
from functions.simulator.fleet.outcome import Outcome
from functions.simulator.workload.asked import Asked

BASE = EngineName("base")
MAX_BLOCKS = 2_000_000
_MAX_SESSIONS = 100_000
_KEPT_TWICE = 2  # of a replica's cache is taken for sent before the record turns: as `functions.gateway.prefixes`


class Request:
    """One request under way at a gateway."""

    __slots__ = ("asked", "begun_s", "expected_tokens", "gateway", "number", "place", "ticket")

    def __init__(self, asked: Asked, number: int, gateway: "Gateway", expected_tokens: int) -> None:
        self.asked = asked
        self.number = number
        self.gateway = gateway
        self.expected_tokens = expected_tokens
        self.ticket: Ticket | None = None
        self.place: Place | None = None
        self.begun_s = 0.0  # when it was dispatched


class Gateway:
    def __init__(
        self,
        pool: PoolName,
        index: PoolIndex,
        events: Events,
        outcome: Outcome,
        *,
        send: Callable[[Request, ReplicaId], None],
        shed: Callable[[], None],
        admission: AdmissionEntry | None,
        routing: RoutingEntry,
        router: RouterName,
        block_tokens: int,
        name: str,
    ) -> None:
        self._pool = pool
        self._index = index
        self._events = events
        self._outcome = outcome
        self._send = send
        self._is_shed = shed
        self._routing = routing
        self._baseline = baseline(router)
        self._block_tokens = block_tokens
        self._name = name
        self._load = OwnLoad()
        self._lengths = LengthModel()
        self._record = PrefixRecord(MAX_BLOCKS, 2 * routing.session_ttl_s)
        self._sessions: OrderedDict[str, ReplicaId] = OrderedDict()
        self._waiting: dict[int, Request] = {}
        self._count = 0
        self.admission = Admission(admission, events.now_s) if admission is not None else None

    def heard(self, view: ReplicaView) -> None:
        self._record.holds_at_most(view.id, _KEPT_TWICE * view.kv_capacity_tokens)

    def come(self, asked: Asked) -> None:
        now_s = self._events.now_s
        self._outcome.bands[asked.band].asked += 1
        self._count += 1
        expected = self._lengths.output_tokens(BASE, asked.tenant)
        request = Request(asked, self._count, self, expected)
        if self.admission is None:
            self._dispatch(request)
            return
        prompt = asked.prompt_tokens
        request.ticket = Ticket(
            self._count, asked.tenant, 1.0, asked.band, prompt, prompt + expected, cost_tokens(prompt, expected),
            now_s + self.admission.rules[asked.band].max_wait_s, now_s, content=b"%d" % self._count,
        )  # fmt: skip
        verdict = self.admission.arrive(request.ticket, now_s)
        if verdict == "dispatch":
            self._dispatch(request)
        elif verdict == "wait":
            self._waiting[self._count] = request
        else:
            self._shed(request, verdict)

    def first(self, request: Request) -> None:
        """Its first token has come."""
        now_s, asked = self._events.now_s, request.asked
        self._outcome.bands[asked.band].began(now_s - asked.at_s, request.begun_s - asked.at_s)
        if request.place is not None:
            self._load.start(request.place)
        if self.admission is not None and request.ticket is not None:
            self.admission.read(request.ticket, now_s - request.begun_s)
            self._serve()

    def over(self, request: Request) -> None:
        asked = request.asked
        if request.place is not None:
            self._load.leave(request.place)
        self._lengths.learn_answer(BASE, asked.tenant, asked.output_tokens, cut=False)
        if self.admission is not None and request.ticket is not None:
            self.admission.ended(request.ticket, cost_tokens(asked.prompt_tokens, asked.output_tokens))
            self._serve()

    def sweep(self) -> None:
        """A few times a second."""
        if self.admission is None:
            return
        now_s = self._events.now_s
        self.admission.look([row[6] for row in self._index.rows], now_s)
        for ticket in list(self.admission.late(now_s)):
            self._shed(self._waiting.pop(ticket.number), self.admission.refuse_late(ticket, now_s))
        self._serve()

    def _serve(self) -> None:
        admission, now_s = self.admission, self._events.now_s
        if admission is None or not admission.waiting:
            return
        while (ticket := admission.next(now_s)) is not None:
            request = self._waiting.pop(ticket.number)
            if ticket.state == OVER:
                self._shed(request, admission.refuse_late(ticket, now_s))
            else:
                self._dispatch(request)

    def _shed(self, request: Request, why: Refuse | NoReplica) -> None:
        self._outcome.bands[request.asked.band].shed[why.reason] += 1
        if isinstance(why, NoReplica) and self.admission is not None and request.ticket is not None:
            self.admission.ended(request.ticket, None)
        self._is_shed()

    def _dispatch(self, request: Request) -> None:
        asked, now_s = request.asked, self._events.now_s
        known = self._record.match(asked.blocks, now_s) if asked.blocks and self._baseline is None else {}
        most = asked.prompt_tokens - 1
        wanted = RouteRequest(
            BASE,
            False,
            asked.prompt_tokens,
            f"{self._name}{request.number}",
            {found: min(count * self._block_tokens, most) for found, count in known.items()},
            self._sessions.get(asked.session) if asked.session is not None else None,
            "",
            request.expected_tokens,
        )
        if self._baseline is not None:
            rows = all_candidates(wanted, self._index, ())
            if isinstance(rows, NoReplica):
                self._shed(request, rows)
                return
            row = self._baseline.pick(self._pool, BASE, asked.blocks, rows, self._load)
            decision = predict(wanted, row[6], self._load)
        else:
            found = route(wanted, self._index, self._routing, self._load)
            if isinstance(found, NoReplica):
                self._shed(request, found)
                return
            decision = found
        self._sent(request, decision.replica.id, asked.prompt_tokens - decision.cached_tokens)
        self._outcome.routes[decision.reason] += 1

    def _sent(self, request: Request, replica_id: ReplicaId, prefill_tokens: int) -> None:
        asked, now_s = request.asked, self._events.now_s
        request.begun_s = now_s
        request.place = self._load.enter(replica_id, prefill_tokens, now_s)
        if self._baseline is None:
            held_tokens = asked.prompt_tokens + request.expected_tokens
            self._record.enter(asked.blocks, replica_id, held_tokens, self._block_tokens, now_s)
            if asked.session is not None:
                self._sessions[asked.session] = replica_id
                self._sessions.move_to_end(asked.session)
                if len(self._sessions) > _MAX_SESSIONS:
                    self._sessions.popitem(last=False)
        self._send(request, replica_id)
