"""KV events of the simulated engine, as vLLM 0.32 publishes them (vllm/distributed/kv_events.py).

    PUB     [topic, sequence number (8 bytes, big-endian), msgpack of [ts, [event, ...], 0]]
    ROUTER  [b"", first sequence number]  ->  the stored batches from there on, then number -1 with an empty payload

Blocks in host memory (`host_tier`) are reported by hash alone, as in vLLM's OffloadingConnector: block size 0 and no
tokens. Each step that stored or evicted something publishes one batch. Both sockets belong to one thread, which reads
batches from a queue, so a step never waits for the network. `--kv-events-config` and the binding side are vLLM's.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import zmq

from functions.engines.sim.blocks import BlockEvent, Cleared, Copied, Dropped, Evicted, Remembered

_END = (-1).to_bytes(8, "big", signed=True)
_QUEUE_WAIT_S = 0.05
_JOIN_S = 5.0
_LOW_64_BITS = -8


class KvEventsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    enable_kv_cache_events: bool = False
    publisher: Literal["null", "zmq"] | None = None
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""

    @property
    def is_on(self) -> bool:
        return self.enable_kv_cache_events and self.publisher != "null"


def as_events(changes: Sequence[BlockEvent], block_size: int) -> list[dict[str, Any]]:
    """Return the changes as the maps that vLLM publishes, in order; a hash is reported by its low 64 bits."""
    return [_as_event(change, block_size) for change in changes]


def _as_event(change: BlockEvent, block_size: int) -> dict[str, Any]:
    match change:
        case Cleared():
            return {"type": "AllBlocksCleared"}
        case Evicted(name):
            return {"type": "BlockRemoved", "block_hashes": [_number(name)], "medium": "GPU", "group_idx": 0}
        case Remembered():
            return _stored(change, block_size)
        case Copied(name):
            return {**_COPIED, "block_hashes": [_number(name)]}
        case Dropped(names):
            hashes = [_number(name) for name in names]
            return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "CPU", "group_idx": 0}


_COPIED: Mapping[str, Any] = MappingProxyType(
    {
        "type": "BlockStored",
        "block_hashes": [],
        "parent_block_hash": None,
        "token_ids": [],
        "block_size": 0,
        "lora_id": None,
        "medium": "CPU",
        "lora_name": None,
        "group_idx": 0,
    }
)


def _stored(change: Remembered, block_size: int) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": [_number(change.name)],
        "parent_block_hash": _number(change.parent) if change.parent is not None else None,
        "token_ids": list(change.tokens),
        "block_size": block_size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": change.scope.adapter_name,
        "extra_keys": [_extra(change.scope.adapter_name, change.scope.salt if change.parent is None else None)],
        "group_idx": 0,
    }


def _number(name: bytes) -> int:
    return int.from_bytes(name[_LOW_64_BITS:], "big")


def _extra(*keys: str | None) -> list[str] | None:
    return [key for key in keys if key is not None] or None


class KvEventPublisher:
    """Publisher thread. One other thread may call `publish`."""

    def __init__(self, config: KvEventsConfig, wall_clock: Callable[[], float]) -> None:
        self._config = config
        self._wall_clock = wall_clock
        self._queue: SimpleQueue[list[dict[str, Any]] | None] = SimpleQueue()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)

    def start(self) -> None:
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.set_hwm(self._config.hwm)
        endpoint = self._config.endpoint
        binds = "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))
        (self._pub.bind if binds else self._pub.connect)(endpoint)
        self._router = self._context.socket(zmq.ROUTER)
        if self._config.replay_endpoint is not None:
            self._router.bind(self._config.replay_endpoint)
        self._thread.start()

    def publish(self, changes: Sequence[BlockEvent], block_size: int) -> None:
        self._queue.put(as_events(changes, block_size))

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        numbers = count()
        topic = self._config.topic.encode()
        while True:
            if self._router.poll(0):
                self._replay(self._router.recv_multipart(), topic)
            try:
                events = self._queue.get(timeout=_QUEUE_WAIT_S)
            except Empty:
                continue
            if events is None:
                break
            seq, payload = next(numbers), msgspec.msgpack.encode([self._wall_clock(), events, 0])
            self._pub.send_multipart((topic, seq.to_bytes(8, "big"), payload))
            self._kept.append((seq, payload))
        self._context.destroy(linger=0)

    def _replay(self, frames: list[bytes], topic: bytes) -> None:
        if len(frames) != 3:
            return
        asker, _, start = frames
        for seq, payload in self._kept:
            if seq >= int.from_bytes(start, "big"):
                self._router.send_multipart((asker, b"", topic, seq.to_bytes(8, "big"), payload))
        self._router.send_multipart((asker, b"", b"", _END, b""))
