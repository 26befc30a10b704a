"""The gateway: takes requests from both lanes, and keeps what they share up to date.

    handle                      one request, from its bytes to an exchange that answers it
    swap, receive_heartbeat     what the feeds bring
    sweep                       a few times a second: silence, deadlines, idle connections

One instance per process, made in `server`, owned by one loop. Losing registry or bus changes nothing here but the age
of what is known. What an exchange uses is in `services`; optional parts stand in front as `interceptors`.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from functions.api.ids import PoolName, ReplicaId, TenantId
from functions.decisions.catalogue import Catalogue
from functions.decisions.request.features import NO_TOKENS
from functions.decisions.routing.replicas import ReplicaView
from functions.fleet.heartbeat import Heartbeat, Pulse
from functions.gateway import errors
from functions.gateway.errors import ErrorAnswer, Refused
from functions.gateway.http.headers import RawHeaders, announced_bytes, request_id_of
from functions.gateway.http.held_bytes import Hold
from functions.gateway.http.sink import Answering, Sink
from functions.gateway.intake.intake import RawRequest, Recognised
from functions.gateway.intake.routes import Route
from functions.gateway.quota.accounts import RequestQuota
from functions.gateway.request import replies
from functions.gateway.request.dialects import OPENAI, Dialect
from functions.gateway.request.exchange import Exchange
from functions.gateway.request.request import Timeline
from functions.gateway.services import OpenRequest, Services
from functions.gateway.unheard import UnheardReplicas

_log = logging.getLogger(__name__)
_TOO_OLD = errors.unavailable(
    "The gateway has not heard from its registry for so long that it no longer knows whose keys are valid. "
    "Try again later; operators: SHOAL_GATEWAY_SNAPSHOT_MAX_AGE_S.",
    "snapshot_too_old",
    30,
)
_NOT_READY = errors.unavailable("The gateway has no snapshot of the platform yet. Try again shortly.", "not_ready", 1)


class Interceptor(Protocol):
    """An optional part that takes some tenants' requests for a route before they are admitted."""

    route: Route

    def concerns(self, catalogue: Catalogue, tenant: TenantId) -> bool:
        """Whether any request of this tenant may be its."""

    def take(
        self, catalogue: Catalogue, known: Recognised, raw: RawRequest, sink: Sink, received_s: float
    ) -> Answering | None:
        """Answer it, with requests of its own to `Gateway.handle`; raises Refused."""


class Gateway:
    def __init__(self, services: Services) -> None:
        self.services = services
        self.interceptors: tuple[Interceptor, ...] = ()
        self._unheard: list[Exchange] = []  # wait for their pool's first heartbeat
        self._unheard_replicas = UnheardReplicas(self._is_out)

    # requests

    def handle(
        self, route: Route, headers: RawHeaders, body: bytes, sink: Sink, received_s: float, *, composed: bool = False
    ) -> Answering | None:
        """Take one request; its answer goes to `sink`. None where it was refused at once.

        `composed`: it comes from an interceptor, and goes the usual way.
        """
        services, entry = self.services, None
        raw = RawRequest(request_id_of(headers), headers, body)
        try:
            catalogue = services.state.catalogue  # this request's, whatever is swapped in meanwhile
            if catalogue is None:
                raise Refused(_NOT_READY)
            if services.state.snapshot_too_old:
                raise Refused(_TOO_OLD)
            if services.state.drain_is_over:
                raise Refused(errors.restarting())
            known = services.intake.recognise(catalogue, raw, services.wall_clock())
            now_s = services.clock()  # one reading for all of the intake, which nothing interrupts
            if known.read.is_late(now_s - received_s):  # nobody waits for it any more: an engine must not
                raise Refused(errors.arrived_too_late())
            for interceptor in self.interceptors if not composed else ():
                if interceptor.route is route and interceptor.concerns(catalogue, known.caller.tenant):
                    return interceptor.take(catalogue, known, raw, sink, received_s)
            entry = services.quotas.enter(known.caller.tenant, known.tier, now_s, known.key)
            admitted = services.intake.admit(catalogue, route, raw, known)
            services.quarantine.check(admitted, now_s)
            sizes = admitted.features if route.is_read else NO_TOKENS
            is_reserved = entry.reserve(sizes, now_s, admitted.service_class)
        except Refused as refused:
            self._turn_away(sink, route, raw.request_id, refused, entry)
            return None
        except Exception:
            _log.exception("request %s failed in the intake", raw.request_id)
            self._turn_away(sink, route, raw.request_id, Refused(errors.internal_error()), entry)
            return None
        timeline = Timeline(received_s, services.clock())
        exchange = Exchange(services, catalogue, admitted, sink, timeline=timeline, entry=entry)
        self.begin(exchange, sink, is_reserved=is_reserved)
        return exchange

    def begin(self, exchange: Exchange, sink: Sink, *, is_reserved: bool) -> None:
        """An admitted request; `is_reserved`: its limits had what it needs."""
        if is_reserved:
            self._start(exchange)
        else:  # other gateways may have left some of the tenant's limits
            self.services.quotas.ask(exchange.entry, self.services.clock, partial(self._reserved, exchange, sink))

    def _reserved(self, exchange: Exchange, sink: Sink, refused: Refused | None) -> None:
        """What was missing of its limits has come, or has not."""
        if exchange.ended:  # the client left meanwhile
            return
        if refused is None:
            exchange.check(self.services.clock())  # its deadline may have passed meanwhile
            if not exchange.ended:
                self._start(exchange)
            return
        exchange.ended = True
        admitted = exchange.admitted
        self._turn_away(sink, admitted.route, admitted.request_id, refused, exchange.entry)

    def _start(self, exchange: Exchange) -> None:
        """At once; of a gateway that has only just begun to listen, once its pool is heard of, or is not in time."""
        services = self.services
        if services.clock() < services.state.fleet_unheard_until_s and self._may_yet_be_heard(exchange):
            self._unheard.append(exchange)
            return
        try:
            exchange.start()
        except Exception:
            exchange.failed_here()

    def _may_yet_be_heard(self, exchange: Exchange) -> bool:
        """Whether a replica of its pool that is ready may not have had its turn to say so."""
        replicas = self.services.fleet.pool(exchange.admitted.model.pool).replicas
        return not self.services.state.drain_is_over and not any(replica.phase == "ready" for replica in replicas)

    def _start_heard(self, now_s: float) -> None:
        """Only here, not by the heartbeat itself: who speaks first is not to have all that waited."""
        waited, self._unheard = self._unheard, []
        for exchange in waited:
            _each([exchange], lambda request: request.check(now_s))  # its deadline may have passed
            if not exchange.ended:
                self._start(exchange)

    def precheck(self, headers: RawHeaders) -> Hold:
        """Before a body is read: may it come, from this caller, and is there memory? Raises Refused."""
        services = self.services
        if services.state.catalogue is None:
            raise Refused(_NOT_READY)
        if services.state.snapshot_too_old:
            raise Refused(_TOO_OLD)
        caller = services.intake.precheck(services.state.catalogue, headers, services.wall_clock())
        return services.held.body(caller.tenant, announced_bytes(headers), request_id_of(headers))

    def refuse(self, sink: Sink, request_id: str, answer: ErrorAnswer, dialect: Dialect = OPENAI) -> None:
        """Of one that has not come as far as to be handled."""
        replies.refuse(self.services.metrics, sink, request_id, answer, dialect=dialect)

    def _turn_away(
        self, sink: Sink, route: Route, request_id: str, refused: Refused, entry: RequestQuota | None
    ) -> None:
        """Refuse a request that may already have been counted."""
        more = entry.headers if entry is not None else ()
        if entry is not None:
            entry.leave(self.services.clock())
        replies.turn_away(self.services.metrics, sink, route, request_id, refused, more=more)

    # what the feeds report

    def swap(self, catalogue: Catalogue) -> None:
        """A new snapshot; requests under way keep the one they began with, and what was counted stays counted."""
        services = self.services
        services.state.catalogue = catalogue
        services.fleet.dedicate(catalogue.snapshot.pools)
        services.prefixes.swap(catalogue.pools)
        services.rollouts.swap(catalogue)
        services.retry_budgets.swap(catalogue.pools)
        services.pool_wakes.keep_only(catalogue.may_sleep)
        self._each_open(lambda request: request.snapshot_swapped())
        _log.info("snapshot epoch %d (%s) is in use", catalogue.epoch, catalogue.snapshot_hash[:19])

    def bus_recovered(self) -> None:
        """The bus is in reach: each replica has all of the usual time to send a heartbeat."""
        self.services.bus_link.set(True)
        if self.services.state.bus_down:
            self.services.state.bus_down = False
            self.services.fleet.reset_silence(self.services.clock())

    def receive_heartbeat(self, heartbeat: Heartbeat, its_view: ReplicaView | None = None) -> None:
        """One heartbeat. Requests that wait on a replica now known to be lost go elsewhere.

        `its_view`: what `to_view` made of the same heartbeat for another gateway of the process.
        """
        if not self.services.fleet.fold(heartbeat, self.services.clock(), its_view):
            return
        self.services.prefixes.receive_heartbeat(heartbeat)
        if heartbeat.cold_start:
            self.services.pool_wakes.replica_started(PoolName(heartbeat.pool), sum(heartbeat.cold_start.values()))
        if heartbeat.phase in ("hung", "dead"):
            self._abandon(ReplicaId(heartbeat.replica_id))

    def receive_pulse(self, pulse: Pulse) -> None:
        """The heartbeat that it stands for. One of an agent that is not known yet says nothing: a whole one follows."""
        completed = self.services.fleet.completed(pulse)
        if completed is not None:
            self.receive_heartbeat(*completed)

    def sweep(self) -> None:
        """A few times a second: silence, deadlines, idle connections. Not where that comes late (`feeds.sweep`)."""
        services = self.services
        now_s = services.clock()
        self._judge_snapshot()
        if not services.state.bus_down:
            self._expire(now_s)
            self._suspect(now_s)
        self._start_heard(now_s)
        due = [request for request in services.open_requests if now_s >= request.due_s]
        _each(due, lambda request: request.check(now_s))
        services.pool_wakes.sweep(now_s)
        services.admission.sweep(now_s)
        services.connections.sweep(now_s)
        services.upstreams.sweep()
        services.quotas.forget_idle(now_s)
        for replica_id in services.router.sweep(now_s):
            _log.warning("replica %s does much worse than its fellows and is out for a while", replica_id)
        services.rollouts.sweep()

    def _expire(self, now_s: float) -> None:
        """Who is silent alone is out; where most are, each is asked first."""
        services, fleet = self.services, self.services.fleet
        were_unheard = fleet.expiry.is_fleets
        for replica_id, phase in fleet.expire(now_s, services.router.silence.heard_s).items():
            if phase == "draining":
                _log.info("replica %s has drained and is gone", replica_id)
            else:
                _log.warning("replica %s fell silent and is out", replica_id)
            self._lost(replica_id)
        if fleet.expiry.is_fleets != were_unheard:
            services.bus_link.set(were_unheard)
            if not were_unheard:
                services.metrics.bus_lost("heartbeats")
                _log.warning("the bus answers and brings no heartbeats: replicas that take connections stay in use")
        self._unheard_replicas.sweep(services, now_s)

    def _is_out(self, replica_id: ReplicaId) -> None:
        _log.warning("replica %s fell silent, takes no connections and is out", replica_id)
        self.services.fleet.forget(replica_id)
        self._lost(replica_id)

    def _lost(self, replica_id: ReplicaId) -> None:
        self.services.prefixes.forget(replica_id)
        self._abandon(replica_id)

    def _suspect(self, now_s: float) -> None:
        """Nodes and zones that fall silent, or are said not to be ready, are avoided as a whole."""
        lost, found = self.services.fleet.suspect(now_s)
        for kind, name in sorted(lost):
            _log.warning("%s %s has fallen silent or is not ready: its replicas are avoided", kind, name)
        for kind, name in sorted(found):
            _log.info("%s %s is heard again, or its replicas are gone", kind, name)

    def _judge_snapshot(self) -> None:
        services, state = self.services, self.services.state
        max_age_s = services.limits.snapshot_max_age_s
        too_old = state.snapshot_source is not None and 0.0 < max_age_s < services.snapshot_age_s()
        if too_old != state.snapshot_too_old:
            state.snapshot_too_old = too_old
            _log.log(
                logging.ERROR if too_old else logging.INFO,
                "the snapshot is %s than %g s: requests are %s",
                *(("older", max_age_s, "refused") if too_old else ("younger", max_age_s, "taken again")),
            )

    def cut_short(self) -> None:
        """The drain's time is over: end what is still open with an error that says so, and what comes late likewise."""
        self.services.state.drain_is_over = self.services.state.draining
        self._start_heard(self.services.clock())
        self._each_open(lambda request: request.cut_short(errors.restarting()))

    def not_ready_reason(self) -> str | None:
        """Why /readyz says no, or None."""
        state, fleet = self.services.state, self.services.fleet
        if state.draining:
            return "draining"
        if state.catalogue is None:
            return "no snapshot yet"
        if state.snapshot_too_old:
            return "the registry has not vouched for the snapshot for too long (SHOAL_GATEWAY_SNAPSHOT_MAX_AGE_S)"
        if not state.catalogue.may_sleep and not any(fleet.index(name).ready for name in state.catalogue.pools):
            return "no replica is ready yet"
        if state.unread and not state.bus_down and self.services.clock() < state.unread_until_s:
            return f"the bus has kept more than is read yet: {', '.join(sorted(state.unread))}"
        return None

    def _abandon(self, replica_id: ReplicaId) -> None:
        if self.services.adapter_loads is not None:
            self.services.adapter_loads.replica_lost(replica_id)
        self._each_open(lambda request: request.replica_lost(replica_id))

    def _each_open(self, step: Callable[[OpenRequest], None]) -> None:
        _each(list(self.services.open_requests), step)


def _each(requests: list[OpenRequest], step: Callable[[OpenRequest], None]) -> None:
    """One step of all of these. Where it fails by our own fault, that one ends and the others go on."""
    for request in requests:
        try:
            step(request)
        except Exception:
            request.failed_here()
