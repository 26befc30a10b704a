"""A batch of KV events from the engine's bytes: `[ts, [event, ...], data-parallel rank]` in msgpack.

An event is a map with a `type` (vLLM since June 2026) or an array that begins with it (before). Both are read. The port
is the engine's own, yet whoever reaches it could write to it: sizes are bounded and types checked before anything is
believed, and a batch that is wrong in one place is refused whole. Fields that are not named here are ignored.
"""

from typing import Annotated, Any

import msgspec

MAX_BATCH_BYTES = 16 * 1024 * 1024  # a step of 8,192 prompt tokens is 100 KB
_MAX_EVENTS = 100_000
_STORED_FIELDS = (
    *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
    *("extra_keys", "group_idx"),
)
_REMOVED_FIELDS = ("block_hashes", "medium", "group_idx")

EngineHash = int | bytes
_BlockTokens = Annotated[int, msgspec.Meta(ge=1, le=65536)]


class EventsInvalid(Exception):
    """Not a batch of KV events; drop it and start the index anew."""


class Stored(msgspec.Struct, frozen=True, gc=False):
    """Blocks that the engine has filled, each after the one before it, the first after `parent_block_hash`."""

    block_hashes: list[EngineHash]
    token_ids: list[int]
    block_size: _BlockTokens
    parent_block_hash: EngineHash | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None  # a block's adapter, images and salt, untagged
    group_idx: int | None = None


class Removed(msgspec.Struct, frozen=True, gc=False):
    block_hashes: list[EngineHash]
    medium: str | None = None
    group_idx: int | None = None


class Cleared(msgspec.Struct, frozen=True):
    """Everything is gone."""


Event = Stored | Removed | Cleared
_KINDS: dict[str, tuple[type[Event], tuple[str, ...]]] = {
    "BlockStored": (Stored, _STORED_FIELDS),
    "BlockRemoved": (Removed, _REMOVED_FIELDS),
    "AllBlocksCleared": (Cleared, ()),
}


class Batch(msgspec.Struct, frozen=True):
    ts_s: float  # the engine's wall clock
    events: tuple[Event, ...]


def decode(payload: bytes) -> Batch:
    """Raises EventsInvalid."""
    if len(payload) > MAX_BATCH_BYTES:
        raise EventsInvalid(f"{len(payload)} bytes in one batch")
    try:
        raw = msgspec.msgpack.decode(payload, type=list[Any])
        ts_s, events = float(raw[0]), raw[1]
        if not isinstance(events, list) or len(events) > _MAX_EVENTS:
            raise EventsInvalid("no list of events, or too long a one")
        return Batch(ts_s, tuple(event for item in events if (event := _event(item)) is not None))
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise EventsInvalid(f"not a batch of KV events: {error}") from error


def _event(item: Any) -> Event | None:
    """None for a kind that a newer engine may have."""
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
    if isinstance(event, Stored):
        _check(event)
    return event


def _check(event: Stored) -> None:
    if event.extra_keys is not None and len(event.extra_keys) != len(event.block_hashes):
        raise EventsInvalid(f"{len(event.extra_keys)} extra keys for {len(event.block_hashes)} blocks")
    if not all(0 <= token < 2**63 for token in event.token_ids):
        raise EventsInvalid("a token id that is none")
