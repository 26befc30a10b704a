"""The fleet's bus and the quota broker in memory: the clients of Valkey are under test, not Valkey itself.

Each client belongs to a node. Messages take time, may be duplicated or late, and do not pass a blocked path. A client
learns of a lost bus as over TCP: at once if the connection is refused. If the bus is silent, its health check finds out
(5 s, and 2 s for the answer).

The broker is `functions.fleet.quota_model`, on the bus's own time.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random

from functions.fleet import heartbeat as heartbeats
from functions.fleet.bus import BusUnavailable
from functions.fleet.heartbeat import SILENCE_LIMIT_S, Heartbeat
from functions.fleet.quota_leases import Group, LeaseAnswer
from functions.fleet.quota_model import QuotaModel
from tests.drills.virtual.loop import Node
from tests.drills.virtual.pipes import Network

BUS = "bus"
_SILENT_S = 7.0  # health check and timeout of the client
_CALL_S = 2.0
_QUOTA_CALL_S = 1.0
_QUEUE_MAX = 10_000


class Subscription:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.messages: deque[bytes] = deque()
        self.arrived = asyncio.Event()
        self.is_broken = False

    def put(self, message: bytes) -> None:
        assert len(self.messages) < _QUEUE_MAX, "a subscriber does not keep up"
        self.messages.append(message)
        self.arrived.set()

    def cut(self) -> None:
        self.is_broken = True
        self.arrived.set()


class BusServer:
    def __init__(self, network: Network, seed: str) -> None:
        self.network = network
        self.rng = Random(seed + "/bus")
        self.is_down = False
        self.twice_ratio = self.rng.choice((0.0, 0.0, 0.2))
        self.late_ratio = self.rng.choice((0.0, 0.0, 0.2))
        self.script = QuotaModel()
        self.beats: dict[str, tuple[bytes, float]] = {}
        self.pins: list[tuple[bytes, float]] = []
        self.channels: dict[str, list[Subscription]] = {"beats": [], "pins": []}

    @property
    def now_s(self) -> float:
        return self.network.loop.time()

    def go_down(self) -> None:
        """Stop the bus; it restarts empty, since nothing is persisted."""
        self.is_down = True
        self.script, self.beats, self.pins = QuotaModel(), {}, []
        for subscriptions in self.channels.values():
            for subscription in subscriptions:
                subscription.cut()

    def come_back(self) -> None:
        self.is_down = False

    def say(self, channel: str, message: bytes) -> None:
        for subscription in self.channels[channel]:
            for _ in range(2 if self.rng.random() < self.twice_ratio else 1):
                late_s = self.rng.uniform(0.0, 3.0) if self.rng.random() < self.late_ratio else 0.0
                self.network.loop.call_later(self.network.latency_s() + late_s, self._deliver, subscription, message)

    def _deliver(self, subscription: Subscription, message: bytes) -> None:
        if subscription.node.alive and not self.network.is_blocked(BUS, subscription.node.name):
            subscription.put(message)


class BusClient:
    """`Bus` and `RolloutBus` of one node."""

    def __init__(self, server: BusServer, node: Node) -> None:
        self._server, self._node = server, node

    async def publish(self, heartbeat: Heartbeat) -> None:
        await self._reach()
        message = heartbeats.encode(heartbeat)
        self._server.beats[heartbeat.replica_id] = (message, self._server.now_s + SILENCE_LIMIT_S)
        self._server.say("beats", message)

    async def listen(self) -> AsyncIterator[list[bytes]]:
        async for messages in self._messages("beats", self._kept_beats):
            yield messages

    async def publish_stats(self, message: bytes) -> None:
        await self._reach()

    async def stats(self) -> AsyncIterator[bytes]:
        """Fail: evidence is read by the registry, which is not part of the run."""
        raise BusUnavailable("nobody tells")
        yield b""

    async def publish_pins(self, message: bytes, ttl_s: float) -> None:
        await self._reach()
        self._server.pins.append((message, self._server.now_s + ttl_s))
        self._server.say("pins", message)

    async def pins(self) -> AsyncIterator[list[bytes]]:
        async for messages in self._messages("pins", self._kept_pins):
            yield messages

    async def close(self) -> None:
        """Close nothing: there is no open connection."""

    async def _reach(self, call_s: float = _CALL_S) -> None:
        server, network = self._server, self._server.network
        await asyncio.sleep(network.latency_s())
        if not self._node.alive:
            await asyncio.Event().wait()  # its process has ended
        if server.is_down:
            raise BusUnavailable("Connection refused")
        if network.is_blocked(self._node.name, BUS) or network.is_blocked(BUS, self._node.name):
            await asyncio.sleep(call_s)
            raise BusUnavailable("Timeout reading from socket")

    def _kept_beats(self) -> list[bytes]:
        return [message for message, until_s in self._server.beats.values() if self._server.now_s < until_s]

    def _kept_pins(self) -> list[bytes]:
        return [message for message, until_s in self._server.pins if self._server.now_s < until_s]

    async def _messages(self, channel: str, kept: Callable[[], list[bytes]]) -> AsyncIterator[list[bytes]]:
        await self._reach()
        server = self._server
        subscription = Subscription(self._node)
        server.channels[channel].append(subscription)
        try:
            yield kept()
            silent_since_s = server.now_s
            while True:
                silent_since_s = await self._wait(subscription, silent_since_s)
                while subscription.messages:
                    yield [subscription.messages.popleft()]
        finally:
            server.channels[channel].remove(subscription)

    async def _wait(self, subscription: Subscription, silent_since_s: float) -> float:
        """Wait for a message and return when the path was last known to be open. BusUnavailable."""
        server = self._server
        try:
            async with asyncio.timeout(1.0):
                await subscription.arrived.wait()
        except TimeoutError:
            if not server.network.is_blocked(BUS, self._node.name):
                return server.now_s
            if server.now_s - silent_since_s > _SILENT_S:
                raise BusUnavailable("Timeout reading from socket") from None
            return silent_since_s
        if subscription.is_broken:
            raise BusUnavailable("Connection closed by server.")
        subscription.arrived.clear()
        return server.now_s


class BrokerClient(BusClient):
    """`QuotaBroker` of one node."""

    async def request_leases(self, gateway_id: str, groups: Sequence[Group]) -> LeaseAnswer:
        await self._reach(_QUOTA_CALL_S)
        answer = self._server.script.request_leases(gateway_id, groups, int(self._server.now_s * 1_000_000))
        await asyncio.sleep(self._server.network.latency_s())
        return answer
