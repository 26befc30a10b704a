"""Background loops of the gateway: feeds that it receives, state that it publishes, and the sweep.

The gateway receives heartbeats, prefix updates, and other gateways' pins and session homes. It publishes rollout
evidence, pool heartbeats, and its own pins and homes. Snapshots come from the registry in the same way
(`functions.fleet.snapshots`).

Each feed is a loop that raises when its source is lost; `Supervised` restarts it. Meanwhile the gateway uses the last
known state and retains what it could not publish.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from functions.fleet import heartbeat as heartbeats
from functions.fleet import pool_heartbeat, rollout_heartbeat, session_homes, session_pins, verdicts
from functions.fleet.bus import Bus, BusUnavailable, NodeBus, PoolBus, PrefixBus, RolloutBus, SessionBus
from functions.fleet.heartbeat import HeartbeatInvalid, Pulse
from functions.fleet.heartbeat_seals import HeartbeatRefused, SealChecker
from functions.fleet.own_stalls import StallGuard
from functions.fleet.prefix_updates import ASK_INTERVAL_S, encode
from functions.fleet.session_homes import HomeBatch, HomesInvalid
from functions.fleet.session_pins import BatchInvalid, PinBatch
from functions.fleet.verdicts import VerdictsInvalid
from functions.gateway.gateway import Gateway
from functions.gateway.needs import unmet_needs
from functions.gateway.services import Services

if TYPE_CHECKING:
    from functions.gateway.prefix.exact_prefixes import ExactPrefixes
    from functions.gateway.prefix.tokenizer_source import TokenizerSource


_log = logging.getLogger(__name__)
_SWEEP_INTERVAL_S = 0.25
_LINES_AT_ONCE = 16  # heartbeats between two yields to the event loop: a third of a millisecond
_FIRST_REQUEST_S = 0.5
_EVIDENCE_INTERVAL_S = 1.0
_POOLS_INTERVAL_S = 1.0
_NEEDS_INTERVAL_S = 10.0
_PINS_INTERVAL_S = 0.5
_HOMES_INTERVAL_S = 0.2
_TOKENIZERS_INTERVAL_S = 1.0
_BATCHES_PER_INTERVAL = 8  # batches have up to 4,096 sessions: about 65,000 new sessions a second for pins


async def follow_bus(gateway: Gateway, bus: Bus, seals: SealChecker | None = None) -> None:
    """Process every replica's last heartbeat, then new ones until the bus is lost, which is recorded and logged."""
    try:
        messages = bus.listen()
        for message in await anext(messages):
            await _receive_message(gateway, message, seals)
        gateway.bus_recovered()
        gateway.services.state.unread.discard("heartbeats")
        async for several in messages:
            for message in several:
                await _receive_message(gateway, message, seals)
    except BusUnavailable as error:
        gateway.services.state.bus_down = True
        gateway.services.bus_link.set(False)
        gateway.services.metrics.bus_lost("heartbeats")
        _log.warning("the bus is unreachable (%s); the last known view stays in use", error)


async def publish_evidence(services: Services, bus: RolloutBus) -> None:
    """Publish rollout evidence every second. Raises BusUnavailable; the evidence is then sent after a restart."""
    while True:
        await asyncio.sleep(_EVIDENCE_INTERVAL_S)
        await publish_evidence_once(services, bus)


async def publish_evidence_once(services: Services, bus: RolloutBus) -> None:
    """Publish evidence that changed since the last call. After BusUnavailable, the next call publishes all of it."""
    for heartbeat in services.rollouts.evidence.heartbeats():
        try:
            await bus.publish_stats(rollout_heartbeat.encode(heartbeat))
        except BusUnavailable:
            services.metrics.bus_lost("evidence")
            services.rollouts.evidence.resend_all()
            raise


async def publish_pins(services: Services, bus: RolloutBus) -> None:
    """Publish sessions pinned at this gateway twice a second. Raises BusUnavailable; unpublished pins stay queued."""
    while True:
        await asyncio.sleep(_PINS_INTERVAL_S)
        await publish_pins_once(services, bus)


async def publish_pins_once(services: Services, bus: RolloutBus) -> None:
    """Publish a few batches of new pins. On BusUnavailable, which is raised, the unpublished pins are queued again."""
    pins = services.rollouts.splits.pins
    for _ in range(_BATCHES_PER_INTERVAL):
        told = pins.to_publish()
        if not told:
            break
        batch = PinBatch(services.gateway_id, services.wall_clock(), tuple(told))
        try:
            await bus.publish_pins(session_pins.encode(batch), max(entry.ttl_s for entry in told))
        except BusUnavailable:
            services.metrics.bus_lost("pins")
            pins.publish_failed(told)
            raise


async def publish_homes(services: Services, bus: SessionBus) -> None:
    """Publish, five times a second, homes of conversations that other gateways would not assume.

    Homes are sent when the turn is dispatched, so other gateways know them before most answers end.
    """
    while True:
        await asyncio.sleep(_HOMES_INTERVAL_S)
        await publish_homes_once(services, bus)


async def publish_homes_once(services: Services, bus: SessionBus) -> None:
    """Publish a few batches of new session homes. Raises BusUnavailable; unpublished homes are then queued again."""
    homes = services.router.homes
    for _ in range(_BATCHES_PER_INTERVAL):
        told = homes.to_publish()
        if not told:
            break
        batch = HomeBatch(services.gateway_id, services.wall_clock(), tuple(told))
        try:
            await bus.publish_homes(session_homes.encode(batch), max(entry.ttl_s for entry in told))
        except BusUnavailable:
            services.metrics.bus_lost("homes")
            homes.publish_failed(told)
            raise
        homes.count_published(told)


async def follow_homes(services: Services, bus: SessionBus) -> None:
    """Process session homes that the bus retains, then those that gateways publish. Raises BusUnavailable."""
    async for messages in bus.homes():
        for message in messages:
            _receive_homes(services, message)
            await asyncio.sleep(0)  # a batch may have 4,096 sessions: let requests run in between
        services.state.unread.discard("session homes")


def _receive_homes(services: Services, message: bytes) -> None:
    try:
        services.router.homes.receive_batch(session_homes.decode(message), services.wall_clock())
    except HomesInvalid as error:
        _log.warning("dropped a batch of session homes: %s", error)


async def publish_pools(services: Services, bus: PoolBus) -> None:
    """Publish every second what this gateway measured of each pool. Raises BusUnavailable; the figures are lost."""
    sender = (services.gateway_id, int(services.wall_clock() * 1000))
    while True:
        await asyncio.sleep(_POOLS_INTERVAL_S)
        catalogue = services.state.catalogue
        known = [pool.name for pool in catalogue.snapshot.pools] if catalogue is not None else []
        rooms = {pool: admission for pool, admission, _ in services.admission.figures()}
        for heartbeat in services.admission.pools.heartbeats(
            sender, services.wall_clock(), known, rooms, services.admission.ladders()
        ):
            await bus.publish_pools(pool_heartbeat.encode(heartbeat))


async def publish_demand(services: Services, bus: PoolBus) -> None:
    """Publish the demand for pools that may scale to zero, every second and at once when a request starts to wait."""
    incarnation, sequence, wakes = int(services.wall_clock() * 1000), 0, services.pool_wakes
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_POOLS_INTERVAL_S):
                await wakes.asked.wait()
        wakes.asked.clear()
        catalogue = services.state.catalogue
        if catalogue is None or not catalogue.may_sleep:
            continue
        demand = wakes.demand(catalogue.may_sleep, services.requests_of(catalogue.may_sleep))
        sequence += 1
        heartbeat = pool_heartbeat.PoolHeartbeat(
            services.gateway_id, incarnation, sequence, services.wall_clock(), demand=demand
        )
        await bus.publish_pools(pool_heartbeat.encode(heartbeat))


async def publish_needs(
    services: Services, bus: PoolBus, tokenizers: "TokenizerSource | None", secrets_dir: Path | None
) -> None:
    """Publish every ten seconds what the policies in force need and this gateway lacks, even if nothing."""
    incarnation, sequence = int(services.wall_clock() * 1000), 0
    while True:
        catalogue = services.state.catalogue
        if catalogue is not None:
            needs = await asyncio.to_thread(unmet_needs, catalogue, tokenizers, secrets_dir)
            sequence += 1
            heartbeat = pool_heartbeat.PoolHeartbeat(
                services.gateway_id, incarnation, sequence, services.wall_clock(), needs=needs
            )
            await bus.publish_pools(pool_heartbeat.encode(heartbeat))
        await asyncio.sleep(_NEEDS_INTERVAL_S)


async def follow_pins(services: Services, bus: RolloutBus) -> None:
    """Process pins that the bus retains, then those that gateways publish. Raises BusUnavailable."""
    async for messages in bus.pins():
        for message in messages:
            _receive_pins(services, message)
            await asyncio.sleep(0)  # a batch may have 4,096 sessions: let requests run in between
        services.state.unread.discard("pins")


def _receive_pins(services: Services, message: bytes) -> None:
    try:
        services.rollouts.splits.pins.receive_batch(session_pins.decode(message), services.wall_clock())
    except BatchInvalid as error:
        _log.warning("dropped a batch of pins: %s", error)


async def sweep(gateway: Gateway, every_s: float = _SWEEP_INTERVAL_S) -> None:
    """Sweep the gateway every `every_s`; skip a round after a stall of this loop, so that input is read first."""
    rounds = StallGuard(every_s, gateway.services.clock())
    while True:
        await asyncio.sleep(every_s)
        if rounds.is_on_time(gateway.services.clock()):
            gateway.sweep()


async def _receive_message(gateway: Gateway, message: bytes, seals: SealChecker | None) -> None:
    """Process a message of many heartbeats in parts, so that requests do not wait for all of it.

    The rest of an invalid message is dropped and logged.
    """
    try:
        for number, line in enumerate(heartbeats.lines(message), start=1):
            _receive_line(gateway, line, seals)
            if number % _LINES_AT_ONCE == 0:
                await asyncio.sleep(0)
    except HeartbeatInvalid as error:
        _log.warning("dropped a message from the bus: %s", error)


def _receive_line(gateway: Gateway, line: bytes, seals: SealChecker | None) -> None:
    try:
        said = heartbeats.decode_line(line)
        if seals is not None:
            seals.check(line, said)
    except HeartbeatRefused as error:
        if seals is not None and seals.should_log(gateway.services.clock()):
            _log.warning("rejected %d heartbeats from the bus; the last one: %s", seals.refused_total, error)
        return
    except HeartbeatInvalid as error:
        _log.warning("dropped a heartbeat from the bus: %s", error)
        return
    if isinstance(said, Pulse):
        gateway.receive_pulse(said)
    else:
        gateway.receive_heartbeat(said)


async def follow_nodes(services: Services, bus: NodeBus) -> None:
    """Process the controller's notices of nodes that are not ready, sent by the registry. Raises BusUnavailable."""
    async for message in bus.nodes():
        receive_nodes(services, message)


def receive_nodes(services: Services, message: bytes) -> None:
    try:
        told = verdicts.decode_notice(message)
    except VerdictsInvalid as error:
        _log.warning("dropped a notice of nodes: %s", error)
        return
    services.fleet.set_troubled_nodes(told.nodes, services.clock() + verdicts.VERDICTS_FOR_S)


# prefix updates from replicas


async def follow_prefixes(exact: "ExactPrefixes", bus: PrefixBus) -> None:
    """Process the agents' prefix updates; sequence numbers reveal missed ones. Raises BusUnavailable."""
    async for message in bus.prefixes():
        exact.receive(message)


async def request_prefixes(services: Services, exact: "ExactPrefixes", bus: PrefixBus) -> None:
    """Request every few seconds the prefix data that the routing policies in force need."""
    await asyncio.sleep(_FIRST_REQUEST_S)  # the subscription must exist before the replies arrive
    while True:
        if services.state.catalogue is not None:
            for ask in exact.due_requests(services.state.catalogue):
                await bus.publish_prefix_request(encode(ask))
        await asyncio.sleep(ASK_INTERVAL_S if services.state.catalogue is not None else _FIRST_REQUEST_S)


async def follow_tokenizers(services: Services, exact: "ExactPrefixes") -> None:
    """Load missing tokenizers of the snapshot's pools; check every second. Requests do not wait for it."""
    while True:
        if services.state.catalogue is not None:
            await exact.refresh_tokenizers(services.state.catalogue)
        await asyncio.sleep(_TOKENIZERS_INTERVAL_S)


async def sweep_prefixes(
    exact: "ExactPrefixes", clock: Callable[[], float], every_s: float = _SWEEP_INTERVAL_S
) -> None:
    """Remove prefixes of silent replicas every `every_s` seconds; skip a round after a stall of this loop."""
    rounds = StallGuard(every_s, clock())
    while True:
        await asyncio.sleep(every_s)
        if rounds.is_on_time(clock()):
            exact.sweep()
