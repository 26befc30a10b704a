"""The simulated engine's KV events: vLLM's form, at vLLM's moments, and enough of them to rebuild its cache."""

from array import array
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.prefix.block_names import chain, scope_seed
from functions.engines.sim.kv_events import KvEventsConfig, as_events
from functions.engines.sim.settings import read_settings
from functions.replica.kv_events.engine_blocks import EngineBlocks
from functions.replica.kv_events.source import decode
from tests.engines.virtual import VirtualEngine, make_limits

FLAG = '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","topic":"kv"}'


def telling_engine(**limits: Any) -> VirtualEngine:
    engine = VirtualEngine(make_limits(**limits))
    engine.core.scheduler.blocks.events = []
    return engine


def batch_of(engine: VirtualEngine) -> bytes:
    changes = engine.core.scheduler.blocks.pop_events()
    return msgspec.msgpack.encode([1.0, as_events(changes, engine.limits.block_size_tokens), 0])


def test_full_block_is_published_with_adapter_salt_and_parent() -> None:
    engine = telling_engine()
    engine.submit(range(10), reply=1, salt="s3cret", adapter=1)
    engine.run()
    first, second = msgspec.msgpack.decode(batch_of(engine))[1]
    assert first["type"] == second["type"] == "BlockStored"
    assert (first["token_ids"], second["token_ids"]) == ([0, 1, 2, 3], [4, 5, 6, 7])
    assert first["parent_block_hash"] is None and second["parent_block_hash"] == first["block_hashes"][0]
    assert (first["extra_keys"], second["extra_keys"]) == ([["a1", "s3cret"]], [["a1"]])
    assert first["lora_name"] == "a1" and first["block_size"] == 4 and first["medium"] == "GPU"


def test_cached_block_is_not_published_again() -> None:
    engine = telling_engine()
    engine.submit(range(20))
    engine.run()
    batch_of(engine)
    engine.submit(range(20))
    engine.run()
    stored = [event for event in msgspec.msgpack.decode(batch_of(engine))[1] if event["type"] == "BlockStored"]
    assert stored == [], "the prompt was found, and the reply is what it was"


Prompts = st.lists(
    st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=40), st.sampled_from([None, "x"])), max_size=12
)


@given(Prompts, st.integers(16, 24))
def test_events_match_the_cache_content(prompts: Iterable[tuple[list[int], str | None]], blocks: int) -> None:
    """Read with the agent's own decoder, including evictions."""
    engine, known = telling_engine(num_kv_blocks=blocks), EngineBlocks(10_000)
    held: set[int] = set()
    for prompt, salt in prompts:
        engine.submit(prompt, reply=3, salt=salt)
        engine.run()
        for event in decode(batch_of(engine)).events:
            assert known.apply_event(event)
        changes, in_host = known.pop_changes()
        assert not in_host
        held = (held | changes.added) - changes.removed
    pool = engine.core.scheduler.blocks
    assert held == set(known.names)
    assert len(known.names) == len(pool._block_of)
    assert known.left_out_total == 0
    if held and prompts:
        prompt, salt = list(prompts)[-1]
        whole = chain(scope_seed("", salt or ""), array("q", prompt), 4)
        assert set(whole[: (len(prompt) - 1) // 4]) <= held, "what was computed last is there still"


def test_the_flag_is_vllms() -> None:
    assert not read_settings(["--model", "m"]).kv_events.is_on
    config = read_settings(["--model", "m", "--kv-events-config", FLAG]).kv_events
    assert config.is_on and (config.endpoint, config.topic) == ("tcp://*:5557", "kv")
    assert not KvEventsConfig(enable_kv_cache_events=True, publisher="null").is_on


@pytest.mark.parametrize("text", ["{", "[]", '{"endpoint": 7}', '{"unknown": 1}'])
def test_a_config_that_vllm_would_not_take_is_refused(text: str) -> None:
    with pytest.raises(SystemExit):
        read_settings(["--model", "m", "--kv-events-config", text])
