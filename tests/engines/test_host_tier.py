"""Host memory of the simulated engine: blocks evicted from the accelerator are reloaded at the cost of a copy."""

import json
from array import array
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.prefix.block_names import chain, scope_seed
from functions.engines.metrics import parse_metrics
from functions.engines.sim.kv_events import as_events
from functions.engines.sim.limits import StepCosts
from functions.engines.sim.sequence import Sequence
from functions.engines.sim.settings import read_settings
from functions.replica.kv_events.engine_blocks import EngineBlocks
from functions.replica.kv_events.source import decode
from tests.contract.talk import chat
from tests.engines.servers import serving
from tests.engines.virtual import VirtualEngine, make_limits

COSTS = StepCosts(overhead_s=0.01, prefill_s_per_token=0.01, decode_s_per_seq=0.0)
RELOAD_S = 0.001  # a token: a tenth of computing it


def offloading(**limits: Any) -> VirtualEngine:
    """Sixteen blocks of four tokens on the accelerator: one sequence of 64."""
    given = {"num_kv_blocks": 16, "num_host_blocks": 100, "host_reload_s_per_token": RELOAD_S, "max_loras": 0}
    return VirtualEngine(make_limits(**(given | {"max_num_batched_tokens": 64} | limits)), COSTS)


def submit_prompt(engine: VirtualEngine, first: int, tokens: int = 40, **more: Any) -> tuple[Sequence, float]:
    """Submit a prompt of `tokens` distinct tokens; return its sequence and the seconds to its first token."""
    began_s = engine.now_s
    seq = engine.submit(range(first, first + tokens), reply=2, **more)
    engine.run()
    return seq, engine.tokens[seq.seq_id][0][0] - began_s


def test_a_prompt_that_left_the_accelerator_costs_its_reload() -> None:
    engine = offloading()
    _, cold_s = submit_prompt(engine, 0)
    submit_prompt(engine, 500, 60)  # evicts the first prompt
    seq, again_s = submit_prompt(engine, 0)
    assert (seq.cached_tokens, seq.host_tokens) == (36, 36), "all but the last block, which has the last token"
    assert cold_s == pytest.approx(0.41)
    assert 36 * RELOAD_S + 0.05 <= again_s < 36 * RELOAD_S + 0.07, "36 reloaded, 4 computed in a step of 10 ms"


def test_blocks_on_the_accelerator_are_not_reloaded() -> None:
    engine = offloading()
    submit_prompt(engine, 0)
    seq, _ = submit_prompt(engine, 0)
    assert (seq.cached_tokens, seq.host_tokens) == (36, 0)
    assert engine.core.scheduler.host.reloaded_blocks == 0


def test_others_go_on_while_blocks_are_on_their_way() -> None:
    """vLLM copies in parallel to its steps: a reload delays one request, not all."""
    engine = offloading(num_kv_blocks=40, host_reload_s_per_token=1.0)
    submit_prompt(engine, 0)
    for start in (500, 600, 700, 800):
        submit_prompt(engine, start, 60)
    runs = engine.submit(range(900, 904), reply=30)
    late = engine.submit(range(40), reply=1)
    engine.run()
    assert late.host_tokens > 0
    assert engine.tokens[runs.seq_id][-1][0] < engine.tokens[late.seq_id][0][0]


def test_host_memory_is_bounded_and_forgets_the_oldest() -> None:
    engine = offloading(num_host_blocks=20)
    for start in (0, 500, 600, 700):
        submit_prompt(engine, start)
    assert len(engine.core.scheduler.host) == 20
    seq, _ = submit_prompt(engine, 0)
    assert seq.cached_tokens == 0


def test_salts_and_adapters_keep_apart_in_host_memory_too() -> None:
    engine = offloading()
    submit_prompt(engine, 0, salt="acme")
    submit_prompt(engine, 500, 60)
    assert submit_prompt(engine, 0, salt="globex")[0].cached_tokens == 0
    assert submit_prompt(engine, 0, salt="acme")[0].host_tokens == 36


def test_sequences_that_wait_for_reloads_do_not_hold_each_other_up() -> None:
    """Each holds memory that the other needs, so one must release its part."""
    engine = offloading(host_reload_s_per_token=0.1)
    for start in (0, 500, 600):
        submit_prompt(engine, start, 40)
    both = [engine.submit([*range(start, start + 32), *range(7000, 7030)], reply=2) for start in (0, 500)]
    engine.run()
    assert all(len(engine.tokens[seq.seq_id]) == 2 for seq in both)
    assert engine.held_blocks == 0


def test_abort_during_a_reload_frees_its_blocks() -> None:
    engine = offloading(host_reload_s_per_token=1.0)
    submit_prompt(engine, 0)
    submit_prompt(engine, 500, 60)
    seq = engine.submit(range(40), reply=2)
    engine.step()
    assert engine.held_blocks > 0
    engine.core.abort(seq)
    assert engine.held_blocks == 0 and not engine.core.has_work


Prompts = st.lists(st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=40), st.booleans()), max_size=12)


@given(Prompts, st.integers(16, 24), st.integers(1, 30))
def test_events_match_blocks_on_accelerator_and_host(
    prompts: list[tuple[list[int], bool]], blocks: int, host_blocks: int
) -> None:
    """Read with the agent's own decoder: events of host memory must be neither missed nor invented."""
    engine, known = offloading(num_kv_blocks=blocks, num_host_blocks=host_blocks), EngineBlocks(10_000)
    scheduler = engine.core.scheduler
    scheduler.blocks.events = []
    for prompt, salted in prompts:
        engine.submit(prompt, reply=3, salt="x" if salted else None)
        engine.run()
        events = as_events(scheduler.blocks.pop_events(), 4)
        for event in decode(msgspec.msgpack.encode([1.0, events, 0])).events:
            assert known.apply_event(event)
    assert len(known.names) == len(scheduler.blocks._block_of)
    assert len(known.host_names) == sum(name not in scheduler.blocks._block_of for name in scheduler.host._kept)
    assert known.left_out_total == 0
    if prompts:
        prompt, salted = prompts[-1]
        whole = set(chain(scope_seed("", "x" if salted else ""), array("q", prompt), 4)[: (len(prompt) - 1) // 4])
        assert whole <= {*known.names, *known.host_names}


def test_the_flags_are_vllms() -> None:
    per_block = 131_072 * 16
    assert read_settings(["--model", "m"]).limits.num_host_blocks == 0
    limits = read_settings(["--model", "m", "--kv-offloading-size", "2", "--kv-offloading-backend=native"]).limits
    assert limits.num_host_blocks == 2 * 2**30 // per_block
    assert limits.host_reload_s_per_token == pytest.approx(131_072 / 25e9)
    config = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": 2**30}}
    settings = read_settings(["--model", "m", "--kv-transfer-config", json.dumps(config)])
    assert settings.limits.num_host_blocks == 2**30 // per_block
    assert not settings.kv_link.config.is_on, "it keeps blocks, and hands none over"


async def test_metrics_show_reload_time_and_tokens() -> None:
    """The agent derives the reload rate from the seconds of loading and the tokens found."""
    flags = ("--kv-offloading-size", "1", "--num-gpu-blocks-override", "16", "--max-model-len", "256")
    async with serving(*flags, "--sim-kv-host-gigabytes-per-s", "1") as (_, http, _port):
        for text in ("a" * 800, "b" * 900, "a" * 800):
            answer = await http.post("/v1/chat/completions", json=chat(text, model="sim", max_tokens=1))
            assert answer.status_code == 200, answer.text
        seen = parse_metrics((await http.get("/metrics")).text)
    assert seen.keeps_kv_in_host and seen.host_kv_bytes == 2**30
    assert seen.host_hit_tokens_total > 0
    assert seen.kv_load_s_total == pytest.approx(seen.host_hit_tokens_total * 131_072 / 1e9)
