"""Services of a request: one frozen record of everything that requests share. `assembly` makes it, once a process.

Exchanges, attempts, compositions and batches hold it and nothing of the gateway itself; `gateway` takes requests in and
keeps it up to date. What is in force at the moment (the snapshot, whether the bus is in reach, whether the process
drains) is in `state`. Owned by one event loop. Times are monotonic seconds, unless they are called unix.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from functions.api.ids import PoolName, ReplicaId
from functions.decisions.catalogue import Catalogue
from functions.fleet.tasks import Supervised
from functions.fleet.view import FleetView
from functions.gateway.admission.queue import AdmissionQueues
from functions.gateway.errors import ErrorAnswer
from functions.gateway.http.cors import Origins
from functions.gateway.http.headers import RawHeaders
from functions.gateway.http.held_bytes import HeldBytes
from functions.gateway.http.sink import Answering, Sink
from functions.gateway.intake.intake import Intake
from functions.gateway.intake.routes import Route
from functions.gateway.limits import Limits
from functions.gateway.metrics import Metrics
from functions.gateway.prefix.index import Prefixes
from functions.gateway.quota.accounts import TenantQuotas
from functions.gateway.request.hedging import Hedging, RetryBudgets
from functions.gateway.request.quarantine import PromptQuarantine
from functions.gateway.request.request import EndListener
from functions.gateway.request.upstream import Upstreams
from functions.gateway.routing.adapter_loads import ColdLoads
from functions.gateway.routing.pool_wakes import PoolWakes
from functions.gateway.routing.rollout import Rollouts
from functions.gateway.routing.router import Router
from functions.gateway.tenant_limits import Lookups
from functions.gateway.usage.sums import UsageSums
from functions.http.connections import Connections
from functions.http.guard import Guard
from functions.telemetry.bus_link import BusLink
from functions.telemetry.trace_sink import TraceSink


class RequestHandler(Protocol):
    """`Gateway.handle`: takes one request; its answer goes to the sink."""

    def __call__(
        self, route: Route, headers: RawHeaders, body: bytes, sink: Sink, received_s: float, *, composed: bool = False
    ) -> Answering | None: ...


class Watched(Protocol):
    """Anything that may wait for too long."""

    due_s: float  # before this, monotonic, `check` would do nothing: most have nothing due at most sweeps

    def check(self, now_s: float) -> None: ...


class OpenRequest(Watched, Protocol):
    """A request under way, as far as the clock, the fleet and the feeds have something to say to it."""

    def replica_lost(self, replica_id: ReplicaId) -> None: ...

    def snapshot_swapped(self) -> None: ...

    def cut_short(self, answer: ErrorAnswer) -> None: ...

    def failed_here(self) -> None: ...


class SnapshotSource(Protocol):
    """What is known of where snapshots come from."""

    confirmed_unix_s: float | None  # when it last said that there is no newer one
    refused_total: int


@dataclass(slots=True)
class State:
    """What is in force now."""

    catalogue: Catalogue | None = None  # a request under way keeps the one that it began with
    snapshot_source: SnapshotSource | None = None
    snapshot_too_old: bool = False  # nobody has vouched for it for too long: who may come is not known any more
    bus_down: bool = False  # then nobody's silence means anything
    fleet_unheard_until_s: float = 0.0  # monotonic: before this, a pool of which nothing was heard may yet be there
    unread: set[str] = field(default_factory=set)  # feeds of which the bus keeps messages, not all of them read yet
    unread_until_s: float = 0.0  # monotonic: for longer nothing waits for them
    draining: bool = False
    drain_is_over: bool = False  # nothing begins any more: nobody would be there to end it


@dataclass(frozen=True, slots=True)
class Services:
    gateway_id: str
    limits: Limits
    clock: Callable[[], float]
    wall_clock: Callable[[], float]  # unix seconds
    tasks: Supervised
    metrics: Metrics
    traces: TraceSink

    # coming in
    connections: Connections  # clients', from their accept on
    http: Guard  # of those that are off the fast lane
    intake: Intake
    held: HeldBytes  # of bodies and answers
    lookups: Lookups
    quotas: TenantQuotas
    usage: UsageSums
    admission: AdmissionQueues

    # to a replica
    fleet: FleetView
    prefixes: Prefixes
    router: Router
    rollouts: Rollouts
    pool_wakes: PoolWakes
    adapter_loads: ColdLoads | None  # None: an adapter that no replica has loaded is refused
    upstreams: Upstreams
    retry_budgets: RetryBudgets
    hedging: Hedging
    quarantine: PromptQuarantine

    end_listeners: tuple[EndListener, ...]  # told of each request's end, in this order
    bus_link: BusLink
    origins: Origins = field(default_factory=Origins)  # whose pages may call
    state: State = field(default_factory=State)
    open_requests: dict[OpenRequest, None] = field(default_factory=dict)  # in the order in which they came

    def requests_of(self, pools: Iterable[PoolName]) -> dict[PoolName, int]:
        """By pool, those that it has: in its queue, dispatched, or at its replicas for another pool's sake."""
        queued = {pool: admission.gate.running + admission.waiting for pool, admission, _ in self.admission.figures()}
        in_flight = self.router.load.in_flight
        return {
            pool: max(queued.get(pool, 0), sum(in_flight.get(replica, 0) for replica in self.fleet.index(pool).ready))
            for pool in pools
        }

    def snapshot_age_s(self) -> float:
        """Since the registry last said that there is no newer one; 0 where there is none."""
        catalogue, source = self.state.catalogue, self.state.snapshot_source
        if catalogue is None:
            return 0.0
        vouched_unix_s = source.confirmed_unix_s if source is not None else None
        since_unix_s = vouched_unix_s if vouched_unix_s is not None else catalogue.snapshot.compiled_unix_s
        return max(0.0, self.wall_clock() - since_unix_s)
