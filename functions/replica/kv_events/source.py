"""ZeroMQ: the engine's batches as they come, and those that were missed, from its replay buffer.

Who binds is vLLM's rule: an address with `*` or `::`, or of `ipc:`, is bound by the engine; to any other (such as
tcp://127.0.0.1:5557 inside a pod) the engine connects, so the agent binds it. The replay address is always the
engine's."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass

import zmq
import zmq.asyncio

from functions.replica.kv_events.decode import MAX_BATCH_BYTES

REPLAY_TIMEOUT_S = 5.0  # for the next batch: vLLM's publisher looks for requests ten times a second
_END = (2**64 - 1).to_bytes(8, "big")
_HIGH_WATER = 10_000  # batches that wait to be read
_MAX_REPLAYED = 1_000_000
_RECONNECT_MS, _RECONNECT_MAX_MS = 100, 2000


class EventsUnavailable(Exception):
    """The engine's events cannot be had now; try again later."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """A batch as it came."""

    seq: int
    payload: bytes


def engine_binds(endpoint: str) -> bool:
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


class EventSource:
    """One engine's events. `open` and `close` on the loop that reads."""

    def __init__(self, endpoint: str, replay_endpoint: str) -> None:
        self._endpoint, self._replay_endpoint = endpoint.replace("*", "127.0.0.1"), replay_endpoint
        self._binds = not engine_binds(endpoint)
        self._context = zmq.asyncio.Context()
        self._subscription: zmq.asyncio.Socket | None = None

    def open(self) -> None:
        """Raises EventsUnavailable where the address cannot be had. What was open before is closed."""
        if self._subscription is not None:
            self._subscription.close()
        socket = self._context.socket(zmq.SUB)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, _HIGH_WATER)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_BATCH_BYTES)
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        try:
            (socket.bind if self._binds else socket.connect)(self._endpoint)
        except zmq.ZMQError as error:
            socket.close()
            raise EventsUnavailable(f"{self._endpoint}: {error}") from error
        self._subscription = socket

    async def next(self, timeout_s: float) -> Numbered | None:
        """The next batch; None where none came in time. What has another shape is passed over."""
        socket = self._subscription
        if socket is None:
            raise EventsUnavailable("the source is not open")
        if not await socket.poll(int(timeout_s * 1000)):
            return None
        return _numbered(await socket.recv_multipart())

    async def replay(self, start: int) -> AsyncGenerator[Numbered, None]:
        """The batches from `start` on that the engine still has, oldest first; EventsUnavailable where it is silent."""
        if not self._replay_endpoint:
            raise EventsUnavailable("no replay address is set")
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_BATCH_BYTES)
        try:
            socket.connect(self._replay_endpoint)
            await socket.send_multipart([b"", start.to_bytes(8, "big")])
            for _ in range(_MAX_REPLAYED):
                if not await socket.poll(int(REPLAY_TIMEOUT_S * 1000)):
                    raise EventsUnavailable("no answer from the replay address")
                frames = await socket.recv_multipart()
                if len(frames) == 4 and frames[2] == _END:
                    return
                batch = _numbered(frames[1:])
                if batch is not None:
                    yield batch
        except zmq.ZMQError as error:
            raise EventsUnavailable(f"{self._replay_endpoint}: {error}") from error
        finally:
            socket.close()

    def close(self) -> None:
        self._context.destroy(linger=0)  # with whatever socket a cancelled replay has left


def _numbered(frames: list[bytes]) -> Numbered | None:
    """[topic, sequence number, payload]."""
    if len(frames) != 3 or len(frames[1]) != 8:
        return None
    return Numbered(int.from_bytes(frames[1], "big"), frames[2])
