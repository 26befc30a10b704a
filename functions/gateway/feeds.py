"""Background loops of the gateway: what it receives, what it publishes, and the sweep.

It receives heartbeats, prefix updates, and other gateways' pins and session homes; it publishes rollouts' evidence,
pool heartbeats, and its own pins and homes. Snapshots come from the registry in the same way
(`functions.fleet.snapshots`).

Each feed is a loop that ends by raising when its source is lost; `Supervised` starts it again. The gateway goes on
with what it last knew, and keeps what it could not tell.
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
from functions.fleet.own_stalls import Rounds
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
_LINES_AT_ONCE = 16  # of heartbeats: a third of a millisecond
_FIRST_REQUEST_S = 0.5
_EVIDENCE_INTERVAL_S = 1.0
_POOLS_INTERVAL_S = 1.0
_NEEDS_INTERVAL_S = 10.0
_PINS_INTERVAL_S = 0.5
_HOMES_INTERVAL_S = 0.2
_TOKENIZERS_INTERVAL_S = 1.0
_BATCHES_PER_INTERVAL = 8  # of 4,096 sessions: 65,000 new ones a second


async def follow_bus(gateway: Gateway, bus: Bus, seals: SealChecker | None = None) -> None:
    """Every replica's last heartbeat, then heartbeats as they come, until the bus is lost."""
    try:
        messages = bus.listen()
        for message in await anext(messages):
            await _take(gateway, message, seals)
        gateway.bus_recovered()
        gateway.services.state.unread.discard("heartbeats")
        async for several in messages:
            for message in several:
                await _take(gateway, message, seals)
    except BusUnavailable as error:
        gateway.services.state.bus_down = True
        gateway.services.bus_link.set(False)
        gateway.services.metrics.bus_lost("heartbeats")
        _log.warning("the bus is out of reach (%s); the last known view stays in use", error)


async def publish_evidence(services: Services, bus: RolloutBus) -> None:
    """Each second, what this gateway has seen of rollouts. What could not be told is told later."""
    while True:
        await asyncio.sleep(_EVIDENCE_INTERVAL_S)
        await publish_evidence_once(services, bus)


async def publish_evidence_once(services: Services, bus: RolloutBus) -> None:
    """What has changed since the last time; raises BusUnavailable, and all of it is said the next time."""
    for heartbeat in services.rollouts.evidence.heartbeats():
        try:
            await bus.publish_stats(rollout_heartbeat.encode(heartbeat))
        except BusUnavailable:
            services.metrics.bus_lost("evidence")
            services.rollouts.evidence.say_all_again()
            raise


async def publish_pins(services: Services, bus: RolloutBus) -> None:
    """Twice a second, the sessions that were pinned here; kept where the bus is away."""
    while True:
        await asyncio.sleep(_PINS_INTERVAL_S)
        await publish_pins_once(services, bus)


async def publish_pins_once(services: Services, bus: RolloutBus) -> None:
    """Some batches of what is to be told; raises BusUnavailable, and what was not told is told the next time."""
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
    """Five times a second, the conversations that went where others would not look; kept where the bus is away.

    Sent when the turn is: the others know before most answers have ended, and the next turn can come.
    """
    while True:
        await asyncio.sleep(_HOMES_INTERVAL_S)
        await publish_homes_once(services, bus)


async def publish_homes_once(services: Services, bus: SessionBus) -> None:
    """Some batches of what is to be told; raises BusUnavailable, and what was not told is told the next time."""
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
        homes.published(told)


async def follow_homes(services: Services, bus: SessionBus) -> None:
    """The homes that the bus keeps, then those that gateways tell, until the bus is lost: BusUnavailable."""
    async for messages in bus.homes():
        for message in messages:
            _take_homes(services, message)
            await asyncio.sleep(0)  # a batch may be of 4,096 sessions: requests come between
        services.state.unread.discard("session homes")


def _take_homes(services: Services, message: bytes) -> None:
    try:
        services.router.homes.received(session_homes.decode(message), services.wall_clock())
    except HomesInvalid as error:
        _log.warning("dropped a batch of session homes: %s", error)


async def publish_pools(services: Services, bus: PoolBus) -> None:
    """Each second, what this gateway has seen of each pool lately. What could not be told is old a second later."""
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
    """Each second, and at once when somebody begins to wait, who asks for pools that may be at zero."""
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
    """Each ten seconds, what policies in force need here and is not there; nothing lacking is told too."""
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
    """The pins that the bus keeps, then those that gateways tell, until the bus is lost: BusUnavailable."""
    async for messages in bus.pins():
        for message in messages:
            _take_pins(services, message)
            await asyncio.sleep(0)  # a batch may be of 4,096 sessions: requests come between
        services.state.unread.discard("pins")


def _take_pins(services: Services, message: bytes) -> None:
    try:
        services.rollouts.splits.pins.received(session_pins.decode(message), services.wall_clock())
    except BatchInvalid as error:
        _log.warning("dropped a batch of pins: %s", error)


async def sweep(gateway: Gateway, every_s: float = _SWEEP_INTERVAL_S) -> None:
    """For ever: where this loop stood still, what came meanwhile is read before anybody is judged."""
    rounds = Rounds(every_s, gateway.services.clock())
    while True:
        await asyncio.sleep(every_s)
        if rounds.may_judge(gateway.services.clock()):
            gateway.sweep()


async def _take(gateway: Gateway, message: bytes, seals: SealChecker | None) -> None:
    """A message of many heartbeats is taken in by parts: requests do not wait for all of it."""
    try:
        for number, line in enumerate(heartbeats.lines(message), start=1):
            _take_line(gateway, line, seals)
            if number % _LINES_AT_ONCE == 0:
                await asyncio.sleep(0)
    except HeartbeatInvalid as error:
        _log.warning("dropped a message from the bus: %s", error)


def _take_line(gateway: Gateway, line: bytes, seals: SealChecker | None) -> None:
    try:
        said = heartbeats.decode_line(line)
        if seals is not None:
            seals.check(line, said)
    except HeartbeatRefused as error:
        if seals is not None and seals.has_to_be_told(gateway.services.clock()):
            _log.warning("%d heartbeats from the bus are not believed; the last one: %s", seals.refused_total, error)
        return
    except HeartbeatInvalid as error:
        _log.warning("dropped a heartbeat from the bus: %s", error)
        return
    if isinstance(said, Pulse):
        gateway.receive_pulse(said)
    else:
        gateway.receive_heartbeat(said)


async def follow_nodes(services: Services, bus: NodeBus) -> None:
    """Which nodes are not ready, as the controller has the registry tell, until the bus is lost: BusUnavailable."""
    async for message in bus.nodes():
        take_nodes(services, message)


def take_nodes(services: Services, message: bytes) -> None:
    try:
        told = verdicts.decode_notice(message)
    except VerdictsInvalid as error:
        _log.warning("dropped a notice of nodes: %s", error)
        return
    services.fleet.tell_nodes(told.nodes, services.clock() + verdicts.VERDICTS_FOR_S)


# prefixes, where replicas publish their caches


async def follow_prefixes(exact: "ExactPrefixes", bus: PrefixBus) -> None:
    """Agents' updates, until the bus is lost: BusUnavailable. What is missed then shows in the sequence numbers."""
    async for message in bus.prefixes():
        exact.receive(message)


async def ask_for_prefixes(services: Services, exact: "ExactPrefixes", bus: PrefixBus) -> None:
    """Each few seconds, what is wanted of which pool, by the routing policies in force; the first time soon."""
    await asyncio.sleep(_FIRST_REQUEST_S)  # for the subscription to be there before the answers are
    while True:
        if services.state.catalogue is not None:
            for ask in exact.asks(services.state.catalogue):
                await bus.ask_prefixes(encode(ask))
        await asyncio.sleep(ASK_INTERVAL_S if services.state.catalogue is not None else _FIRST_REQUEST_S)


async def follow_tokenizers(services: Services, exact: "ExactPrefixes") -> None:
    """Each second, what the pools in force need and what is missing of it; nothing waits for it."""
    while True:
        if services.state.catalogue is not None:
            await exact.refresh_tokenizers(services.state.catalogue)
        await asyncio.sleep(_TOKENIZERS_INTERVAL_S)


async def sweep_prefixes(
    exact: "ExactPrefixes", clock: Callable[[], float], every_s: float = _SWEEP_INTERVAL_S
) -> None:
    """Likewise: what replicas cache is forgotten with their silence, and not with ours."""
    rounds = Rounds(every_s, clock())
    while True:
        await asyncio.sleep(every_s)
        if rounds.may_judge(clock()):
            exact.sweep()
