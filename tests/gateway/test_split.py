"""Prefill and decode split at a gateway: both paths, a failure at each step, and the charges."""

import gc
import random
from collections import Counter
from typing import Any

import msgspec
import orjson
import pytest

from functions.api.ids import PoolName
from functions.api.snapshot import PoolEntry
from functions.gateway.intake.routes import CHAT, COMPLETIONS
from functions.gateway.limits import Limits
from functions.gateway.request.request import Admitted
from tests.gateway import sse
from tests.gateway.engine_rig import Engine, Play
from tests.gateway.rig import BOT_V1, BOT_V2, POOL, RIVAL, heartbeat, in_rollout, routing, snapshot
from tests.gateway.test_exchange_rollouts import subject_in

PREFILL = PoolName("smollm2-prefill")
ENTRY = PoolEntry(
    PREFILL,
    context_window_tokens=32_768,
    model=POOL,
    role="prefill",
    kv_bytes_per_token=46_080,
    kv_transfer_bytes_per_s=12.5e9,
    accelerators_per_replica=2,
    price_per_accelerator_hour=7.2,
)
LONG = "word " * 4000
PARAMS = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2, 3]],
    "remote_engine_id": "e",
    "remote_request_id": "q",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
}


def sections(**changes: Any) -> dict[str, Any]:
    pools = (PoolEntry(POOL, context_window_tokens=32_768), ENTRY)
    policy = {"prefill_min_prompt_tokens": 1000, "prefill_give_up_after_s": 5.0} | changes
    return {"pools": pools, "routing": (routing(**policy),)}


def playing(*replicas: str, prefill: tuple[str, ...] = ("p0",), **changes: Any) -> Play:
    play = Play(limits=Limits(quarantine_after_replicas=0), **sections(**changes))
    for name in replicas or ("r0",):
        play.gateway.receive_heartbeat(heartbeat(name, running=30))
    for name in prefill:
        play.gateway.receive_heartbeat(heartbeat(name, pool=PREFILL))
    return play


def ask(play: Play, text: str = LONG, **fields: Any) -> None:
    play.ask(messages=[{"role": "user", "content": text}], **fields)


def prefilled(params: dict[str, Any] | None = PARAMS, cached: int = 0) -> bytes:
    usage = {"prompt_tokens": 4000, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": cached}}
    return sse.compact({"object": "chat.completion", "choices": [], "usage": usage, "kv_transfer_params": params})


def decodes(engine: Engine) -> None:
    engine.begins_stream()
    engine.streams(sse.token(BOT_V1, "Hi"), sse.usage(BOT_V1, 4000, 7), sse.DONE)
    engine.ends_stream()


def path(play: Play) -> str:
    return play.client.headers[b"x-shoal-prefill"].decode()


def charged(play: Play) -> tuple[int, int]:
    quotas = play.gateway.services.quotas
    both = (quotas.settled_by_engine, quotas.settled_by_count)
    return sum(each.input_tokens for each in both), sum(each.output_tokens for each in both)


async def test_prefill_replica_computes_the_prompt_and_decode_replica_answers() -> None:
    play = playing()
    ask(play, max_completion_tokens=50, temperature=0, stream_options={"include_usage": True})
    first = await play.connects()
    asked = first.requests[0]
    assert first.replica_id == "p0"
    assert asked["max_tokens"] == 1 and asked["stream"] is False and "max_completion_tokens" not in asked
    assert asked["kv_transfer_params"]["do_remote_decode"] is True and asked["temperature"] == 0
    first.answers(200, prefilled())
    second = await play.connects()
    assert second.replica_id == "r0"
    assert second.requests[0]["kv_transfer_params"] == PARAMS
    assert second.requests[0]["max_completion_tokens"] == 50 and second.requests[0]["stream"] is True
    decodes(second)
    assert play.client.ended and path(play) == "path=split;replica=p0"
    assert charged(play) == (4000, 7) and play.quiet()


async def test_whole_answer_uses_the_split_too() -> None:
    play = playing()
    play.ask("smollm2-135m", stream=False, route=COMPLETIONS, prompt=LONG)
    first = await play.connects()
    assert first.requests[0]["model"] == PREFILL  # the prefill pool's engines have their own name for the base
    first.answers(200, prefilled())
    second = await play.connects()
    body = {"object": "text_completion", "model": POOL, "choices": [{"text": "x", "finish_reason": "stop"}]}
    second.answers(200, sse.compact(body | {"usage": {"prompt_tokens": 4000, "completion_tokens": 1}}))
    assert orjson.loads(play.client.body)["model"] == "smollm2-135m" and path(play).startswith("path=split")
    assert play.quiet()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"text": "short"}, "short"),
        ({"n": 2}, "unsuited"),
        ({"prompt_logprobs": 1}, "unsuited"),
    ],
)
async def test_requests_that_are_not_split(fields: dict[str, Any], why: str) -> None:
    play = playing()
    ask(play, **fields)
    engine = await play.connects()
    assert engine.replica_id == "r0" and "kv_transfer_params" not in engine.requests[0]
    decodes(engine)
    assert path(play) == f"path=one;why={why}"


async def test_no_split_without_prefill_replica_or_if_slower() -> None:
    play = playing(prefill=())
    ask(play)
    decodes(await play.connects())
    assert path(play) == "path=one;why=no_prefill_replica"
    idle = Play(limits=Limits(quarantine_after_replicas=0), **sections())
    idle.gateway.receive_heartbeat(heartbeat("r0"))
    idle.gateway.receive_heartbeat(heartbeat("p0", pool=PREFILL, running=50, waiting=50))
    ask(idle)
    decodes(await idle.connects())
    assert path(idle) == "path=one;why=slower"


async def test_no_split_if_the_prefill_pool_lacks_the_adapter() -> None:
    """The prefill replica would compute the prompt with other weights than the decoding replica."""
    play = playing(prefill=())
    play.gateway.receive_heartbeat(heartbeat("p0", pool=PREFILL, adapters=()))
    ask(play)
    assert (await play.connects()).replica_id == "r0"


async def test_kv_transfer_params_of_clients_are_refused() -> None:
    play = playing()
    with pytest.raises(AssertionError, match="kv_transfer_params"):
        ask(play, kv_transfer_params=PARAMS)


async def test_pool_without_a_prefill_pool_sends_no_header() -> None:
    play = Play("r0")
    play.ask()
    decodes(await play.connects())
    assert b"x-shoal-prefill" not in play.client.headers


async def test_prefill_pool_is_not_callable() -> None:
    play = playing()
    catalogue = play.gateway.services.state.catalogue
    assert catalogue is not None
    assert catalogue.usable(play.gateway.services.state.catalogue.tenants["acme"].name, PREFILL).in_order == ()  # type: ignore[index]
    assert PREFILL not in catalogue.takeover_pools(POOL)


# a failure at each step

STEPS = (
    "none", "prefill_connect", "prefill_dies", "prefill_500", "prefill_429", "prefill_400", "prefill_slow",
    "prefill_lost", "no_params", "bad_params", "transfer_failed", "transfer_slow", "decode_dies", "decode_connect",
    "decode_lost",
)  # fmt: skip
WHY = {
    "none": "pays",
    "prefill_connect": "prefill_refused",
    "prefill_dies": "prefill_failed",
    "prefill_500": "prefill_failed",
    "prefill_429": "prefill_refused",
    "prefill_400": "prefill_refused",
    "prefill_slow": "prefill_slow",
    "prefill_lost": "prefill_failed",
    "no_params": "no_params",
    "bad_params": "no_params",
    "transfer_failed": "transfer_failed",
    "transfer_slow": "transfer_slow",
    "decode_dies": "decode_lost",
    "decode_connect": "decode_lost",
    "decode_lost": "decode_lost",
}


async def fails_at(play: Play, step: str, number: int) -> Engine | None:
    """Run one request up to the engine that answers; return None if it has still to be connected to."""
    if step == "prefill_connect":
        await play.refuses_connection()
        return None
    first = await play.connects()
    assert first.replica_id.startswith("p")
    if step == "prefill_dies":
        first.dies()
    elif step.startswith("prefill_") and step[8:].isdigit():
        first.refuses(int(step[8:]))
    elif step == "prefill_slow":
        play.after(5.1)
        assert first.dropped
    elif step == "prefill_lost":
        beat = heartbeat(first.replica_id, pool=PREFILL, sequence=number, phase="dead")
        play.gateway.receive_heartbeat(beat)
        assert first.dropped
    elif step == "no_params":
        first.answers(200, prefilled(None))
    elif step == "bad_params":
        first.answers(200, prefilled({"do_remote_prefill": False}))
    else:
        first.answers(200, prefilled())
        return await decoding_fails_at(play, step, number)
    return None


async def decoding_fails_at(play: Play, step: str, number: int) -> Engine | None:
    if step == "decode_connect":
        await play.refuses_connection()
        return None
    second = await play.connects()
    assert second.requests[0]["kv_transfer_params"] == PARAMS
    if step == "none":
        return second
    if step == "transfer_failed":
        second.refuses(500)
    elif step == "transfer_slow":
        second.begins_stream()
        play.after(5.1)
    elif step == "decode_dies":
        second.dies()
    else:
        play.gateway.receive_heartbeat(heartbeat(second.replica_id, sequence=number, phase="dead"))
    return None


async def one_request(number: int, step: str, seen: Counter[str]) -> None:
    play = playing("r0", "r1", prefill=("p0", "p1"))
    ask(play, text=f"{number} {LONG}")
    engine = await fails_at(play, step, number + 2)
    if engine is None:
        await play.settle()
        engine = await play.connects() if play.dials else play.engine  # the connection of a rejection is reused
        assert engine.replica_id.startswith("r") and "kv_transfer_params" not in engine.requests[-1], step
    decodes(engine)
    assert play.client.status == 200 and play.client.ended and play.client.body.endswith(sse.DONE), step
    assert charged(play) == (4000, 7), step  # once, whatever failed before
    assert play.quiet(), step
    rows = play.gateway.services.usage.pop_rows()
    by_pool = {row.pool: row for row in rows}
    assert sum(row.requests for row in rows) == 1
    assert (by_pool[PREFILL].accelerator_seconds > 0.0 if PREFILL in by_pool else False) == (step == "none"), step
    if step == "none":
        assert by_pool[PREFILL].cost == pytest.approx(by_pool[PREFILL].accelerator_seconds * 7.2 / 3600)
        assert path(play).startswith("path=split")
        seen["split"] += 1
    else:
        assert path(play) == f"path=one;why={WHY[step]}"
    registry = play.gateway.services.metrics.registry
    assert registry.get_sample_value("shoal_prefill_paths_total", {"pool": POOL, "why": WHY[step]}) == 1.0, step
    seen[WHY[step]] += 1
    await play.close()


async def _thousand(requests: int) -> Counter[str]:
    draw, seen = random.Random(15), Counter[str]()
    for number in range(requests):
        step = STEPS[number] if number < len(STEPS) else draw.choice((*STEPS, "none", "none", "none"))
        await one_request(number, step, seen)
    return seen


async def test_no_request_is_lost_whatever_step_fails() -> None:
    seen = await _thousand(2 * len(STEPS))
    assert set(WHY.values()) <= set(seen)


@pytest.mark.soak
async def test_thousand_requests_survive_a_failure_at_each_step() -> None:
    seen = await _thousand(1000)
    assert sum(count for why, count in seen.items() if why != "split") == 1000
    assert all(seen[why] >= 20 for why in set(WHY.values())), seen
    print(dict(seen))


# charges of a client that leaves


async def test_disconnect_during_prefill_is_charged() -> None:
    """Otherwise a client could leave early and use prefill replicas for free."""
    play = playing()
    ask(play)
    first = await play.connects()
    play.rig.clock.forward(0.5)
    assert play.exchange is not None
    play.exchange.client_left()
    assert first.dropped and play.quiet()
    rows = {row.pool: row for row in play.gateway.services.usage.pop_rows()}
    assert rows[PREFILL].accelerator_seconds > 0.0
    assert charged(play)[0] > 1000


async def test_deadline_applies_during_prefill() -> None:
    play = playing(prefill_give_up_after_s=60.0)
    ask(play, header_x_shoal_deadline_ms="2000")
    first = await play.connects()
    play.after(2.1)
    assert first.dropped and play.client.status == 504 and play.quiet()


async def test_trace_has_the_path_and_its_figures() -> None:
    play = playing()
    rows: list[Any] = []
    services = play.gateway.services
    services.traces.offer = rows.append  # type: ignore[method-assign]
    ask(play)
    (await play.connects()).answers(200, prefilled())
    decodes(await play.connects())
    noted = rows[0].row().route_score["prefill"]
    assert noted["path"] == "split" and noted["why"] == "pays" and noted["replica"] == "p0"
    assert noted["split_ms"] + 20.0 <= noted["one_ms"] and noted["transfer_ms"] > 0.0
    assert msgspec.json.encode(noted)


async def test_no_split_across_different_weights() -> None:
    """During the prefill of a prompt, a rolling base may leave only replicas of another version."""
    old, new = "sha256:" + "a" * 64, "sha256:" + "b" * 64
    play = Play(limits=Limits(quarantine_after_replicas=0), **sections())
    play.gateway.receive_heartbeat(heartbeat("r0", running=30, weights_digest=old))
    play.gateway.receive_heartbeat(heartbeat("p0", pool=PREFILL, weights_digest=old))
    ask(play, route=CHAT)
    first = await play.connects()
    play.gateway.receive_heartbeat(heartbeat("r1", running=30, weights_digest=new))
    play.gateway.receive_heartbeat(heartbeat("r0", sequence=2, phase="draining", weights_digest=old))
    first.answers(200, prefilled())
    second = await play.connects()
    assert second.replica_id == "r1" and "kv_transfer_params" not in second.requests[0]
    decodes(second)
    assert path(play) == "path=one;why=other_weights"
    assert snapshot().pools  # the rig's own has no prefill pool


async def test_blocks_of_the_candidate_are_not_decoded_by_control() -> None:
    """Both have the same base, so nothing would fail and the wrong answer would go unnoticed."""
    play = Play(limits=Limits(quarantine_after_replicas=0), **in_rollout(**sections()))
    play.gateway.receive_heartbeat(heartbeat("r0", running=30))
    play.gateway.receive_heartbeat(heartbeat("p0", pool=PREFILL))
    ask(play, header_x_request_id=subject_in("candidate"))
    first = await play.connects()
    assert first.requests[0]["model"] == BOT_V2
    play.gateway.receive_heartbeat(heartbeat("r0", sequence=2, running=30, adapters=(BOT_V1, RIVAL)))
    first.answers(200, prefilled())
    second = await play.connects()
    assert second.requests[0]["model"] == BOT_V1 and "kv_transfer_params" not in second.requests[0]
    decodes(second)
    assert path(play) == "path=one;why=other_model" and play.quiet()


# memory for copies of a body

HUGE = "word " * 16_000  # 80 KB


async def test_body_copies_are_counted_and_released_after_their_last_use() -> None:
    play = playing()
    held, before = play.gateway.services.held, bodies_in_memory()
    ask(play, text=HUGE)
    first = await play.connects()
    assert held.held_bytes > len(HUGE), "the prefill's"
    first.answers(200, prefilled())
    second = await play.connects()
    assert held.held_bytes > len(HUGE), "the decoding replica's"
    second.begins_stream()
    second.streams(sse.token(BOT_V1, "Hi"))
    second.transport.written.clear(), first.transport.written.clear()
    assert held.held_bytes == 0
    assert bodies_in_memory() - before == 0, "a stream that has begun holds no copy"


async def test_no_split_without_room_for_a_body_copy() -> None:
    play = Play(limits=Limits(quarantine_after_replicas=0, uploads_bytes=100_000), **sections())
    play.gateway.receive_heartbeat(heartbeat("r0", running=30))
    play.gateway.receive_heartbeat(heartbeat("p0", pool=PREFILL))
    ask(play, text=HUGE)
    decodes(await play.connects())
    assert path(play) == "path=one;why=no_room" and play.quiet()
    assert play.gateway.services.held.held_bytes == 0


def bodies_in_memory() -> int:
    """Return the number of admitted requests that still have a body of that size."""
    return sum(isinstance(each, Admitted) and len(each.upstream_body) > len(HUGE) for each in gc.get_objects())
