"""One simulated gateway: the gateway's own request code with simulated engines, clients, bus and agents.

    come -> quota -> (steering) -> Exchange: admission queue, router, adapter loads, attempts, retries, fallbacks
                                        |                                  ^
                                        '--> Client: what it saw           '-- Upstreams: modelled engines

All decisions and waits are those of `functions.gateway`, on virtual time (`functions.simulator.virtual_loop`). Only
bytes are left out: a request arrives admitted, with the lengths of the workload. Related modules: `services` has the
gateway's services, `simulation` owns gateways and engines, `client` counts, `catalogue` is the setting as a snapshot.
"""

import msgspec
from xxhash import xxh3_64_intdigest

from functions.api.ids import KeyId, PoolName
from functions.api.snapshot import Scope
from functions.decisions.admission.ticket import BANDS
from functions.decisions.catalogue import ResolvedModel
from functions.decisions.request.access import Caller
from functions.decisions.request.features import RequestFeatures
from functions.decisions.request.length_model import START_BYTES_PER_TOKEN
from functions.decisions.routing.replicas import ReplicaView
from functions.decisions.routing.sessions import session_hash
from functions.fleet.heartbeat import Heartbeat
from functions.fleet.view import FleetView
from functions.gateway.errors import RequestRejected
from functions.gateway.gateway import Gateway
from functions.gateway.quota.leases import QuotaLeases
from functions.gateway.request import replies
from functions.gateway.request.exchange import RequestExchange
from functions.gateway.request.request import Admitted, Timeline
from functions.simulator.fleet.client import Client
from functions.simulator.fleet.comparison import OtherRouter
from functions.simulator.fleet.context import Context
from functions.simulator.fleet.quota_bus import QuotaBus, QuotaClient
from functions.simulator.fleet.services import OutcomeMetrics, modelled_services
from functions.simulator.fleet.setting import Zone
from functions.simulator.fleet.signals import Second
from functions.simulator.fleet.steering import Shed
from functions.simulator.fleet.upstream import ROUTE, ModelledRequest
from functions.simulator.router_port import SimulatedRouter
from functions.simulator.workload.request import WorkloadRequest

_BATCH = BANDS.index("batch")
_HALF_INT = (1 << 62) - 1
_TEXT_BYTES = int(START_BYTES_PER_TOKEN)  # bytes per token where a size in bytes is needed, as prompts have no text
_MOST_OUTPUT_TOKENS = 1_000_000_000  # workloads name no limit
_KEY = KeyId("simulated")
_SCOPES: tuple[Scope, ...] = ("inference",)
_requests = msgspec.json.Encoder()


class SimulatedGateway:
    def __init__(
        self, name: str, zone: Zone, context: Context, *, router: SimulatedRouter | None, bus: QuotaBus | None
    ) -> None:
        """`router`: another router, None: shoal's own. `bus`: leases the limits, None: the gateway has them alone."""
        self.name = name
        self.zone = zone
        self.outcome = context.outcome
        self.clients: dict[str, Client] = {}  # in progress, by the request's id
        self.count = 0
        self.is_up = True
        self.stopping = ""  # reason if it is stopping; its requests are lost for this reason
        self._context = context
        self._events = context.events
        self._setting = context.setting
        self._bus_down_until_s = 0.0
        self._metrics = OutcomeMetrics(context)
        self._other: OtherRouter | None = None
        if router is not None:
            self._other = OtherRouter(router, context.setting.block_tokens, self.clients.__getitem__)
        self.services = modelled_services(
            name, zone.name, context, self.clients, metrics=self._metrics, other=self._other
        )
        self.core = Gateway(self.services)
        self.core.swap(context.catalogue)
        if set(context.told) == set(context.catalogue.pools):
            self.services.prefixes.swap(())  # engines report all caches, so no record of sent prompts is needed
        self._leases: QuotaLeases | None = None
        if bus is not None:
            self._leases = QuotaLeases(
                QuotaClient(bus, self._clock, lambda: not self.services.state.bus_down),
                name,
                clock=self._clock,
                tasks=self.services.tasks,
                uniform=self.services.quotas.uniform,
                expected_gateways=context.setting.gateways,
            )
            self.services.quotas.leasing = self._leases

    def start(self) -> None:
        """Start the renewal of quota leases, if the gateway has a bus; needs the running loop."""
        if self._leases is not None:
            self.services.tasks.forever("quota leases", self._leases.run)

    def stop(self, reason: str) -> None:
        """End the process and all its connections; its requests are lost for this reason."""
        self.is_up, self.stopping = False, reason
        for client in list(self.clients.values()):
            if client.exchange is not None:
                client.exchange.cut_off()
        self.services.tasks.once("stop", self.services.tasks.close())

    # Messages from the bus.

    @property
    def fleet(self) -> FleetView:
        return self.services.fleet

    def receive_heartbeat(self, heartbeat: Heartbeat, view: ReplicaView | None = None) -> None:
        """Receive a heartbeat. `view` is the view made from it, if it exists already."""
        self.core.receive_heartbeat(heartbeat, view)

    def cut_off(self, until_s: float) -> None:
        """Disconnect the gateway from the bus until `until_s`, or until a later time that was set before."""
        self.services.state.bus_down = True
        self._bus_down_until_s = max(self._bus_down_until_s, until_s)

    def reconnect_if_due(self) -> bool:
        """Reconnect the gateway if its disconnection is over. Return True if it was reconnected."""
        if self.services.state.bus_down and self._events.now_s >= self._bus_down_until_s:
            self.core.bus_recovered()
            return True
        return False

    def sweep(self) -> None:
        """Run the gateway's periodic sweep; called a few times a second."""
        self.core.sweep()

    # Requests.

    def receive_request(self, request: WorkloadRequest) -> None:
        now_s, catalogue = self._events.now_s, self._context.catalogue
        self.count += 1
        pool = PoolName(request.pool) if request.pool is not None else catalogue.first
        model = catalogue.model(pool, request.adapter, request.tenant)
        client = Client(self, f"{self.name}{self.count}", request, pool, _adapters_blocks(request))
        self.clients[client.key] = client
        if model is None:
            self.outcome.band(pool, request.band).asked += 1
            client.refused("model_not_found")
            return
        model = catalogue.placed_by_rules(model, request)
        client.home = model.pool
        expected_tokens = self.services.intake.features.lengths.output_tokens(model.id, request.tenant)
        self._note(client, expected_tokens)
        caller = Caller(request.tenant, _KEY, _SCOPES, BANDS[request.band])
        entry = None
        try:
            entry = self.services.quotas.enter(request.tenant, catalogue.quota_of(request.tenant), now_s)
            steered = self._steered(client)
            if isinstance(steered, Shed):
                entry.leave(now_s)
                client.refused(steered.reason)
                return
            admitted = self._admitted(client, caller, steered or model, expected_tokens)
            reserved = entry.reserve(admitted.features, now_s, admitted.service_class)
        except RequestRejected as refused:
            if entry is not None:
                entry.leave(now_s)
            replies.turn_away(self.services.metrics, client, ROUTE, client.key, refused)
            return
        timeline = Timeline(received_s=now_s, admitted_s=now_s)
        client.exchange = RequestExchange(self.services, catalogue, admitted, client, timeline=timeline, entry=entry)
        self.core.start_admitted(client.exchange, client, is_reserved=reserved)

    def _steered(self, client: Client) -> Shed | ResolvedModel | None:
        """Return another pool's model or a rejection from the steering; None if the request stays or its tenant may not
        use that pool."""
        steering = self._context.steering
        steered = steering.steer(client.request, client.pool, self._events.now_s) if steering is not None else None
        if steered is None or isinstance(steered, Shed) or steered == client.pool:
            return steered if isinstance(steered, Shed) else None
        client.steered = True
        catalogue = self._context.catalogue
        model = catalogue.model(steered, None, client.request.tenant)
        return catalogue.placed_by_rules(model, client.request) if model is not None else None

    def _admitted(self, client: Client, caller: Caller, model: ResolvedModel, expected_tokens: int) -> Admitted:
        request, block_tokens = client.request, self._setting.block_tokens
        features = RequestFeatures(
            prompt_bytes=_TEXT_BYTES * request.prompt_tokens,
            prompt_tokens=request.prompt_tokens,
            prompt_exact=True,
            max_output_tokens=_MOST_OUTPUT_TOKENS,
            expected_output_tokens=expected_tokens,
            text_blocks=client.blocks_for(is_adapter=model.is_adapter),
            text_block_bytes=_TEXT_BYTES * block_tokens,
        )
        return Admitted(
            request_id=client.key,
            caller=caller,
            route=ROUTE,
            model=model,
            routing=self._context.catalogue.routing_for(model.pool),
            service_class=BANDS[request.band],
            stream=True,
            include_usage=False,
            deadline_ms=None,
            features=features,
            upstream_body=_requests.encode(ModelledRequest(model.engine_name, client.key)),
            session=request.session,
            conversation=session_hash(request.tenant, request.session) if request.session is not None else None,
            is_first_turn=False,
        )

    def _note(self, client: Client, expected_tokens: int) -> None:
        """Count the arrival for the outcome and for the controller's figures of the pool."""
        request = client.request
        self.outcome.band(client.pool, request.band).asked += 1
        figures = self.figures(client.home)
        figures.arrivals += 1
        figures.prompt_tokens += request.prompt_tokens
        figures.output_tokens += expected_tokens
        if request.band == _BATCH:
            figures.deferrable_tokens += request.prompt_tokens + expected_tokens

    # Interface for clients.

    @property
    def now_s(self) -> float:
        return self._events.now_s

    def waking_demand(self, pool: PoolName) -> tuple[int, int]:
        """Return the requests that wait for a pool's first replica, and all open requests of that pool."""
        told = self.services.pool_wakes.demand(frozenset((pool,)), self.services.requests_of((pool,)))
        return sum(each.waking for each in told), sum(each.open_requests for each in told)

    def figures(self, pool: PoolName) -> Second:
        return self._context.figures[pool].now

    def pop_shed_reason(self) -> str:
        """Return and clear the shoal_shed_total label of the last rejection; "" if there is none."""
        return self._metrics.pop_shed_reason()

    def first_token(self, client: Client) -> None:
        if self._other is not None:
            self._other.router.started(client.key)

    def over(self, client: Client) -> None:
        del self.clients[client.key]
        if self._other is not None:
            self._other.router.ended(client.key)
        self._context.over(client.request)

    def _clock(self) -> float:
        return self._events.now_s


def _adapters_blocks(request: WorkloadRequest) -> tuple[int, ...]:
    """Return the prompt's block names under its adapter, which shares no KV with the base or others; none without
    one."""
    if request.adapter is None:
        return ()
    own = xxh3_64_intdigest(request.adapter.encode()) & _HALF_INT
    return tuple(block ^ own for block in request.blocks)
