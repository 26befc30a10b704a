"""The gateway's heart: what every request shares. One instance per process, made in `server.py`, owned by one loop.

It holds the catalogue (from the snapshot), the fleet's view (from heartbeats), the engine connections and the counts,
and takes requests from both lanes through `handle`. Losing registry or bus changes nothing here but the age of what is
known.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from functions.api.ids import ModelId, PoolName, ReplicaId, RolloutId
from functions.decisions.baselines import RouterName, baseline
from functions.decisions.baselines.compared import Compared
from functions.decisions.catalogue import Catalogue
from functions.decisions.request.features import NO_TOKENS
from functions.decisions.routing.choice import Prediction, ReplicaView
from functions.decisions.routing.retry import Failure, RetryBudget
from functions.fleet.heartbeat import Heartbeat
from functions.fleet.tasks import Supervised
from functions.fleet.view import FleetView
from functions.gateway import errors
from functions.gateway.admission.metrics import LadderCollector, RoomsCollector
from functions.gateway.admission.queue import WaitingRooms
from functions.gateway.chat.composition.composer import Composer
from functions.gateway.errors import ErrorAnswer, OverQuota, Refused
from functions.gateway.http.headers import RawHeaders, announced_bytes, request_id_of
from functions.gateway.http.sink import Answering, MoreHeaders, Sink
from functions.gateway.http.uploads import Upload, Uploads
from functions.gateway.intake.intake import Admitted, Intake, WireRequest
from functions.gateway.intake.lookups import Lookups
from functions.gateway.intake.routes import CHAT, Route
from functions.gateway.limits import Limits
from functions.gateway.metrics import Metrics
from functions.gateway.prefix.index import Prefixes, TellingReplicas
from functions.gateway.quota import settlement as quota_settlement
from functions.gateway.quota.accounts import Entry, TenantQuotas
from functions.gateway.quota.metrics import QuotaCollector
from functions.gateway.request import replies as answers
from functions.gateway.request.attempt import Attempt
from functions.gateway.request.dialects import OPENAI, Dialect
from functions.gateway.request.exchange import CLIENT_LEFT, Exchange
from functions.gateway.request.hedging import Hedging
from functions.gateway.request.quarantine import PromptQuarantine
from functions.gateway.request.relay import Usage
from functions.gateway.request.request import Timeline
from functions.gateway.request.upstream import UpstreamPool, Upstreams
from functions.gateway.routing.adapter_copies import AdapterCopies
from functions.gateway.routing.adapter_loads import ColdLoads
from functions.gateway.routing.load_client import Loader
from functions.gateway.routing.rollout import RolloutEvidence
from functions.gateway.routing.router import OtherRouter, Router
from functions.gateway.routing.splits import Splits, SplitUse
from functions.gateway.tracing import ended
from functions.telemetry.trace_sink import TraceSink

if TYPE_CHECKING:
    from functions.gateway.batch.service import Batches

_log = logging.getLogger(__name__)
_NOT_READY = errors.unavailable("The gateway has no snapshot of the platform yet. Try again shortly.", "not_ready", 1)


class Watched(Protocol):
    """Anything that may wait for too long."""

    def check(self, now_s: float) -> None: ...


class SnapshotSource(Protocol):
    """What is known of where snapshots come from."""

    confirmed_unix_s: float | None  # when it last said that there is no newer one
    refused_total: int


class Gateway:
    def __init__(
        self,
        *,
        pepper: bytes,
        limits: Limits,
        metrics: Metrics,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        gateway_id: str = "gateway",
        loader: Loader | None = None,
        telling: TellingReplicas | None = None,
        traces: TraceSink | None = None,
        zone: str = "",
        router: RouterName | OtherRouter = "shoal",
        upstreams: Upstreams | None = None,
        new_rooms: Callable[[Callable[[], float], FleetView], WaitingRooms] = WaitingRooms,
    ) -> None:
        """Without a `loader`, an adapter that no replica has loaded is refused instead of asked for.

        Without replicas that are `telling` of their caches, prefixes are known by what was sent. A simulated fleet
        brings its own `upstreams` and may leave admission open.
        """
        self.limits = limits
        self.metrics = metrics
        self.clock = clock
        self.wall_clock = wall_clock
        self.gateway_id = gateway_id
        self.splits = Splits(clock)
        self.evidence = RolloutEvidence(gateway_id, int(wall_clock() * 1000), clock, wall_clock)
        self.intake = Intake(pepper=pepper, limits=limits, splits=self.splits)
        self.uploads = Uploads(limits.uploads_bytes, partial(metrics.shed, "uploads_full"))
        self.lookups = Lookups(limits.lookups_per_minute, clock)
        self.quotas = TenantQuotas()
        metrics.registry.register(QuotaCollector(self.quotas))
        self.retry_budgets: dict[PoolName, RetryBudget] = {}
        self.catalogue: Catalogue | None = None
        self.snapshot_source: SnapshotSource | None = None
        self.fleet = FleetView()
        self.rooms = new_rooms(clock, self.fleet)
        metrics.registry.register(RoomsCollector(self.rooms.figures))
        metrics.registry.register(LadderCollector(self.rooms.ladders))
        self.upstreams: Upstreams = upstreams or UpstreamPool(
            clock, limits.idle_upstreams_per_replica, limits.upstream_keep_alive_s
        )
        self.prefixes = Prefixes(telling, limits.prefix_blocks, limits.prefix_ttl_s)
        self.tasks = Supervised()
        copies = AdapterCopies(loader, self.fleet, self.tasks, clock)
        other = _baseline(router) if isinstance(router, str) else router
        self.router = Router(self.fleet, self.prefixes, clock, copies, zone=zone, other=other)
        self.in_flight = self.router.load.in_flight  # this gateway's own, per replica
        self.cold: ColdLoads | None = None
        if loader is not None:
            self.cold = ColdLoads(
                loader,
                limits=limits,
                clock=clock,
                tasks=self.tasks,
                fleet=self.fleet,
                own=self.router.load,
                choice=self.router.choose_cold,
                on_end=metrics.cold_load,
            )
        self.hedging = Hedging()
        self.quarantine = PromptQuarantine(limits.quarantine_after_replicas, pepper)
        self.traces = traces or TraceSink(None, wall_clock)
        self.composer: Composer | None = None  # set where conversations or tools are on offer
        self.batches: Batches | None = None  # set where files are kept
        self.draining = False
        self.drain_is_over = False  # nothing begins any more: nobody would be there to end it
        self.is_deaf = False  # the bus is out of reach: nobody's silence means anything
        self.watched: set[Watched] = set()  # client connections
        self._exchanges: dict[Exchange, None] = {}  # in their order, which chance must not decide

    # requests

    def handle(
        self,
        route: Route,
        headers: RawHeaders,
        body: bytes,
        sink: Sink,
        received_s: float,
        *,
        composed: bool = False,
    ) -> Answering | None:
        """Take one request; its answer goes to `sink`. None where it was refused at once.

        `composed`: it is a part of a composition, or was found to need none.
        """
        request_id = request_id_of(headers)
        timeline = Timeline(received_s=received_s)
        catalogue = self.catalogue  # this request's, whatever is swapped in meanwhile
        entry: Entry | None = None
        try:
            if catalogue is None:
                raise Refused(_NOT_READY)
            if self.drain_is_over:
                raise Refused(errors.restarting())
            wire = WireRequest(request_id, headers, body)
            known = self.intake.recognise(catalogue, wire, self.wall_clock())
            now_s = self.clock()  # one reading for all of the intake, which nothing interrupts
            if known.read.is_late(now_s - received_s):  # nobody waits for it any more: an engine must not
                raise Refused(errors.arrived_too_late())
            composer = self.composer if route is CHAT and not composed else None
            if composer is not None and composer.concerns(catalogue, known.caller.tenant):
                return composer.take(catalogue, known, wire, sink, received_s)
            entry = self.quotas.enter(known.caller.tenant, known.tier, now_s, known.key)
            admitted = self.intake.admit(catalogue, route, wire, known)
            self.quarantine.check(admitted, now_s)
            sizes = admitted.features if route.is_read else NO_TOKENS
            reserved = entry.reserve(sizes, now_s, admitted.service_class)
        except Refused as refused:
            self.turn_away(sink, route, request_id, refused, entry)
            return None
        except Exception:
            _log.exception("request %s failed in the intake", request_id)
            self.turn_away(sink, route, request_id, Refused(errors.internal_error()), entry)
            return None
        timeline.admitted_s = self.clock()
        exchange = Exchange(self, catalogue, admitted, sink, timeline=timeline, entry=entry)
        self.begin(exchange, sink, reserved=reserved)
        return exchange

    def begin(self, exchange: Exchange, sink: Sink, *, reserved: bool) -> None:
        """An admitted request; `reserved`: its limits have what it needs."""
        if reserved:
            self._start(exchange)
        else:  # other gateways may have left some of the tenant's limits
            self.quotas.ask(exchange.entry, self.clock, partial(self._reserved, exchange, sink))

    def _start(self, exchange: Exchange) -> None:
        try:
            exchange.start()
        except Exception:
            self.failed_here(exchange)

    def _reserved(self, exchange: Exchange, sink: Sink, refused: Refused | None) -> None:
        """What was missing of its limits has come, or has not."""
        if exchange.ended:  # the client left meanwhile
            return
        if refused is None:
            exchange.check(self.clock())  # its deadline may have passed meanwhile
            if not exchange.ended:
                self._start(exchange)
            return
        exchange.ended = True
        admitted = exchange.admitted
        self.turn_away(sink, admitted.route, admitted.request_id, refused, exchange.entry)

    def precheck(self, headers: RawHeaders) -> Upload:
        """Before a body is read: may it come, from this caller, and is there room? Raises Refused."""
        if self.catalogue is None:
            raise Refused(_NOT_READY)
        caller = self.intake.precheck(self.catalogue, headers, self.wall_clock())
        return self.uploads.begin(caller.tenant, announced_bytes(headers), request_id_of(headers))

    def refuse(
        self, sink: Sink, request_id: str, answer: ErrorAnswer, more: MoreHeaders = (), dialect: Dialect = OPENAI
    ) -> None:
        self.metrics.refused(answer.status)
        headers = answers.error_headers(request_id, answer, more)
        sink.whole(answer.status, headers, dialect.error_body(answer, request_id))

    def turn_away(
        self, sink: Sink, route: Route, request_id: str, refused: Refused, entry: Entry | None = None
    ) -> None:
        """Refuse a request that may already have been counted."""
        more = entry.headers if entry is not None else ()
        if isinstance(refused, OverQuota):
            self.metrics.quota_rejected(refused.dimension)
            more = more or refused.headers
        if entry is not None:
            entry.leave(self.clock())
        self.refuse(sink, request_id, refused.answer, more, route.dialect)

    # what exchanges report

    def opened(self, exchange: Exchange) -> None:
        self._exchanges[exchange] = None
        self._retry_budget(exchange).on_request(exchange.admitted.routing.retry_budget_ratio, self.clock())

    def degraded(self, asked: PoolName, answers: PoolName) -> None:
        """Another pool has begun to answer what was asked of this one."""
        self.metrics.degraded(asked, answers)
        self.rooms.pools.degraded(asked)

    def may_spend_retry(self, exchange: Exchange) -> bool:
        """Take one retry out of the pool's budget, where there is one."""
        return self._retry_budget(exchange).try_spend(exchange.admitted.routing.retry_budget_ratio, self.clock())

    def closed(self, exchange: Exchange, attempt: Attempt | None, status: int, code: str) -> None:
        """The request has ended, and its last attempt with it; `code` is that of the error it ended with, or empty.

        Told in this order: the fleet, the waiting room, the tenant's account, the metrics, the rollout, the trace.
        """
        events = attempt.events if attempt is not None else 0
        self._exchanges.pop(exchange, None)
        if status == 200 and attempt is not None:
            self.fleet.answered(attempt.replica.id, attempt.sent_s, self.clock())
            self.quarantine.answered(exchange)
        if status == 200 and attempt is not None and exchange.usage is not None:
            self._learn(exchange, attempt.prediction, exchange.usage)
        self.rooms.left(exchange)
        self.rooms.ended(exchange, quota_settlement.cost_in_room(exchange, attempt))
        gave_up = code == errors.DEADLINE_EXCEEDED and exchange.admitted.deadline_ms is not None
        left = status == CLIENT_LEFT or gave_up
        spent = quota_settlement.settle(exchange, attempt, self.fleet, self.clock(), client_left=left)
        self.metrics.answered(exchange, status, events)
        self.rooms.pools.ended(exchange, events)
        if exchange.detour is not None and exchange.detour.trial is not None:
            self.metrics.cascaded(*exchange.detour.trial.outcome())
        split = exchange.admitted.split
        if split is not None:
            if status == 200 or exchange.begun:
                self.splits.answering(split)
            if exchange.admitted.route.output is not None:
                self.evidence.ended(split, status, code, exchange.timeline, max(0, events - 1))
        self.traces.offer(ended(exchange, attempt, status, code, spent=spent, now_unix_s=self.wall_clock()))
        if status >= 500:
            failures = ",".join(failure.value for failure in exchange.all_failures)
            _log.warning("request %s ended with %d (%s)", exchange.admitted.request_id, status, failures)

    def _learn(self, exchange: Exchange, prediction: Prediction, usage: Usage) -> None:
        """A whole answer says how long prompts and answers are, and what was cached of the prompt."""
        self.intake.features.learn(exchange.admitted, usage)
        pool, ended_s = exchange.admitted.model.pool, exchange.timeline.ended_s
        self.metrics.prefixes.answered(pool, prediction.cached_tokens, usage, ended_s)

    def answering(self, admitted: Admitted) -> None:
        """A stream's first bytes go to the client."""
        if admitted.split is not None:
            self.splits.answering(admitted.split)

    def may_fall_back(self, admitted: Admitted) -> bool:
        """Whether the old version of a model in rollout may answer in the new one's place."""
        use = admitted.split
        return self.splits.may_fall_back(use) or (use is not None and self._is_rolled_back(use, admitted))

    def candidate_unavailable(self, admitted: Admitted) -> None:
        """No replica has the new version of a model in rollout; the old one is asked instead."""
        if admitted.split is not None and admitted.route.output is not None:
            self.evidence.candidate_unavailable(admitted.split)

    def attempt_failed(
        self, exchange: Exchange, attempt: Attempt, failure: Failure, detail: str, *, is_evidence: bool
    ) -> None:
        self.metrics.attempt_failed(failure)
        replica_id = attempt.replica.id
        out_s = self.router.failed(replica_id, failure, attempt.told_to_wait_s, is_evidence=is_evidence)
        _log.warning(
            "request %s: replica %s failed (%s: %s), out for %.0f s",
            exchange.admitted.request_id,
            replica_id,
            failure.value,
            detail,
            out_s,
        )

    @property
    def open_exchanges(self) -> int:
        return len(self._exchanges)

    # what the feeds report

    def swap(self, catalogue: Catalogue) -> None:
        """A new snapshot; requests under way keep the one they began with, and what was counted stays counted."""
        self.catalogue = catalogue
        self.prefixes.swap(catalogue.pools)
        self.splits.forget_ended(self.is_split)
        self.retry_budgets = {
            pool: self.retry_budgets.get(pool) or RetryBudget(updated_s=self.clock()) for pool in catalogue.pools
        }
        self._each(Exchange.snapshot_swapped)
        _log.info("snapshot epoch %d (%s) is in use", catalogue.epoch, catalogue.snapshot_hash[:19])

    def hears_again(self) -> None:
        """The bus is in reach, and whoever beats has all of the usual time to be heard."""
        if self.is_deaf:
            self.is_deaf = False
            self.fleet.forgive(self.clock())

    def heard(self, heartbeat: Heartbeat, its_view: ReplicaView | None = None) -> None:
        """One heartbeat. Requests that wait on a replica now known to be lost go elsewhere.

        `its_view`: what `to_view` made of the same beat for another gateway of the process.
        """
        if not self.fleet.fold(heartbeat, self.clock(), its_view):
            return
        self.prefixes.heard(heartbeat)
        if heartbeat.phase in ("hung", "dead"):
            self._abandon(ReplicaId(heartbeat.replica_id))

    def sweep(self) -> None:
        """A few times a second: silence, deadlines, idle connections."""
        now_s = self.clock()
        for replica_id in self.fleet.expire(now_s) if not self.is_deaf else ():
            _log.warning("replica %s fell silent and is out", replica_id)
            self.prefixes.forget(replica_id)
            self._abandon(replica_id)
        self._each(lambda exchange: exchange.check(now_s))
        self.rooms.sweep(now_s)
        for connection in list(self.watched):
            connection.check(now_s)
        self.upstreams.sweep()
        self.quotas.forget_idle(now_s)
        self.splits.expire()
        for replica_id in self.router.sweep(now_s):
            _log.warning("replica %s does much worse than its fellows and is out for a while", replica_id)
        self.evidence.forget_passed(self.is_split)

    def cut_short(self) -> None:
        """The drain's time is over: end what is still open with an error that says so, and what comes late likewise."""
        self.drain_is_over = self.draining
        self._each(lambda exchange: exchange.cut_short(errors.restarting()))

    def not_ready_reason(self) -> str | None:
        """Why /readyz says no, or None."""
        if self.draining:
            return "draining"
        if self.catalogue is None:
            return "no snapshot yet"
        pools = [self.fleet.pool(name) for name in self.catalogue.pools]
        if not any(replica.phase == "ready" for pool in pools for replica in pool.replicas):
            return "no replica is ready yet"
        return None

    def is_split(self, rollout: RolloutId, model: ModelId, stage: int | None = None) -> bool:
        """Whether the snapshot in use sends a part of the model's requests elsewhere by this rollout (and stage)."""
        entry = self.catalogue.models.get(model) if self.catalogue is not None else None
        splits = entry.splits if entry is not None else ()
        return any(split.rollout == rollout and stage in (None, split.stage) for split in splits)

    def _is_rolled_back(self, use: SplitUse, admitted: Admitted) -> bool:
        """Whether the rollout of a candidate's request has ended, and the channel is at the old version."""
        if self.catalogue is None or use.group == "control" or self.is_split(use.rollout, use.model):
            return False
        model = self.catalogue.resolve(admitted.caller.tenant, use.control.requested)
        return model is not None and model.engine_name == use.control.engine_name

    def _retry_budget(self, exchange: Exchange) -> RetryBudget:
        pool = exchange.admitted.model.pool
        return self.retry_budgets.get(pool) or RetryBudget(tokens=0.0, updated_s=self.clock())  # a pool that is gone

    def _abandon(self, replica_id: ReplicaId) -> None:
        if self.cold is not None:
            self.cold.replica_lost(replica_id)
        self._each(lambda exchange: exchange.replica_lost(replica_id))

    def _each(self, step: Callable[[Exchange], None]) -> None:
        """One step of all that is open. Where it fails by our own fault, that one ends and the others go on."""
        for exchange in list(self._exchanges):
            try:
                step(exchange)
            except Exception:
                self.failed_here(exchange)

    def failed_here(self, exchange: Exchange) -> None:
        """A step of it has raised: our own mistake, which is logged, and which it alone ends by."""
        _log.exception("request %s failed in the gateway", exchange.admitted.request_id)
        try:
            exchange.cut_short(errors.internal_error())
        except Exception:
            _log.exception("request %s cannot be told so", exchange.admitted.request_id)
            exchange.cut_off()


def _baseline(name: RouterName) -> Compared | None:
    """Another router's published algorithm; None: shoal's own."""
    other = baseline(name)
    return Compared(other) if other is not None else None
