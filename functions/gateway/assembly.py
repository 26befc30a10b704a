"""Assembly of a gateway's services, and the ordered listeners of a request's end.

Neighbours: `server` and everything that runs a gateway without sockets call it; `services` defines the result.
"""

from collections.abc import Callable
from functools import partial

from functions.fleet.tasks import Supervised
from functions.fleet.view import FleetView
from functions.gateway import tracing
from functions.gateway.admission.metrics import LadderCollector, QueuesCollector
from functions.gateway.admission.queue import AdmissionQueues
from functions.gateway.errors import ErrorAnswer
from functions.gateway.http.cors import Origins
from functions.gateway.http.headers import request_id_of
from functions.gateway.http.held_bytes import HeldBytes
from functions.gateway.intake.intake import Intake
from functions.gateway.limits import Limits
from functions.gateway.metrics import Metrics
from functions.gateway.prefix.index import Prefixes, TellingReplicas
from functions.gateway.quota import settlement
from functions.gateway.quota.accounts import TenantQuotas
from functions.gateway.quota.metrics import QuotaCollector
from functions.gateway.request import replies
from functions.gateway.request.hedging import Hedging, RetryBudgets
from functions.gateway.request.quarantine import PromptQuarantine
from functions.gateway.request.upstream import UpstreamPool, Upstreams
from functions.gateway.routing.adapter_copies import AdapterCopies
from functions.gateway.routing.adapter_loads import ColdLoads
from functions.gateway.routing.load_client import Loader
from functions.gateway.routing.pool_wakes import PoolWakes
from functions.gateway.routing.rollout import Rollouts
from functions.gateway.routing.router import OtherChoice, Router
from functions.gateway.services import Services
from functions.gateway.tenant_limits import Lookups
from functions.gateway.usage.sums import UsageSums
from functions.http.connections import Connections
from functions.http.guard import Bounds, Guard, Headers, Refusal
from functions.telemetry.bus_link import BusLink
from functions.telemetry.trace_sink import TraceSink

_UPLOADS = frozenset((b"/v1/files", b"/v1/artifacts"))


def make_services(
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
    other: OtherChoice | None = None,
    upstreams: Upstreams | None = None,
    make_admission: Callable[[Callable[[], float], FleetView], AdmissionQueues] = AdmissionQueues,
    origins: Origins | None = None,
) -> Services:
    """Return the services of one gateway.

    Without a `loader`, a request for an adapter that no replica has loaded is refused. `telling` reports which
    prefixes replicas cache; without it the gateway derives them from the prompts that it sent. A simulated fleet
    passes its own `upstreams`, and may pass another router (`other`) or an open admission (`make_admission`).
    """
    traces = traces or TraceSink(None, wall_clock)
    connections = Connections(limits.connections, limits.connections_per_address, metrics.connection_closed, clock)
    tasks, quotas, usage = Supervised(), TenantQuotas(), UsageSums(wall_clock)
    held = HeldBytes(
        limits,
        clock,
        on_refused=metrics.shed,
        on_cut=partial(metrics.connection_closed, "slow_reader"),
        occupy=quotas.occupy_slot,
    )
    fleet = FleetView()
    admission = make_admission(clock, fleet)
    prefixes = Prefixes(telling, limits.prefix_blocks, limits.prefix_ttl_s)
    routing = Router(fleet, prefixes, clock, AdapterCopies(loader, fleet, tasks, clock), zone=zone, other=other)
    rollouts = Rollouts(gateway_id, clock, wall_clock, routing.silence.last_bytes_s)
    intake = Intake(pepper=pepper, limits=limits, splits=rollouts.splits)
    quarantine = PromptQuarantine(limits.quarantine_after_replicas, pepper)
    adapter_loads: ColdLoads | None = None
    if loader is not None:
        adapter_loads = ColdLoads(
            loader,
            limits=limits,
            clock=clock,
            tasks=tasks,
            fleet=fleet,
            own=routing.load,
            choice=routing.choose_cold,
            on_end=metrics.cold_load,
            is_overloaded=admission.is_overloaded,
            gateways=lambda: quotas.gateways,
        )
    for collector in (QuotaCollector(quotas), QueuesCollector(admission.figures), LadderCollector(admission.ladders)):
        metrics.registry.register(collector)
    return Services(
        gateway_id=gateway_id,
        limits=limits,
        clock=clock,
        wall_clock=wall_clock,
        bus_link=BusLink(clock),
        origins=origins or Origins(),
        tasks=tasks,
        metrics=metrics,
        traces=traces,
        connections=connections,
        http=guard_of(limits, connections, clock, metrics, held),
        intake=intake,
        held=held,
        lookups=Lookups(limits.lookups_per_minute, clock),
        quotas=quotas,
        usage=usage,
        admission=admission,
        fleet=fleet,
        prefixes=prefixes,
        router=routing,
        rollouts=rollouts,
        pool_wakes=PoolWakes(clock, fleet, limits),
        adapter_loads=adapter_loads,
        upstreams=upstreams or UpstreamPool(clock, limits.idle_upstreams_per_replica, limits.upstream_keep_alive_s),
        retry_budgets=RetryBudgets(clock),
        hedging=Hedging(routing.silence),
        quarantine=quarantine,
        end_listeners=(
            routing.ended,  # the fleet's view of the replica
            quarantine.ended,
            intake.features.ended,
            admission.ended,
            partial(settlement.settle, clock, usage),  # charges the tenant's account and records usage
            metrics.ended,
            rollouts.ended,
            partial(tracing.offer, traces, wall_clock),
        ),
    )


def guard_of(
    limits: Limits, connections: Connections, clock: Callable[[], float], metrics: Metrics, held: HeldBytes
) -> Guard:
    """Return the guard of connections off the fast lane. `http.plain` also bounds and times their bodies."""
    bounds = Bounds(
        head_bytes=limits.head_bytes,
        header_count=limits.header_count,
        head_s=limits.head_s,
        body_s=limits.body_s,
        upload_s=limits.upload_s,
        uploads=_UPLOADS,
        keep_alive_s=limits.keep_alive_s,
        lame_duck_s=limits.lame_duck_s,
        write_stall_s=limits.write_stall_s,
        least_read_bytes=limits.least_read_bytes,
    )
    return Guard(bounds, connections, _refusal, clock, metrics.refused, held, sweeps_itself=False)


def _refusal(refusal: Refusal) -> tuple[Headers, bytes]:
    kind = "server_error" if refusal.status >= 500 else "invalid_request_error"
    after_s = 1 if refusal.status == 503 else None
    answer = ErrorAnswer(refusal.status, kind, refusal.code, refusal.message, retry_after_s=after_s)
    return replies.error_headers(request_id_of([]), answer), answer.body()
