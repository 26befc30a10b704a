"""A gateway of product code, assembled like in its `server`, but without sockets, TLS and the registry client.

    start -> serving -> drain (a successor serves already) -> gone
                 '----- crash -------------------------------^

The fast lane is each connection's protocol, with the ASGI application behind it; feeds, sweep and quota leases run as
its own tasks. Snapshots arrive by `swap`, as its follower would deliver them. Sets ordered by memory address are
replaced by ones in order of arrival: otherwise the same seed would not be the same run.
"""

import asyncio
import functools
from collections.abc import Callable, Mapping
from itertools import count
from random import Random
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from functions.api.ids import EngineName
from functions.decisions.catalogue import Catalogue
from functions.decisions.routing.choice import ReplicaView
from functions.fleet.bus import BusUnavailable
from functions.gateway import feeds
from functions.gateway.assembly import make_services
from functions.gateway.gateway import Gateway
from functions.gateway.http.asgi import make_app
from functions.gateway.http.lane import LaneProtocol
from functions.gateway.limits import Limits
from functions.gateway.metrics import Metrics
from functions.gateway.quota.leases import QuotaLeases
from functions.gateway.routing.load_client import LoadAnswer
from functions.gateway.usage.delivery import DELIVER_EVERY_S, SPOOL_EVERY_S
from tests.drills.virtual.bills import Account, Bills
from tests.drills.virtual.bus import BrokerClient, BusClient, BusServer
from tests.drills.virtual.clients import GATEWAY_PORT
from tests.drills.virtual.loop import Node
from tests.drills.virtual.pipes import Network
from tests.drills.virtual.replica_node import Replica
from tests.gateway.rig import NOW_UNIX_S, PEPPER

PORT = GATEWAY_PORT
LIMITS = Limits(
    head_s=4.0,
    body_s=6.0,
    keep_alive_s=15.0,
    first_byte_s=6.0,
    idle_s=4.0,
    answer_s=30.0,
    write_stall_s=5.0,
    cold_wait_s=5.0,
)
_STOP_AFTER_S = 5.0  # like the server's own, so that the last events are sent


class InOrder(dict[Any, None]):
    """A set in order of insertion."""

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)


class _Loader:
    """Loader that reaches agents over the network; the replica answers."""

    def __init__(self, network: Network, node: Node, replicas: Mapping[str, Replica]) -> None:
        self._network, self._node, self._replicas = network, node, replicas

    async def load(self, replica: ReplicaView, engine_name: EngineName, wait_s: float) -> LoadAnswer:
        try:
            async with asyncio.timeout(wait_s + 2.0):
                await self._network.travel(self._node, f"agent-{replica.id}")
                return await self._replicas[replica.id].load(replica, engine_name)
        except TimeoutError:
            return LoadAnswer("unreachable", "timed out")

    async def close(self) -> None:
        """Close nothing: there is no open connection."""


class GatewayNode:
    def __init__(
        self,
        name: str,
        bus: BusServer,
        replicas: Mapping[str, Replica],
        rng: Random,
        expected_gateways: int,
        bills: Bills,
    ) -> None:
        self.name = name
        self.bills = bills
        self.account: Account = None  # type: ignore[assignment]  # from `start` on
        self.node = Node(name)
        self.network = bus.network
        self.is_serving = False
        self.swapped: list[tuple[float, int]] = []  # when, and to which epoch
        self._bus, self._replicas, self._rng = bus, replicas, rng
        self._expected_gateways = expected_gateways
        self._state = ServerState()
        self.gateway: Gateway = None  # type: ignore[assignment]  # from `start` on
        self.leases: QuotaLeases = None  # type: ignore[assignment]

    # life cycle

    def start(self, catalogue: Catalogue) -> None:
        self.network.context_of(self.node).run(self._put_together)
        self.swap(catalogue)
        self.is_serving = True

    def swap(self, catalogue: Catalogue) -> None:
        if self.node.alive:
            self.swapped.append((self.network.loop.time(), catalogue.epoch))
            self._run(self.gateway.swap, catalogue)

    def crash(self) -> None:
        """Crash like SIGKILL: nothing pending is done."""
        self.is_serving = False
        self.bills.killed(self.account, self.network.loop.time())
        self.network.kill(self.node)
        for task in [*self.gateway.services.tasks._tasks, *self._state.tasks]:
            task.cancel()

    async def drain(self, drain_s: float) -> None:
        """Drain like SIGTERM after a handover: open requests run to their end, or for this long."""
        self.is_serving = False
        loop, gateway = self.network.loop, self.gateway
        gateway.services.state.draining = True
        self.network.stop_listening(self.node)
        for connection in list(self._state.connections):
            self._run(connection.shutdown)
        cut = loop.call_later(drain_s, gateway.cut_short, context=self.network.context_of(self.node))
        end_s = loop.time() + drain_s + _STOP_AFTER_S
        while (self._state.connections or self._state.tasks) and loop.time() < end_s and self.node.alive:
            await asyncio.sleep(0.1)
        cut.cancel()
        if self.node.alive:
            await self._last_words()
            gateway.services.upstreams.close()
            self.network.kill(self.node)

    @property
    def is_quiet(self) -> bool:
        return not self.gateway.services.connections and not self.gateway.services.open_requests

    # internals

    def _put_together(self) -> None:
        loop, node = self.network.loop, self.node
        services = make_services(
            pepper=PEPPER,
            limits=LIMITS,
            metrics=Metrics(),
            clock=loop.time,
            wall_clock=lambda: NOW_UNIX_S + loop.time() + node.wall_step_s,
            gateway_id=self.name,
            loader=_Loader(self.network, node, self._replicas),
        )
        gateway = self.gateway = Gateway(services)
        gateway.services.tasks._tasks = InOrder()  # type: ignore[assignment]
        self._state.connections = InOrder()  # type: ignore[assignment]
        leases = self.leases = QuotaLeases(
            BrokerClient(self._bus, node),
            self.name,
            clock=loop.time,
            tasks=gateway.services.tasks,
            uniform=self._rng.random,
            expected_gateways=self._expected_gateways,
        )
        gateway.services.quotas.leasing = leases
        self.account = self.bills.account(self.name, services.usage, loop.time)
        self._start_feeds(BusClient(self._bus, node))
        config = uvicorn.Config(
            make_app(gateway), lifespan="off", ws="none", log_config=None, access_log=False, timeout_keep_alive=15
        )
        config.load()
        state = self._state
        self.network.listen(node, (self.name, PORT), lambda: LaneProtocol(gateway, config, state, {}, loop))

    def _start_feeds(self, bus: BusClient) -> None:
        """Start the feeds like `server`."""
        gateway, tasks = self.gateway, self.gateway.services.tasks
        tasks.forever("bus", functools.partial(feeds.follow_bus, gateway, bus))
        for feed in (feeds.publish_evidence, feeds.publish_pins, feeds.follow_pins):
            tasks.forever(feed.__name__, functools.partial(feed, gateway.services, bus), expected=(BusUnavailable,))
        tasks.forever("quota leases", self.leases.run)
        tasks.forever("sweep", functools.partial(feeds.sweep, gateway))
        tasks.forever("usage", self._tell_usage)

    async def _tell_usage(self) -> None:
        """Report usage like `UsageDelivery`."""
        for number in count(1):
            await asyncio.sleep(SPOOL_EVERY_S)
            self.account.write_spool()
            if number % round(DELIVER_EVERY_S / SPOOL_EVERY_S) == 0:
                self.account.deliver()

    async def _last_words(self) -> None:
        gateway, bus = self.gateway, BusClient(self._bus, self.node)
        await gateway.services.tasks.close()
        try:
            async with asyncio.timeout(2.0):
                await feeds.publish_evidence_once(gateway.services, bus)
                await feeds.publish_pins_once(gateway.services, bus)
        except (BusUnavailable, TimeoutError):
            return
        finally:
            self.account.close()

    def _run(self, act: Callable[..., object], *args: object) -> None:
        """Run as one of the gateway's own callbacks."""
        self.network.context_of(self.node).run(act, *args)
