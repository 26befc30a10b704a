"""The engine's KV events: batches received over ZeroMQ, missed ones from its replay buffer, decoded.

vLLM's rule decides which side binds. The engine binds an address with `*` or `::`, or of `ipc:`. It connects to any
other (such as tcp://127.0.0.1:5557 inside a pod), so the agent binds that. The engine always binds the replay
address.

A batch is `[ts, [event, ...], data-parallel rank]` in msgpack; an event is a map with a `type` (vLLM since June 2026)
or an array that begins with it (before). Other processes may reach the port and write to it, so sizes are bounded,
types are checked first, and a batch with one error is rejected as a whole. Unknown fields are ignored.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import zmq
import zmq.asyncio

MAX_BATCH_BYTES = 16 * 1024 * 1024  # a step of 8,192 prompt tokens is 100 KB
_MAX_EVENTS = 100_000
_STORED_FIELDS = (
    *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
    *("extra_keys", "group_idx"),
)
_REMOVED_FIELDS = ("block_hashes", "medium", "group_idx")

EngineHash = int | bytes
_BlockTokens = Annotated[int, msgspec.Meta(ge=0, le=65536)]  # 0: reported by hash alone, as for host memory


class EventsInvalid(Exception):
    """The bytes are not a batch of KV events; drop them and start the index anew."""


class BlocksStored(msgspec.Struct, frozen=True, gc=False):
    """Blocks that the engine has filled, each after the one before it, the first after `parent_block_hash`."""

    block_hashes: list[EngineHash]
    token_ids: list[int]
    block_size: _BlockTokens
    parent_block_hash: EngineHash | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None  # a block's adapter, images and salt, untagged
    group_idx: int | None = None


class BlocksRemoved(msgspec.Struct, frozen=True, gc=False):
    block_hashes: list[EngineHash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True):
    """The whole cache was cleared."""


Event = BlocksStored | BlocksRemoved | AllBlocksCleared
_KINDS: dict[str, tuple[type[Event], tuple[str, ...]]] = {
    "BlockStored": (BlocksStored, _STORED_FIELDS),
    "BlockRemoved": (BlocksRemoved, _REMOVED_FIELDS),
    "AllBlocksCleared": (AllBlocksCleared, ()),
}


class Batch(msgspec.Struct, frozen=True):
    ts_s: float  # the engine's wall clock
    events: tuple[Event, ...]


def decode(payload: bytes) -> Batch:
    """Decode a batch of KV events, without those of unknown kinds. Raise EventsInvalid if it is too large or
    malformed."""
    if len(payload) > MAX_BATCH_BYTES:
        raise EventsInvalid(f"{len(payload)} bytes in one batch")
    try:
        raw = msgspec.msgpack.decode(payload, type=list[Any])
        ts_s, events = float(raw[0]), raw[1]
        if not isinstance(events, list) or len(events) > _MAX_EVENTS:
            raise EventsInvalid(f"no list of events, or more than {_MAX_EVENTS}")
        return Batch(ts_s, tuple(event for item in events if (event := _event(item)) is not None))
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise EventsInvalid(f"not a batch of KV events: {error}") from error


def _event(item: Any) -> Event | None:
    """Return the event that the item describes, or None for a kind that only a newer engine has."""
    if isinstance(item, list):
        name, values = item[0], item[1:]
    else:
        name, values = item["type"], None
    kind = _KINDS.get(name)
    if kind is None:
        return None
    made, fields = kind
    content = item if values is None else dict(zip(fields, values, strict=False))
    event = msgspec.convert(content, type=made)
    if isinstance(event, BlocksStored):
        _check(event)
    return event


def _check(event: BlocksStored) -> None:
    if event.extra_keys is not None and len(event.extra_keys) != len(event.block_hashes):
        raise EventsInvalid(f"{len(event.extra_keys)} extra keys for {len(event.block_hashes)} blocks")
    if event.token_ids and not event.block_size:
        raise EventsInvalid("tokens with a block size of 0")
    if not all(0 <= token < 2**63 for token in event.token_ids):
        raise EventsInvalid("a token id is out of range")


REPLAY_TIMEOUT_S = 5.0  # for the next batch: vLLM's publisher checks for requests ten times a second
_END = (2**64 - 1).to_bytes(8, "big")
_HIGH_WATER = 10_000  # batches waiting to be read
_MAX_REPLAYED = 1_000_000
_RECONNECT_MS, _RECONNECT_MAX_MS = 100, 2000


class EventsUnavailable(Exception):
    """The engine's events are unavailable now; try again later."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """A batch as received, with its number."""

    seq: int
    payload: bytes


def engine_binds(endpoint: str) -> bool:
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


class EventSource:
    """Events of one engine. Call `open` and `close` on the loop that reads."""

    def __init__(self, endpoint: str, replay_endpoint: str) -> None:
        self._endpoint, self._replay_endpoint = endpoint.replace("*", "127.0.0.1"), replay_endpoint
        self._binds = not engine_binds(endpoint)
        self._context = zmq.asyncio.Context()
        self._subscription: zmq.asyncio.Socket | None = None

    def open(self) -> None:
        """Subscribe, closing an earlier subscription. Raise EventsUnavailable if the address cannot be used."""
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
        """Return the next batch, or None if none arrived in time or the message has another shape. Raise
        EventsUnavailable if the source is not open."""
        socket = self._subscription
        if socket is None:
            raise EventsUnavailable("the event source is not open")
        if not await socket.poll(int(timeout_s * 1000)):
            return None
        return _numbered(await socket.recv_multipart())

    async def replay(self, start: int) -> AsyncGenerator[Numbered, None]:
        """Yield the stored batches from number `start` on, oldest first. Raise EventsUnavailable if the engine is
        silent or no replay address is set."""
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
        self._context.destroy(linger=0)  # including sockets of cancelled replays


def _numbered(frames: list[bytes]) -> Numbered | None:
    """Return the batch in the frames [topic, sequence number, payload], or None if they have another shape."""
    if len(frames) != 3 or len(frames[1]) != 8:
        return None
    return Numbered(int.from_bytes(frames[1], "big"), frames[2])
