"""The gateway's heart: what every request shares. One instance per process, made in `server.py`, owned by one loop.

It holds the catalogue (from the snapshot), the fleet's view (from heartbeats), the engine connections and the counts,
and takes requests from both lanes through `handle`. Losing registry or bus changes nothing here but the age of what is
known.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from functions.api.ids import ModelId, PoolName, ReplicaId, RolloutId
from functions.decisions.catalogue import Catalogue
from functions.decisions.retry import Failure, RetryBudget
from functions.decisions.routing import ReplicaView
from functions.fleet.heartbeat import Heartbeat
from functions.fleet.tasks import Supervised
from functions.fleet.view import FleetView
from functions.gateway import answers, errors
from functions.gateway.cold_load import ColdLoads
from functions.gateway.errors import ErrorAnswer, OverQuota, Refused
from functions.gateway.evidence import RolloutEvidence
from functions.gateway.exchange import Exchange
from functions.gateway.intake import Admitted, Intake, Route, WireRequest
from functions.gateway.limits import Limits
from functions.gateway.load_client import Loader
from functions.gateway.metrics import Metrics
from functions.gateway.quotas import Entry, TenantQuotas
from functions.gateway.request_headers import RawHeaders, request_id_of
from functions.gateway.sink import MoreHeaders, Sink
from functions.gateway.splits import Splits, SplitUse
from functions.gateway.timeline import Timeline
from functions.gateway.upstream import UpstreamPool

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
    ) -> None:
        """Without a `loader`, an adapter that no replica has loaded is refused instead of asked for."""
        self.limits = limits
        self.metrics = metrics
        self.clock = clock
        self.wall_clock = wall_clock
        self.gateway_id = gateway_id
        self.splits = Splits(clock)
        self.evidence = RolloutEvidence(gateway_id, int(wall_clock() * 1000), clock, wall_clock)
        self.intake = Intake(pepper=pepper, limits=limits, splits=self.splits)
        self.quotas = TenantQuotas()
        self.retry_budgets: dict[PoolName, RetryBudget] = {}
        self.catalogue: Catalogue | None = None
        self.snapshot_source: SnapshotSource | None = None
        self.fleet = FleetView()
        self.upstreams = UpstreamPool(clock, limits.idle_upstreams_per_replica, limits.upstream_keep_alive_s)
        self.in_flight: dict[ReplicaId, int] = {}  # this gateway's own, per replica
        self.tasks = Supervised()
        self.cold: ColdLoads | None = None
        if loader is not None:
            self.cold = ColdLoads(
                loader,
                limits=limits,
                clock=clock,
                tasks=self.tasks,
                fleet=self.fleet,
                in_flight=self.in_flight,
                on_end=metrics.cold_load,
            )
        self.draining = False
        self.watched: set[Watched] = set()  # client connections
        self._exchanges: set[Exchange] = set()

    # requests

    def handle(self, route: Route, headers: RawHeaders, body: bytes, sink: Sink, received_s: float) -> Exchange | None:
        """Take one request; its answer goes to `sink`. None where it was refused at once."""
        request_id = request_id_of(headers)
        timeline = Timeline(received_s=received_s)
        catalogue = self.catalogue  # this request's, whatever is swapped in meanwhile
        entry: Entry | None = None
        try:
            if catalogue is None:
                raise Refused(_NOT_READY)
            wire = WireRequest(request_id, headers, body)
            known = self.intake.recognise(catalogue, wire, self.wall_clock())
            entry = self.quotas.enter(known.caller.tenant, known.quota, self.clock())
            admitted = self.intake.admit(catalogue, route, wire, known)
        except Refused as refused:
            self._turn_away(sink, request_id, refused, entry)
            return None
        except Exception:
            _log.exception("request %s failed in the intake", request_id)
            self._turn_away(sink, request_id, Refused(errors.internal_error()), entry)
            return None
        timeline.admitted_s = self.clock()
        exchange = Exchange(self, admitted, sink, timeline, entry)
        exchange.start()
        return exchange

    def precheck(self, headers: RawHeaders) -> None:
        """Before a body is read: may it come, and from this caller? Raises Refused."""
        if self.catalogue is None:
            raise Refused(_NOT_READY)
        self.intake.precheck(self.catalogue, headers, self.wall_clock())

    def refuse(self, sink: Sink, request_id: str, answer: ErrorAnswer, more: MoreHeaders = ()) -> None:
        self.metrics.refused(answer.status)
        sink.whole(answer.status, answers.error_headers(request_id, answer, more), answer.body())

    def _turn_away(self, sink: Sink, request_id: str, refused: Refused, entry: Entry | None) -> None:
        """Refuse a request that may already have been counted."""
        more = entry.headers if entry is not None else ()
        if isinstance(refused, OverQuota):
            self.metrics.quota_rejected(refused.dimension)
            more = more or refused.headers
        if entry is not None:
            entry.leave()
        self.refuse(sink, request_id, refused.answer, more)

    # what exchanges report

    def opened(self, exchange: Exchange) -> None:
        self._exchanges.add(exchange)
        self._retry_budget(exchange).on_request(exchange.admitted.routing.retry_budget_ratio, self.clock())

    def may_spend_retry(self, exchange: Exchange) -> bool:
        """Take one retry out of the pool's budget, where there is one."""
        return self._retry_budget(exchange).try_spend(exchange.admitted.routing.retry_budget_ratio, self.clock())

    def closed(self, exchange: Exchange, status: int, code: str, events: int) -> None:
        """`code` is that of the error it ended with, or empty; `events` those of its stream."""
        self._exchanges.discard(exchange)
        exchange.entry.leave()
        self.metrics.answered(exchange, status, events)
        split = exchange.admitted.split
        if split is not None:
            if status == 200 or exchange.begun:
                self.splits.answering(split)
            if exchange.admitted.route.output is not None:
                self.evidence.ended(split, status, code, exchange.timeline, max(0, events - 1))
        if status >= 500:
            failures = ",".join(failure.value for failure in exchange.failures)
            _log.warning("request %s ended with %d (%s)", exchange.admitted.request_id, status, failures)

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
        self, exchange: Exchange, replica: ReplicaView | None, failure: Failure, detail: str, *, is_evidence: bool
    ) -> None:
        self.metrics.attempt_failed(failure)
        if replica is None:
            return
        out_s = self.fleet.eject(replica.id, self.clock()) if is_evidence else 0.0
        _log.warning(
            "request %s: replica %s failed (%s: %s), out for %.0f s",
            exchange.admitted.request_id,
            replica.id,
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
        self.splits.forget_ended(self.is_split)
        self.retry_budgets = {
            pool: self.retry_budgets.get(pool) or RetryBudget(updated_s=self.clock()) for pool in catalogue.pools
        }
        for exchange in list(self._exchanges):
            exchange.snapshot_swapped()
        _log.info("snapshot epoch %d (%s) is in use", catalogue.epoch, catalogue.snapshot_hash[:19])

    def heard(self, heartbeat: Heartbeat) -> None:
        """One heartbeat. Requests that wait on a replica now known to be lost go elsewhere."""
        if self.fleet.fold(heartbeat, self.clock()) and heartbeat.phase in ("hung", "dead"):
            self._abandon(ReplicaId(heartbeat.replica_id))

    def sweep(self) -> None:
        """A few times a second: silence, deadlines, idle connections."""
        now_s = self.clock()
        for replica_id in self.fleet.expire(now_s):
            _log.warning("replica %s fell silent and is out", replica_id)
            self._abandon(replica_id)
        for exchange in list(self._exchanges):
            exchange.check(now_s)
        for connection in list(self.watched):
            connection.check(now_s)
        self.upstreams.sweep()
        self.quotas.forget_idle(now_s)
        self.splits.expire()
        self.evidence.forget_passed(self.is_split)

    def cut_short(self) -> None:
        """The drain's time is over: end what is still open with an error that says so."""
        for exchange in list(self._exchanges):
            exchange.cut_short()

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
        for exchange in list(self._exchanges):
            exchange.replica_lost(replica_id)
