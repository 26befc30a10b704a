"""Services of a request: one frozen record of everything that requests share. `assembly` makes it once per process.

Exchanges, attempts, compositions and batches hold it and nothing else of the gateway; `gateway` accepts requests and
updates it. `state` has what changes: the snapshot, whether the bus is reachable, whether the process drains. Owned by
one event loop. Times are monotonic seconds, unless their names contain unix.
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
    """Signature of `Gateway.handle`: handles one request and sends its answer to the sink."""

    def __call__(
        self, route: Route, headers: RawHeaders, body: bytes, sink: Sink, received_s: float, *, composed: bool = False
    ) -> Answering | None: ...


class Watched(Protocol):
    """Anything that may time out."""

    due_s: float  # monotonic; `check` does nothing before this time, so most sweeps skip most requests

    def check(self, now_s: float) -> None: ...


class OpenRequest(Watched, Protocol):
    """A request under way, as the sweep, the fleet and the feeds use it."""

    def replica_lost(self, replica_id: ReplicaId) -> None: ...

    def snapshot_swapped(self) -> None: ...

    def cut_short(self, answer: ErrorAnswer) -> None: ...

    def fail_internally(self) -> None: ...


class SnapshotSource(Protocol):
    """The state of the snapshot's source."""

    confirmed_unix_s: float | None  # time when it last confirmed that there is no newer one
    refused_total: int


@dataclass(slots=True)
class GatewayState:
    catalogue: Catalogue | None = None  # a request under way continues with the one that it began with
    snapshot_source: SnapshotSource | None = None
    snapshot_too_old: bool = False  # the registry has not confirmed the snapshot for too long: valid keys are unknown
    bus_down: bool = False  # then silence of replicas is ignored
    fleet_unheard_until_s: float = 0.0  # monotonic: until then, a pool without heartbeats may still have replicas
    unread: set[str] = field(default_factory=set)  # feeds whose messages retained by the bus are not all read yet
    unread_until_s: float = 0.0  # monotonic: readiness waits for them no longer than this
    draining: bool = False
    drain_is_over: bool = False  # new requests are rejected: the process would end before them


@dataclass(frozen=True, slots=True)
class Services:
    gateway_id: str
    limits: Limits
    clock: Callable[[], float]
    wall_clock: Callable[[], float]  # unix seconds
    tasks: Supervised
    metrics: Metrics
    traces: TraceSink

    # Incoming requests
    connections: Connections  # client connections, from accept on
    http: Guard  # guard of connections off the fast lane
    intake: Intake
    held: HeldBytes  # bytes of bodies and answers
    lookups: Lookups
    quotas: TenantQuotas
    usage: UsageSums
    admission: AdmissionQueues

    # Routing to replicas
    fleet: FleetView
    prefixes: Prefixes
    router: Router
    rollouts: Rollouts
    pool_wakes: PoolWakes
    adapter_loads: ColdLoads | None  # None means that an adapter that no replica has loaded is refused
    upstreams: Upstreams
    retry_budgets: RetryBudgets
    hedging: Hedging
    quarantine: PromptQuarantine

    end_listeners: tuple[EndListener, ...]  # notified of each request's end, in this order
    bus_link: BusLink
    origins: Origins = field(default_factory=Origins)  # origins whose pages may call the gateway
    state: GatewayState = field(default_factory=GatewayState)
    open_requests: dict[OpenRequest, None] = field(default_factory=dict)  # in order of arrival

    def requests_of(self, pools: Iterable[PoolName]) -> dict[PoolName, int]:
        """Return per pool the larger of its queued and dispatched requests and of those at its ready replicas."""
        queued = {pool: admission.gate.running + admission.waiting for pool, admission, _ in self.admission.figures()}
        in_flight = self.router.load.in_flight
        return {
            pool: max(queued.get(pool, 0), sum(in_flight.get(replica, 0) for replica in self.fleet.index(pool).ready))
            for pool in pools
        }

    def snapshot_age_s(self) -> float:
        """Return the seconds since the registry last confirmed the snapshot; 0 without a snapshot.

        If it never did, they count from the snapshot's compilation.
        """
        catalogue, source = self.state.catalogue, self.state.snapshot_source
        if catalogue is None:
            return 0.0
        vouched_unix_s = source.confirmed_unix_s if source is not None else None
        since_unix_s = vouched_unix_s if vouched_unix_s is not None else catalogue.snapshot.compiled_unix_s
        return max(0.0, self.wall_clock() - since_unix_s)
