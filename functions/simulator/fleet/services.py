"""Services of a simulated gateway: the product's own, with a simulated fleet around them.

    OutcomeMetrics    the few metrics that an outcome needs
    _AgentLoader      adapter loads, requested from the replicas' simulated agents
    _EngineEvents     prefixes that engines have cached, by their own events

`faults` handles silence within a stream, since no tokens pass here. `functions.gateway.assembly` builds the real
services.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from functions.api.ids import EngineName
from functions.decisions.routing.choice import NoReplica, Prediction
from functions.decisions.routing.replicas import ReplicaView
from functions.decisions.routing.request import NOT_CACHED, CachedPrompt
from functions.fleet.view import FleetView
from functions.gateway.admission.pool_stats import PoolActivity
from functions.gateway.admission.queue import AdmissionQueues
from functions.gateway.assembly import make_services
from functions.gateway.limits import Limits
from functions.gateway.metrics import Metrics
from functions.gateway.quota import settlement
from functions.gateway.request.request import Admitted, EndListener
from functions.gateway.routing.load_client import LoadAnswer
from functions.gateway.services import Services
from functions.simulator.fleet.client import Client
from functions.simulator.fleet.comparison import NoLadder, OpenAdmission, OtherRouter
from functions.simulator.fleet.context import Context
from functions.simulator.fleet.setting import Setting, Timeouts
from functions.simulator.fleet.signals import Second
from functions.simulator.fleet.upstream import ModelledUpstreams

_NEVER_S = float("inf")


def modelled_services(
    name: str,
    zone: str,
    context: Context,
    clients: Mapping[str, Client],
    *,
    metrics: "OutcomeMetrics",
    other: OtherRouter | None,
) -> Services:
    """Build the services. `clients`: those in progress, by request id. `other`: a router under comparison."""

    def clock() -> float:
        return context.events.now_s

    services = make_services(
        pepper=b"simulated",
        limits=_limits(context.setting.timeouts),
        metrics=metrics,
        clock=clock,
        wall_clock=clock,
        gateway_id=name,
        loader=_AgentLoader(context),
        telling=_EngineEvents(context, clients),
        zone=zone,
        other=other,
        upstreams=ModelledUpstreams(context.engines, clients),
        make_admission=partial(_admission, context),
    )
    return replace(services, end_listeners=_listeners(services, context))


def _admission(context: Context, clock: Callable[[], float], fleet: FleetView) -> AdmissionQueues:
    queues = _queues(context.setting, clock, fleet)
    queues.pools = _Activity(clock, context)
    return queues


def _queues(setting: Setting, clock: Callable[[], float], fleet: FleetView) -> AdmissionQueues:
    if setting.admission is None:
        return OpenAdmission(clock, fleet)
    return AdmissionQueues(clock, fleet) if setting.ladder else AdmissionQueues(clock, fleet, NoLadder)


class _Activity(PoolActivity):
    """Activity of prefill pools for the controller's figures; clients count those of other pools."""

    def __init__(self, clock: Callable[[], float], context: Context) -> None:
        super().__init__(clock)
        self._context = context

    def prompt_arrived(self, asking: Admitted, wait_s: float, *, is_read: bool) -> None:
        figures, tokens = self._figures(asking), asking.features.prompt_tokens
        figures.arrivals += 1
        figures.prompt_tokens += tokens
        figures.degraded += not is_read
        if asking.service_class == "batch":
            figures.deferrable_tokens += tokens
        else:
            figures.prompts += 1
            figures.prompts_wait_s += wait_s

    def prompt_read(self, asking: Admitted, took_s: float) -> None:
        self._figures(asking).ttft.add(took_s * 1000)

    def prompt_lost(self, asking: Admitted) -> None:
        self._figures(asking).degraded += 1

    def _figures(self, asking: Admitted) -> Second:
        return self._context.figures[asking.model.pool].now


class OutcomeMetrics(Metrics):
    """The gateway metrics that an outcome needs; the others are ignored."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._outcome = context.outcome
        self._reason = ""

    def routed(self, decision: Prediction | NoReplica) -> None:
        if isinstance(decision, Prediction):
            self._outcome.routes[decision.reason] += 1

    def retried(self) -> None:
        self._outcome.retries += 1

    def shed(self, reason: str) -> None:
        self._reason = reason

    def pop_shed_reason(self) -> str:
        reason, self._reason = self._reason, ""
        return reason


class _AgentLoader:
    """Requests adapter loads from the replicas' simulated agents."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def load(self, replica: ReplicaView, engine_name: EngineName, wait_s: float) -> LoadAnswer:
        answer: asyncio.Future[LoadAnswer] = asyncio.get_running_loop().create_future()
        self._context.load_adapter(replica.id, engine_name, wait_s, partial(_set_answer, answer))
        return await answer

    async def close(self) -> None:
        """Do nothing: there is no connection."""


def _set_answer(waiting: asyncio.Future[LoadAnswer], answer: LoadAnswer) -> None:
    if not waiting.done():  # else cancelled
        waiting.set_result(answer)


class _EngineEvents:
    """Prefixes that engines have cached, by their own events."""

    def __init__(self, context: Context, clients: Mapping[str, Client]) -> None:
        self._context = context
        self._clients = clients
        self._block_tokens = context.setting.block_tokens

    def matched(self, admitted: Admitted) -> CachedPrompt | None:
        told = self._context.told.get(admitted.model.pool)
        if told is None:
            return None
        asking = self._clients[admitted.request_id]
        blocks = asking.blocks_for(is_adapter=admitted.model.is_adapter)
        if not blocks:
            return NOT_CACHED
        most, block_tokens = admitted.features.prompt_tokens - 1, self._block_tokens
        held = told.match(blocks)
        tokens = {replica: min(count * block_tokens, most) for replica, count in held.blocks.items()}
        return CachedPrompt(tokens, {replica: count * block_tokens for replica, count in held.in_host.items()})


def _listeners(services: Services, context: Context) -> tuple[EndListener, ...]:
    """Return the listeners of `make_services` except for those unused here: metrics, rollout evidence, traces."""
    return (
        services.router.ended,
        services.quarantine.ended,
        services.intake.features.ended,
        services.admission.ended,
        partial(settlement.settle, services.clock, services.usage),
        context.outcome.request_ended,
    )


def _limits(timeouts: Timeouts) -> Limits:
    return Limits(
        connect_s=timeouts.connect_s,
        first_byte_s=timeouts.first_byte_s,
        idle_s=_NEVER_S,
        answer_s=timeouts.answer_s,
        cold_wait_s=timeouts.cold_s,
    )
