"""The gateway: handles requests of both lanes and updates the state that they share.

    handle                      one request, from its bytes to an exchange that answers it
    swap, receive_heartbeat     updates from the feeds
    sweep                       a few times a second: silence, deadlines, idle connections

One instance per process, made in `server`, owned by one loop. If the registry or the bus is lost, only the age of the
known state changes. `services` has what an exchange uses; optional parts are `interceptors`.
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
from functions.gateway.errors import ErrorAnswer, RequestRejected
from functions.gateway.http.headers import RawHeaders, announced_bytes, request_id_of
from functions.gateway.http.held_bytes import Hold
from functions.gateway.http.sink import Answering, Sink
from functions.gateway.intake.intake import RawRequest, Recognised
from functions.gateway.intake.routes import Route
from functions.gateway.quota.accounts import RequestQuota
from functions.gateway.request import replies
from functions.gateway.request.dialects import OPENAI, Dialect
from functions.gateway.request.exchange import RequestExchange
from functions.gateway.request.request import Timeline
from functions.gateway.services import OpenRequest, Services
from functions.gateway.unheard import UnheardReplicas

_log = logging.getLogger(__name__)
_TOO_OLD = errors.unavailable(
    "The gateway cannot check API keys, because it has not reached its registry for too long. "
    "Try again later. Operators: the limit is SHOAL_GATEWAY_SNAPSHOT_MAX_AGE_S.",
    "snapshot_too_old",
    30,
)
_NOT_READY = errors.unavailable(
    "The gateway is starting and has not loaded models and keys yet. Try again shortly.", "not_ready", 1
)


class Interceptor(Protocol):
    """An optional part that handles some tenants' requests for a route before they are admitted."""

    route: Route

    def may_handle(self, catalogue: Catalogue, tenant: TenantId) -> bool:
        """Return True if the part may handle a request of this tenant."""

    def start_answer(
        self, catalogue: Catalogue, known: Recognised, raw: RawRequest, sink: Sink, received_s: float
    ) -> Answering | None:
        """Start answering the request with requests of the part's own to `Gateway.handle`; raises RequestRejected.

        Return the answer under way, or None if it was rejected immediately.
        """


class Gateway:
    def __init__(self, services: Services) -> None:
        self.services = services
        self.interceptors: tuple[Interceptor, ...] = ()
        self._unheard: list[RequestExchange] = []  # requests that wait for their pool's first heartbeat
        self._unheard_replicas = UnheardReplicas(self._remove_unreachable)

    # requests

    def handle(
        self, route: Route, headers: RawHeaders, body: bytes, sink: Sink, received_s: float, *, composed: bool = False
    ) -> Answering | None:
        """Handle one request and send its answer to `sink`. Return None if the request was rejected immediately.

        `composed`: the request comes from an interceptor, so interceptors are skipped.
        """
        services, entry = self.services, None
        raw = RawRequest(request_id_of(headers), headers, body)
        try:
            # this request uses one catalogue, even if a new one is swapped in meanwhile
            catalogue = services.state.catalogue
            if catalogue is None:
                raise RequestRejected(_NOT_READY)
            if services.state.snapshot_too_old:
                raise RequestRejected(_TOO_OLD)
            if services.state.drain_is_over:
                raise RequestRejected(errors.restarting())
            known = services.intake.recognise(catalogue, raw, services.wall_clock())
            now_s = services.clock()  # one clock reading for the whole intake, which never yields to the loop
            if known.read.is_late(now_s - received_s):  # the client no longer waits, so no engine should work on it
                raise RequestRejected(errors.arrived_too_late())
            for interceptor in self.interceptors if not composed else ():
                if interceptor.route is route and interceptor.may_handle(catalogue, known.caller.tenant):
                    return interceptor.start_answer(catalogue, known, raw, sink, received_s)
            entry = services.quotas.enter(known.caller.tenant, known.tier, now_s, known.key)
            admitted = services.intake.admit(catalogue, route, raw, known)
            services.quarantine.check(admitted, now_s)
            sizes = admitted.features if route.is_read else NO_TOKENS
            is_reserved = entry.reserve(sizes, now_s, admitted.service_class)
        except RequestRejected as refused:
            self._reject(sink, route, raw.request_id, refused, entry)
            return None
        except Exception:
            _log.exception("request %s failed in the intake", raw.request_id)
            self._reject(sink, route, raw.request_id, RequestRejected(errors.internal_error()), entry)
            return None
        timeline = Timeline(received_s, services.clock())
        exchange = RequestExchange(services, catalogue, admitted, sink, timeline=timeline, entry=entry)
        self.start_admitted(exchange, sink, is_reserved=is_reserved)
        return exchange

    def start_admitted(self, exchange: RequestExchange, sink: Sink, *, is_reserved: bool) -> None:
        """Start an admitted request. If its quota is not reserved yet (`is_reserved`), request the rest first."""
        if is_reserved:
            self._start(exchange)
        else:  # other gateways may have unused shares of the tenant's limits
            self.services.quotas.request_missing(
                exchange.entry, self.services.clock, partial(self._quota_decided, exchange, sink)
            )

    def _quota_decided(self, exchange: RequestExchange, sink: Sink, refused: RequestRejected | None) -> None:
        """Start the request, or reject it if the missing quota was not granted.

        Do nothing if it has ended meanwhile; end it if its deadline has passed.
        """
        if exchange.ended:  # the client left in the meantime
            return
        if refused is None:
            exchange.check(self.services.clock())  # its deadline may have passed in the meantime
            if not exchange.ended:
                self._start(exchange)
            return
        exchange.ended = True
        admitted = exchange.admitted
        self._reject(sink, admitted.route, admitted.request_id, refused, exchange.entry)

    def _start(self, exchange: RequestExchange) -> None:
        """Start the request; soon after the gateway's start, wait a limited time for the pool's first heartbeat."""
        services = self.services
        if services.clock() < services.state.fleet_unheard_until_s and self._may_get_first_heartbeat(exchange):
            self._unheard.append(exchange)
            return
        try:
            exchange.start()
        except Exception:
            exchange.fail_internally()

    def _may_get_first_heartbeat(self, exchange: RequestExchange) -> bool:
        """Return True if no ready replica of the request's pool is known yet, and the drain timeout has not passed."""
        replicas = self.services.fleet.pool(exchange.admitted.model.pool).replicas
        return not self.services.state.drain_is_over and not any(replica.phase == "ready" for replica in replicas)

    def _start_waiting(self, now_s: float) -> None:
        """Start requests that waited for their pool's first heartbeat, from the sweep.

        A heartbeat must not start them: the first replica to report would get all of them.
        """
        waited, self._unheard = self._unheard, []
        for exchange in waited:
            _for_each([exchange], lambda request: request.check(now_s))  # its deadline may have passed
            if not exchange.ended:
                self._start(exchange)

    def precheck(self, headers: RawHeaders) -> Hold:
        """Check headers and caller before a body is read; return the memory hold for the body.

        Raises RequestRejected, also if a large announced body has no room.
        """
        services = self.services
        if services.state.catalogue is None:
            raise RequestRejected(_NOT_READY)
        if services.state.snapshot_too_old:
            raise RequestRejected(_TOO_OLD)
        caller = services.intake.precheck(services.state.catalogue, headers, services.wall_clock())
        return services.held.body(caller.tenant, announced_bytes(headers), request_id_of(headers))

    def refuse(self, sink: Sink, request_id: str, answer: ErrorAnswer, dialect: Dialect = OPENAI) -> None:
        replies.refuse(self.services.metrics, sink, request_id, answer, dialect=dialect)

    def _reject(
        self, sink: Sink, route: Route, request_id: str, refused: RequestRejected, entry: RequestQuota | None
    ) -> None:
        """Send the rejection of a request; if it was counted in the tenant's quota, free its slot there."""
        more = entry.headers if entry is not None else ()
        if entry is not None:
            entry.leave(self.services.clock())
        replies.turn_away(self.services.metrics, sink, route, request_id, refused, more=more)

    # calls from the feeds

    def swap(self, catalogue: Catalogue) -> None:
        """Put a new snapshot in use. Requests under way continue with the old one, and counters are preserved."""
        services = self.services
        services.state.catalogue = catalogue
        services.fleet.dedicate(catalogue.snapshot.pools)
        services.prefixes.swap(catalogue.pools)
        services.rollouts.swap(catalogue)
        services.retry_budgets.swap(catalogue.pools)
        services.pool_wakes.keep_only(catalogue.may_sleep)
        self._for_each_open(lambda request: request.snapshot_swapped())
        _log.info("snapshot epoch %d (%s) is in use", catalogue.epoch, catalogue.snapshot_hash[:19])

    def bus_recovered(self) -> None:
        """Record that the bus is back; if it was lost, each replica has again the full time to send a heartbeat."""
        self.services.bus_link.set(True)
        if self.services.state.bus_down:
            self.services.state.bus_down = False
            self.services.fleet.reset_silence(self.services.clock())

    def receive_heartbeat(self, heartbeat: Heartbeat, its_view: ReplicaView | None = None) -> None:
        """Process one heartbeat unless it is outdated; requests on a replica that is hung or dead leave that replica.

        `its_view`: the result of `to_view` for the same heartbeat, if another gateway of the process has computed it.
        """
        if not self.services.fleet.fold(heartbeat, self.services.clock(), its_view):
            return
        self.services.prefixes.receive_heartbeat(heartbeat)
        if heartbeat.cold_start:
            self.services.pool_wakes.replica_started(PoolName(heartbeat.pool), sum(heartbeat.cold_start.values()))
        if heartbeat.phase in ("hung", "dead"):
            self._abandon(ReplicaId(heartbeat.replica_id))

    def receive_pulse(self, pulse: Pulse) -> None:
        """Process a pulse as the heartbeat that it abbreviates; ignore an unknown agent's, whose full heartbeat
        follows.
        """
        completed = self.services.fleet.complete_pulse(pulse)
        if completed is not None:
            self.receive_heartbeat(*completed)

    def sweep(self) -> None:
        """Check all that depends on time: silent replicas, deadlines, queues, idle connections; a few times a second.

        `feeds.sweep` skips late rounds.
        """
        services = self.services
        now_s = services.clock()
        self._check_snapshot_age()
        if not services.state.bus_down:
            self._expire(now_s)
            self._suspect(now_s)
        self._start_waiting(now_s)
        due = [request for request in services.open_requests if now_s >= request.due_s]
        _for_each(due, lambda request: request.check(now_s))
        services.pool_wakes.sweep(now_s)
        services.admission.sweep(now_s)
        services.connections.sweep(now_s)
        services.upstreams.sweep()
        services.quotas.forget_idle(now_s)
        for replica_id in services.router.sweep(now_s):
            _log.warning(
                "replica %s performs much worse than the rest of its pool and is ejected for a while", replica_id
            )
        services.rollouts.sweep()

    def _expire(self, now_s: float) -> None:
        """Remove silent replicas. If most of the fleet is silent at once, keep those that accept a connection."""
        services, fleet = self.services, self.services.fleet
        were_unheard = fleet.expiry.is_fleets
        for replica_id, phase in fleet.expire(now_s, services.router.silence.last_bytes_s).items():
            if phase == "draining":
                _log.info("replica %s has drained and is gone", replica_id)
            else:
                _log.warning("replica %s fell silent and is out", replica_id)
            self._lost(replica_id)
        if fleet.expiry.is_fleets != were_unheard:
            services.bus_link.set(were_unheard)
            if not were_unheard:
                services.metrics.bus_lost("heartbeats")
                _log.warning("the bus answers but delivers no heartbeats: replicas that accept connections stay in use")
        self._unheard_replicas.sweep(services, now_s)

    def _remove_unreachable(self, replica_id: ReplicaId) -> None:
        _log.warning("replica %s fell silent, accepts no connections and is out", replica_id)
        self.services.fleet.forget(replica_id)
        self._lost(replica_id)

    def _lost(self, replica_id: ReplicaId) -> None:
        self.services.prefixes.forget(replica_id)
        self._abandon(replica_id)

    def _suspect(self, now_s: float) -> None:
        """Update and log the suspected nodes and zones (silent as a whole, or not ready), which routing avoids."""
        lost, found = self.services.fleet.update_suspicions(now_s)
        for kind, name in sorted(lost):
            _log.warning("%s %s has fallen silent or is not ready: its replicas are avoided", kind, name)
        for kind, name in sorted(found):
            _log.info("%s %s sends heartbeats again, or its replicas are gone", kind, name)

    def _check_snapshot_age(self) -> None:
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
        """End all open requests with an error; if the gateway drains, reject new ones, as the timeout has passed."""
        self.services.state.drain_is_over = self.services.state.draining
        self._start_waiting(self.services.clock())
        self._for_each_open(lambda request: request.cut_short(errors.restarting()))

    def not_ready_reason(self) -> str | None:
        """Return the reason for a negative /readyz, or None if the gateway is ready."""
        state, fleet = self.services.state, self.services.fleet
        if state.draining:
            return "draining"
        if state.catalogue is None:
            return "no snapshot yet"
        if state.snapshot_too_old:
            return "the registry has not confirmed the snapshot for too long (SHOAL_GATEWAY_SNAPSHOT_MAX_AGE_S)"
        if not state.catalogue.may_sleep and not any(fleet.index(name).ready for name in state.catalogue.pools):
            return "no replica is ready yet"
        if state.unread and not state.bus_down and self.services.clock() < state.unread_until_s:
            return f"messages retained by the bus are not all read yet: {', '.join(sorted(state.unread))}"
        return None

    def _abandon(self, replica_id: ReplicaId) -> None:
        if self.services.adapter_loads is not None:
            self.services.adapter_loads.replica_lost(replica_id)
        self._for_each_open(lambda request: request.replica_lost(replica_id))

    def _for_each_open(self, step: Callable[[OpenRequest], None]) -> None:
        _for_each(list(self.services.open_requests), step)


def _for_each(requests: list[OpenRequest], step: Callable[[OpenRequest], None]) -> None:
    """Call `step` on each request. An exception ends only its own request, with an internal error."""
    for request in requests:
        try:
            step(request)
        except Exception:
            request.fail_internally()
