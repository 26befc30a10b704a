"""Event batches of the engine: both forms are decoded, and anything else is refused whole with one exception type."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.replica.kv_events import source as decoding
from functions.replica.kv_events.source import AllBlocksCleared, BlocksRemoved, BlocksStored, EventsInvalid, decode

STORED: dict[str, Any] = {
    "type": "BlockStored",
    "block_hashes": [11, 12],
    "parent_block_hash": None,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": "acme/bot@sha256:0",
    "extra_keys": [["acme/bot@sha256:0", "salt"], ["acme/bot@sha256:0"]],
    "group_idx": 0,
    "kv_cache_spec_kind": "full_attention",
    "session_id": "s",
}


def batch(*events: Any, ts_s: Any = 1.5, rank: tuple[Any, ...] = (0,)) -> bytes:
    return msgspec.msgpack.encode([ts_s, list(events), *rank])


def as_array(event: dict[str, Any]) -> list[Any]:
    return list(event.values())


@pytest.mark.parametrize("rank", [(), (0,), (None,)])
def test_maps_and_arrays_say_the_same(rank: tuple[Any, ...]) -> None:
    old_form = as_array(
        {name: value for name, value in STORED.items() if name not in ("kv_cache_spec_kind", "session_id")}
    )
    by_map, by_array = decode(batch(STORED, rank=rank)), decode(batch(old_form, rank=rank))
    assert by_map == by_array
    (event,) = by_map.events
    assert isinstance(event, BlocksStored)
    assert (event.block_hashes, event.token_ids, event.lora_name) == ([11, 12], [1, 2, 3, 4], "acme/bot@sha256:0")


def test_removed_cleared_and_kinds_of_the_future() -> None:
    future = {"type": "BlockBlessed", "by": "whom"}
    events = decode(
        batch({"type": "BlockRemoved", "block_hashes": [b"\1\2"], "medium": "GPU"}, future, ["AllBlocksCleared"])
    )
    assert events.events == (BlocksRemoved([b"\1\2"], "GPU"), AllBlocksCleared())
    assert events.ts_s == 1.5


def test_blocks_of_host_memory_are_told_by_hash_alone() -> None:
    """vLLM's OffloadingConnector sends these by default. Refusing one would drop the index of all blocks."""
    bare = {"token_ids": [], "block_size": 0, "lora_name": None, "extra_keys": None, "medium": "CPU"}
    (event,) = decode(batch(STORED | bare)).events
    assert isinstance(event, BlocksStored)
    assert (event.block_hashes, event.medium, event.token_ids) == ([11, 12], "CPU", [])


@pytest.mark.parametrize(
    "wrong",
    [
        {"block_size": 0},
        {"block_size": 10**9},
        {"token_ids": [-1, 2, 3, 4]},
        {"token_ids": [2**63, 2, 3, 4]},
        {"token_ids": ["1", 2, 3, 4]},
        {"block_hashes": [None, 12]},
        {"extra_keys": [["a"]]},
        {"extra_keys": "a"},
        {"lora_name": 7},
    ],
)
def test_one_wrong_field_refuses_the_batch(wrong: dict[str, Any]) -> None:
    with pytest.raises(EventsInvalid):
        decode(batch(STORED, STORED | wrong))


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"\x91\x01", batch(None), batch([]), batch({}), batch([[]]), batch(ts_s="x")]
)
def test_what_is_no_batch_is_refused(payload: bytes) -> None:
    with pytest.raises(EventsInvalid):
        decode(payload)


def test_size_is_bounded() -> None:
    with pytest.raises(EventsInvalid, match="bytes in one batch"):
        decode(bytes(decoding.MAX_BATCH_BYTES + 1))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_batch_or_refused(payload: bytes) -> None:
    with contextlib.suppress(EventsInvalid):
        assert decode(payload).ts_s is not None


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(sorted(STORED)), JUNK, max_size=4), st.booleans())
def test_any_values_in_the_right_places_are_an_event_or_refused(wrong: dict[str, Any], array: bool) -> None:
    event = STORED | wrong
    try:
        found = decode(batch(as_array(event) if array else event)).events
    except EventsInvalid:
        return
    assert all(isinstance(event, (BlocksStored, BlocksRemoved, AllBlocksCleared)) for event in found)
