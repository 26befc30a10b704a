"""A network in memory: connections between nodes, with latency, ragged writes, resets, partitions and slow readers.

    write -> [in flight: ready at now + latency, in order] -> data_received        a FIN or RST travels the same way
                |                        |
                |                        '-- waits while the path is blocked, and while the receiver reads nothing
                '-- over WINDOW_BYTES in flight: the writer is paused, as by a full kernel buffer

Order holds within one direction of a connection, like in TCP, and nowhere else. A blocked path loses nothing: like TCP
it retransmits, and data arrives once the path is open; a connection attempt gets no answer until then. One generator
makes all random choices, so a seed determines the run.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from random import Random
from typing import Any

from tests.drills.virtual.loop import NODE, Node, VirtualLoop

WINDOW_BYTES = 64 * 1024
_HIGH_BYTES = 64 * 1024  # asyncio's own default
_FIN, _RST = "FIN", "RST"
Address = tuple[str, int]


class _Socket:
    """The socket under a transport, as far as it is used."""

    def __init__(self, own: Address, peer: Address) -> None:
        self._own, self._peer = own, peer

    def setsockopt(self, *_: Any) -> None:
        """Ignore it: buffers are WINDOW_BYTES here."""

    def getsockname(self) -> Address:
        return self._own

    def getpeername(self) -> Address:
        return self._peer


class PipeTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: "Network", node: Node, number: int, addresses: tuple[Address, Address]) -> None:
        super().__init__()
        self.network, self.node, self.number = network, node, number
        self.context = network.context_of(node)
        self.peer: PipeTransport = self  # until it is paired
        self.protocol: Any = None
        self.broken_by = ""  # the fault that broke it, if any
        self.answers = ""  # the request that its client waits for
        self.closing = self.lost = self.is_reading_paused = self._is_write_paused = False
        self._high_bytes, self._low_bytes = _HIGH_BYTES, _HIGH_BYTES // 4
        self._socket = _Socket(*addresses)
        self._queue: deque[tuple[float, bytes | str]] = deque()
        self._under_way_bytes = 0
        self._last_ready_s = 0.0
        self._is_pumping = False

    # called by protocols

    def write(self, data: Any) -> None:
        if self.closing or not data:
            return
        data = bytes(data)
        self.network.on_write(self, data)
        for piece in self.network.pieces(data):
            self._put(piece)
        if self._unsent_bytes > self._high_bytes and not self._is_write_paused:
            self._is_write_paused = True
            self.protocol.pause_writing()

    def close(self) -> None:
        if self.closing:
            return
        self.closing = True
        self._put(_FIN)
        self._end_if_sent()

    def abort(self) -> None:
        if self.lost:
            return
        if self.network.rng.random() < 0.5:  # a reset may overtake unread data
            self._drop_queue()
        self._put(_RST)
        self._lose(None)

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        self.is_reading_paused = False
        self.peer._wake()

    def get_write_buffer_size(self) -> int:
        return max(0, self._unsent_bytes)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = _HIGH_BYTES if high is None else high
        self._low_bytes = self._high_bytes // 4 if low is None else low

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._socket if name == "socket" else default

    # called by the network

    def attach_protocol(self, protocol: Any) -> None:
        self.protocol = protocol
        protocol.connection_made(self)

    def accept(self, make: Callable[[], Any]) -> None:
        """Accept on the server's side; the client may be gone already."""
        if self.node.alive and not self.lost:
            self.attach_protocol(make())

    def vanish(self) -> None:
        """End without notice, as when the process dies: the kernel resets the other end."""
        if not self.lost:
            self._put(_RST)
        self.closing = self.lost = True
        self.network.forget(self)

    def reset(self, why: str) -> None:
        """Break the connection between the two; both ends notice, each in its time."""
        for end in (self, self.peer):
            end.broken_by = end.broken_by or why
        self._drop_queue()
        self.peer._drop_queue()
        self._put(_RST)
        self.peer._put(_RST)

    # internals

    @property
    def _unsent_bytes(self) -> int:
        return self._under_way_bytes - WINDOW_BYTES

    def _put(self, item: bytes | str) -> None:
        self._under_way_bytes += len(item) if type(item) is bytes else 0
        self._last_ready_s = max(self._last_ready_s, self.network.arrival_s(self.node, self.peer.node))
        self._queue.append((self._last_ready_s, item))
        self._wake()

    def _drop_queue(self) -> None:
        self._queue.clear()
        self._under_way_bytes = 0

    def _wake(self) -> None:
        if self._queue and not self._is_pumping:
            self._pump_at(self._queue[0][0])

    def _pump_at(self, when_s: float) -> None:
        self._is_pumping = True
        self.network.loop.call_at(when_s, self._pump, context=self.peer.context)

    def _pump(self) -> None:
        """Deliver what has arrived; runs as the receiver."""
        self._is_pumping = False
        peer, network = self.peer, self.network
        while self._queue:
            ready_s, item = self._queue[0]
            blocked_until_s = network.blocked_until_s(self.node, peer.node)
            if max(ready_s, blocked_until_s) > network.loop.time():
                self._pump_at(max(ready_s, blocked_until_s))
                return
            if type(item) is bytes and peer.is_reading_paused and not peer.closing:
                return
            self._queue.popleft()
            self._under_way_bytes -= len(item) if type(item) is bytes else 0
            peer._deliver(item)
            self._room_again()

    def _deliver(self, item: bytes | str) -> None:
        if self.lost:
            if type(item) is bytes:
                self.peer._lose_soon()
        elif item is _RST:
            self._lose(ConnectionResetError(104, "Connection reset by peer"))
        elif self.closing:
            return
        elif item is _FIN:
            if not self.protocol.eof_received():
                self.close()
        else:
            self._received(item)

    def _received(self, item: Any) -> None:
        try:
            self.protocol.data_received(item)
        except Exception as error:
            self.network.on_raised(self, error)
            self.abort()

    def _lose_soon(self) -> None:
        """Lose the connection after a write to an end that is gone: a reset returns."""
        if not self.lost:
            when_s = self.network.arrival_s(self.peer.node, self.node)
            lose = self._lose
            self.network.loop.call_at(
                when_s, lambda: lose(ConnectionResetError(104, "Connection reset by peer")), context=self.context
            )

    def _room_again(self) -> None:
        loop = self.network.loop
        if self._is_write_paused and self._unsent_bytes <= self._low_bytes and not self.lost:
            self._is_write_paused = False
            loop.call_soon(self.protocol.resume_writing, context=self.context)
        self._end_if_sent()

    def _end_if_sent(self) -> None:
        if self.closing and not self.lost and self._unsent_bytes <= 0:
            self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if self.lost:
            return
        self.closing = self.lost = True
        self.network.forget(self)
        if self.node.alive and self.protocol is not None:
            self.network.loop.call_soon(self.protocol.connection_lost, error, context=self.context)


class Network:
    def __init__(self, loop: VirtualLoop, seed: str) -> None:
        self.loop = loop
        loop.network = self
        self.rng = Random(seed + "/network")
        self.ragged_ratio = self.rng.choice((0.0, 0.02, 0.2))  # share of writes that arrive in pieces
        self.base_s = self.rng.choice((0.0002, 0.001, 0.005))
        self.jitter_s = self.rng.choice((0.0001, 0.001, 0.01))
        self.ends: dict[PipeTransport, None] = {}
        self._listeners: dict[Address, tuple[Node, Callable[[], Any]]] = {}
        self._blocked_until_s: dict[tuple[str, str], float] = {}
        self._contexts: dict[Node, Context] = {}
        self._numbers = 0
        self.on_write: Callable[[PipeTransport, bytes], None] = lambda end, data: None
        self.on_raised: Callable[[PipeTransport, Exception], None] = lambda end, error: None

    # nodes

    def context_of(self, node: Node) -> Context:
        """Return the context of the node: whatever runs in it, and what that starts, belongs to the node."""
        found = self._contexts.get(node)
        if found is None:
            found = self._contexts[node] = copy_context()
            found.run(NODE.set, node)
        return found

    def listen(self, node: Node, address: Address, factory: Callable[[], Any]) -> None:
        self._listeners[address] = (node, factory)

    def stop_listening(self, node: Node) -> None:
        self._listeners = {at: found for at, found in self._listeners.items() if found[0] is not node}

    def kill(self, node: Node) -> None:
        """Kill the process instantly."""
        node.alive = False
        self.stop_listening(node)
        for end in [end for end in self.ends if end.node is node]:
            end.vanish()

    # connections

    async def connect(self, node: Node, factory: Callable[[], Any], host: str, port: int) -> tuple[PipeTransport, Any]:
        address = (host, port)
        await self.travel(node, self._name_at(address))
        found = self._listeners.get(address)
        if found is None:
            await self.travel_back(self._name_at(address), node)
            raise ConnectionRefusedError(111, f"Connect call failed {address}")
        server_node, make = found
        self._numbers += 1
        own = ("10.0.0.1", 10_000 + self._numbers)
        client = PipeTransport(self, node, self._numbers, (own, address))
        server = PipeTransport(self, server_node, self._numbers, (address, own))
        client.peer, server.peer = server, client
        self.ends[client] = self.ends[server] = None
        self.loop.call_soon(server.accept, make, context=server.context)
        try:
            await self.travel_back(server_node.name, node)
        except asyncio.CancelledError:
            client.vanish()  # the socket is closed, whatever the handshake did
            raise
        if client.lost or not server_node.alive:
            client.vanish()
            raise ConnectionResetError(104, "Connection reset by peer")
        protocol = factory()
        client.attach_protocol(protocol)
        return client, protocol

    def forget(self, end: PipeTransport) -> None:
        self.ends.pop(end, None)

    # paths

    def block(self, source: str, target: str, until_s: float) -> None:
        """Block this direction until then; the other direction stays open."""
        self._blocked_until_s[source, target] = max(until_s, self._blocked_until_s.get((source, target), 0.0))

    def blocked_until_s(self, source: Node, target: Node) -> float:
        return self._blocked_until_s.get((source.name, target.name), 0.0)

    def is_blocked(self, source: str, target: str) -> bool:
        return self._blocked_until_s.get((source, target), 0.0) > self.loop.time()

    def heal(self) -> None:
        self._blocked_until_s.clear()

    def latency_s(self) -> float:
        return self.base_s + self.rng.expovariate(1.0 / self.jitter_s)

    def arrival_s(self, source: Node, target: Node) -> float:
        return self.loop.time() + self.latency_s()

    def pieces(self, data: bytes) -> list[bytes]:
        if self.ragged_ratio and len(data) > 1 and self.rng.random() < self.ragged_ratio:
            cuts = sorted({self.rng.randrange(1, len(data)) for _ in range(self.rng.randint(1, 3))})
            return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        return [data]

    async def travel(self, node: Node, target: str) -> None:
        await self._pass(node.name, target)

    async def travel_back(self, source: str, node: Node) -> None:
        await self._pass(source, node.name)

    async def _pass(self, source: str, target: str) -> None:
        await asyncio.sleep(self.latency_s())
        while (until_s := self._blocked_until_s.get((source, target), 0.0)) > self.loop.time():
            await asyncio.sleep(until_s - self.loop.time() + self.latency_s())

    def _name_at(self, address: Address) -> str:
        """Return the node at the address: hosts are named by their nodes."""
        return address[0]
