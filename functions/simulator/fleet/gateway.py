"""One gateway: the real view of the fleet, waiting rooms, routers, prefix records, retries and limits, of all pools.

What it knows of replicas is what their beats said and what its own requests found; what it knows of its own requests is
exact. A request's life is that of `functions.gateway.request.exchange`, without bytes:

    come -> limits -> waiting room -> route -> sent -> first token -> over
                          ^             ^ |______ nobody has the adapter: it is loaded (`cold_loads`)
                          |             |________ the attempt failed, and nothing of an answer was seen
                          |______________________ its pool cannot: another one

Neighbours: `chooser` knows where to; `room` is one pool; `simulation` owns gateways and engines, and tells each of the
other's.
"""

from functools import partial

from functions.api.ids import ReplicaId
from functions.api.snapshot import FallbackWhen
from functions.decisions.admission.bands import BATCH
from functions.decisions.admission.queue import GIVES_WAY, Refuse
from functions.decisions.admission.ticket import OVER, cost_tokens
from functions.decisions.autoscaling.signals import is_overflow
from functions.decisions.request.length_model import LengthModel
from functions.decisions.routing.choice import NoReplica, Prediction
from functions.decisions.routing.replicas import ReplicaView
from functions.decisions.routing.retry import EVIDENCE, WORTH_A_LOAD, Failure, may_retry
from functions.fleet.heartbeat import Heartbeat
from functions.simulator.fleet.chooser import Chooser
from functions.simulator.fleet.cold_loads import ColdLoads
from functions.simulator.fleet.request import Request
from functions.simulator.fleet.room import Room
from functions.simulator.fleet.setting import Zone
from functions.simulator.fleet.steering import Shed, Steering
from functions.simulator.fleet.tenant_limits import TenantLimits
from functions.simulator.fleet.world import World
from functions.simulator.router_port import SimulatedRouter
from functions.simulator.workload.asked import Asked

_THE_POOLS_OWN = frozenset(
    {Failure.CONNECT, Failure.REPLICA_LOST, Failure.ABORTED, Failure.OVERLOADED, Failure.ADAPTER_MISSING}
)  # as `functions.gateway.routing.fallback_plan`
_MAX_COLD_WAITS = 2
_SELDOM = 4  # sweeps: once a second is often enough to look for what is a minute late, and to forget


class Gateway(Chooser):
    def __init__(
        self, name: str, zone: Zone, world: World, *, router: SimulatedRouter | None, limits: TenantLimits | None
    ) -> None:
        super().__init__(name, zone, world, router)
        self._world = world
        self._outcome = world.outcome
        self._limits = limits
        self._lengths = LengthModel()
        self.cold = ColdLoads(self.fleet, self._load, world.events, world.load_adapter, world.setting.timeouts.cold_s)
        self.open: dict[Request, None] = {}
        self._count = self._sweeps = 0
        self.deaf_until_s = 0.0  # the bus is out of its reach
        self.is_up = True

    # what it hears

    def heard(self, heartbeat: Heartbeat, view: ReplicaView | None = None) -> None:
        """`view` is what all make of the beat, where it has been made already."""
        if not self.fleet.fold(heartbeat, self._events.now_s, view):
            return
        replica_id = ReplicaId(heartbeat.replica_id)
        self.rooms.heard(heartbeat)
        if heartbeat.phase in ("hung", "dead"):
            self._abandon(replica_id)

    @property
    def is_deaf(self) -> bool:
        return self._events.now_s < self.deaf_until_s

    def sweep(self) -> None:
        """A few times a second."""
        now_s = self._events.now_s
        for replica_id in self.fleet.expire(now_s) if not self.is_deaf else ():
            self.rooms.forget(replica_id)
            self._abandon(replica_id)
        for room in self.rooms.all():
            if room.admission is None:
                continue
            room.admission.look([row[6] for row in self.fleet.index(room.pool).rows], now_s)
            self.rooms.look_at_ladder(room, now_s)
            for ticket in list(room.admission.late(now_s)):
                self._turned_away(room.waiting.pop(ticket.number), room.admission.refuse_late(ticket, now_s))
            self._serve(room)
        self.fleet.judge(now_s)
        self._sweeps += 1
        if self._sweeps % _SELDOM == 0:
            self.sessions.expire()
            self._give_up_late(now_s)
        if self._limits is not None:
            self._limits.round(now_s, in_touch=not self.is_deaf)
            self._limits.sweep(now_s)

    # a request

    def come(self, asked: Asked) -> None:
        self._count += 1
        pool = self.rooms.pool_of(asked.pool)
        request = Request(asked, self._count, self, pool, self.rooms.engine_name(asked.adapter))
        self.open[request] = None
        if request.is_adapter:
            request.blocks = self.rooms.blocks_of(asked)
        request.expected_tokens = self._lengths.output_tokens(request.model, asked.tenant)
        self._outcome.band(pool, asked.band).asked += 1
        figures = self._world.figures(pool).now
        figures.arrivals += 1
        figures.prompt_tokens += asked.prompt_tokens
        figures.output_tokens += request.expected_tokens
        if asked.band == BATCH:
            figures.deferrable_tokens += asked.prompt_tokens + request.expected_tokens
        if self._limits is not None:
            request.held = self._limits.enter(request, self._events.now_s)
            if request.held is None:
                self._shed(request, "over_quota")
                return
        room = self.rooms.room(pool)
        room.budget.on_request(room.routing.retry_budget_ratio, self._events.now_s)
        if self._world.steering is not None and self._is_steered(request, self._world.steering):
            return
        if room.routing.fallback:
            room = self._shifted(request, room)
        self._submit(request, room)

    def first(self, request: Request) -> None:
        """Its first token has come."""
        now_s, asked = self._events.now_s, request.asked
        request.first_s = now_s
        ttft_s = now_s - asked.at_s
        band = self._outcome.band(request.asked_pool, asked.band)
        band.began(ttft_s, request.begun_s - asked.at_s)
        self._world.figures(request.pool).now.ttft.add(ttft_s * 1000)
        if request.been:
            band.degraded += 1
            self._world.figures(request.been[0]).now.degraded += 1
        place = request.place
        if place is not None:
            self.fleet.started(place.replica_id, place.sent_s, now_s, place.prefill_tokens)
            self._load.start(place)
        if self._router is not None:
            self._router.started(self._key(request))
        room = self.rooms.room(request.pool)
        if room.admission is not None and request.ticket is not None:
            room.admission.read(request.ticket, now_s - request.ticket.dispatched_s)
            self._serve(room)

    def over(self, request: Request) -> None:
        """Its last token has come."""
        asked, place = request.asked, request.place
        if place is not None:
            self.fleet.answered(place.replica_id, place.sent_s, self._events.now_s)
        self._lengths.learn_answer(request.model, asked.tenant, asked.output_tokens, cut=False)
        self._outcome.pools[request.pool].answered_tokens += asked.prompt_tokens + asked.output_tokens
        if asked.output_tokens > 1:
            gap_s = (self._events.now_s - request.first_s) / (asked.output_tokens - 1)
            self._outcome.band(request.asked_pool, asked.band).answer_gaps.add(gap_s * 1000)
        self._end(request, cost_tokens(request.computed_tokens, asked.output_tokens))

    def attempt_failed(self, request: Request, failure: Failure) -> None:
        """Its connection broke, or never was, or was given up; no engine has it any more."""
        now_s = self._events.now_s
        request.failures += (failure,)
        request.attempt += 1
        place, request.place = request.place, None
        if place is not None:
            self._load.leave(place)
            if failure in EVIDENCE:
                self.fleet.eject(place.replica_id, now_s)
            elif failure is Failure.ADAPTER_MISSING:
                self.fleet.retract_adapter(place.replica_id, request.model)
        if request.first_s:
            self._lost(request, "upstream_lost")
            return
        room = self.rooms.room(request.pool)
        deadline_s = request.asked.at_s + self._setting.timeouts.answer_s
        may = may_retry(request.failures, room.routing.retry_max_attempts, now_s, deadline_s, 0)
        if may and room.budget.try_spend(room.routing.retry_budget_ratio, now_s):
            self._outcome.retries += 1
            self._route(request)
        else:
            when: FallbackWhen = "saturated" if failure is Failure.OVERLOADED else "unavailable"
            self._cannot(request, when, "replicas_failed")

    def stop(self, reason: str) -> None:
        """The process ends, and every connection with it."""
        self.is_up = False
        for request in list(self.open):
            self._world.engines.abort(request)
            self._lost(request, reason)

    # to a waiting room

    def _is_steered(self, request: Request, steering: Steering) -> bool:
        """Whether it was refused; else it may have been given another pool."""
        steered = steering.steer(request.asked, request.pool, self._events.now_s)
        if isinstance(steered, Shed):
            self._shed(request, steered.reason)
            return True
        if steered is not None and steered != request.pool:
            self._to_pool(request, steered)
        return False

    def _submit(self, request: Request, room: Room) -> None:
        admission = room.admission
        if admission is None:
            self._dispatched(request)
            return
        ticket = request.ticket = room.ticket(request, self._events.now_s)
        verdict = admission.arrive(ticket, self._events.now_s)
        if verdict == "dispatch":
            self._dispatched(request)
        elif verdict == "wait":
            room.waiting[ticket.number] = request
        else:
            self._turned_away(request, verdict)

    def _serve(self, room: Room) -> None:
        admission, now_s = room.admission, self._events.now_s
        if admission is None or not admission.waiting:
            return
        while (ticket := admission.next(now_s)) is not None:
            request = room.waiting.pop(ticket.number)
            if ticket.state == OVER:
                self._turned_away(request, admission.refuse_late(ticket, now_s))
            else:
                self._dispatched(request)

    def _turned_away(self, request: Request, why: Refuse) -> None:
        self._cannot(request, "saturated", why.reason)

    # to a replica

    def _dispatched(self, request: Request) -> None:
        request.begun_s = self._events.now_s
        self._route(request)

    def _route(self, request: Request) -> None:
        room = self.rooms.room(request.pool)
        decision = self._decide(request, room)
        if isinstance(decision, NoReplica):
            self._without_replica(request, room, decision)
        else:
            self._sent(request, room, decision)

    def _sent(self, request: Request, room: Room, decision: Prediction) -> None:
        asked, now_s, replica_id = request.asked, self._events.now_s, decision.replica.id
        request.sent_s = now_s
        request.attempt += 1
        request.tried |= {replica_id}
        request.place = self._load.enter(replica_id, asked.prompt_tokens - decision.cached_tokens, now_s)
        self.fleet.sent(replica_id, now_s)
        self._outcome.routes[decision.reason] += 1
        if decision.load_elsewhere is not None:
            self.cold.copy(request.model, decision.load_elsewhere)
        if self._router is None:
            room.sent(request, replica_id, now_s)
            if asked.session is not None:
                self.sessions.sent(request.pool, asked.tenant, asked.session, replica_id, room.routing.session_ttl_s)
        self._world.engines.send(request, replica_id)

    def _without_replica(self, request: Request, room: Room, decision: NoReplica) -> None:
        lacks = decision.reason == "adapter_not_loaded" or (
            decision.reason == "all_tried" and Failure.ADAPTER_MISSING in request.failures
        )
        if not lacks or not WORTH_A_LOAD.issuperset(request.failures) or request.cold_waits >= _MAX_COLD_WAITS:
            self._cannot(request, "unavailable", "replicas_failed" if request.failures else decision.reason)
            return
        request.cold_waits += 1
        if request.cold_waits == 1:
            self._outcome.band(request.asked_pool, request.asked.band).cold_starts += 1
        if room.admission is not None and request.ticket is not None:
            room.admission.put_off(request.ticket)
            self._serve(room)
        pick = partial(self._picked, self._router, request) if self._router is not None else None
        self.cold.wait(request, self._wanted(request, room), room.routing, pick, self._cold_over)

    def _cold_over(self, request: Request, replica_id: ReplicaId | None, why: str) -> None:
        """Its adapter is loaded, or will not be."""
        if request.is_over:
            return
        if replica_id is None:
            self._cannot(request, "saturated" if why in ("no_room", "too_many") else "unavailable", "adapter_" + why)
            return
        request.tried -= {replica_id}
        self._route(request)

    def _give_up_late(self, now_s: float) -> None:
        """Attempts that have not had their first token for too long."""
        before_s = now_s - self._setting.timeouts.first_byte_s
        late = [each for each in self.open if not each.first_s and each.sent_s < before_s and each.place is not None]
        for request in late:
            if not request.is_over and request.place is not None:
                self._world.engines.abort(request)
                self.attempt_failed(request, Failure.FIRST_BYTE)

    def _abandon(self, replica_id: ReplicaId) -> None:
        """It is known to be lost: whoever waits there for a first token goes elsewhere, if there is an elsewhere."""
        self.cold.replica_lost(replica_id)
        if replica_id not in self._load.in_flight:
            return
        for request in [each for each in self.open if each.place is not None and not each.first_s]:
            place = request.place
            if place is None or place.replica_id != replica_id:
                continue
            if not isinstance(self._decide(request, self.rooms.room(request.pool)), NoReplica):
                self._world.engines.abort(request)
                self.attempt_failed(request, Failure.REPLICA_LOST)

    # to another pool, or to its end

    def _cannot(self, request: Request, when: FallbackWhen, reason: str) -> None:
        """Its pool cannot answer it: another one may."""
        room = self.rooms.room(request.pool)
        self._leave_room(request, None)
        gives_way = reason == GIVES_WAY and not request.been  # other pools' room is for those who come first
        if room.routing.fallback and not gives_way and _THE_POOLS_OWN.issuperset(request.failures):
            target = next(self._next_pools(request, room, when), None)
            if target is not None:
                is_for_room = when == "saturated" and not reason.startswith("adapter_")
                request.is_for_room = request.is_for_room or (is_for_room and not request.been)
                self._to_pool(request, target)
                self._submit(request, self.rooms.room(target))
                return
        if request.failures:
            self._lost(request, reason)
        else:
            self._shed(request, reason)

    def _shed(self, request: Request, reason: str) -> None:
        self._outcome.band(request.asked_pool, request.asked.band).shed[reason] += 1
        figures, is_batch = self._world.figures(request.asked_pool).now, request.asked.band == BATCH
        figures.shed += 1
        figures.overflow += is_overflow("saturated" if request.is_for_room else reason, is_batch=is_batch)
        self._end(request, None)

    def _lost(self, request: Request, reason: str) -> None:
        band = self._outcome.band(request.asked_pool, request.asked.band)
        if request.first_s:
            band.broke(request.first_s - request.asked.at_s, reason)
        else:
            band.lost[reason] += 1
        self._end(request, None)

    def _end(self, request: Request, cost: int | None) -> None:
        if request.is_over:
            return
        request.is_over = True
        del self.open[request]
        if request.place is not None:
            self._load.leave(request.place)
            request.place = None
        if self._router is not None:
            self._router.ended(self._key(request))
        if request.held is not None and self._limits is not None:
            self._limits.leave(request, self._events.now_s)
        self._leave_room(request, cost)
        self._world.over(request)

    def _leave_room(self, request: Request, cost: int | None) -> None:
        """Its place, or its wait, is over."""
        ticket, request.ticket = request.ticket, None
        room = self.rooms.room(request.pool)
        if ticket is None or room.admission is None:
            return
        if room.waiting.pop(ticket.number, None) is not None:
            room.admission.withdraw(ticket)
        else:
            room.admission.ended(ticket, cost)
        self._serve(room)
