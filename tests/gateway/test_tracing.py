"""Trace rows: one for each admitted request, however it ended."""

import re
from typing import Any

import pytest

from functions.api.snapshot import QuotaLimitsPart
from functions.gateway.limits import Limits
from functions.telemetry.otlp import spans
from functions.telemetry.trace_row import TraceRow, encode
from tests.gateway import sse
from tests.gateway.engine_rig import Engine, Play
from tests.gateway.hello import END, HELLO, Playing
from tests.gateway.rig import BOT_V1, DIGEST_V1, NOW_UNIX_S, POOL, quota

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def row_of(p: Play) -> TraceRow:
    assert len(p.gateway.services.traces.recent) == 1
    return p.gateway.services.traces.recent[-1].row()


async def test_a_streams_row_from_its_arrival_to_its_end(play: Playing) -> None:
    p = play("r0")
    exchange = p.ask(session_id="s1", header_traceparent=PARENT, messages=[{"role": "user", "content": "a secret"}])
    engine = await p.connects()
    p.rig.clock.forward(0.5)
    engine.begins_stream()
    engine.streams(HELLO)
    for _ in range(3):
        p.rig.clock.forward(0.1)
        engine.streams(sse.token(BOT_V1, "x"))
    engine.streams(END)
    engine.ends_stream()
    row = row_of(p)
    assert (row.request_id, row.trace_id) == (exchange.admitted.request_id, PARENT.split("-")[1])
    assert (row.tenant_id, row.key_id, row.class_, row.stream) == ("acme", "acme-ci", "interactive", True)
    assert (row.model_id, row.version, row.artifact_digest, row.adapter_id) == ("acme/bot", "v1", DIGEST_V1, BOT_V1)
    assert (row.pool, row.base_model, row.replica_id, row.snapshot_epoch) == (POOL, POOL, "r0", 1)
    assert (row.prompt_tokens, row.completion_tokens) == (3, 2)
    assert (row.status, row.error, row.finish_reason, row.attempt_count) == (200, "", "stop", 1)
    assert row.prefill_ms == row.first_token_ms == pytest.approx(500.0)
    assert row.inter_token_p99_ms == pytest.approx(100.0, rel=0.13)
    assert row.total_ms == pytest.approx(800.0) and row.ts == pytest.approx(NOW_UNIX_S - 0.8)
    assert row.route_score["predicted_ms"] >= 0 and row.route_reason
    assert row.kv_token_seconds > 0
    assert b"secret" not in encode(row) and b'"s1"' not in encode(row) and len(row.session_id) >= 16


async def test_a_whole_answers_row(play: Playing) -> None:
    p = play("r0")
    p.ask(stream=False)
    (await p.connects()).answers(200, sse.whole(BOT_V1, finish_reason="length"))
    row = row_of(p)
    assert (row.finish_reason, row.stream, row.inter_token_p50_ms, row.session_id) == ("length", False, None, "")


async def test_a_retried_request_has_one_row_with_all_its_attempts(play: Playing) -> None:
    p = play("r0", "r1")
    p.ask(stream=False)
    failed = await p.refuses_connection()
    (await p.connects()).answers(200, sse.whole(BOT_V1))
    row = row_of(p)
    assert (row.attempt_count, row.error, row.status) == (2, "connect", 200)
    assert row.replica_id in {"r0", "r1"} - {failed}


async def test_row_of_a_request_that_no_replica_accepted(play: Playing) -> None:
    p = play("r0")
    p.ask()
    await p.refuses_connection()
    row = row_of(p)
    assert (row.status, row.error) == (502, "upstream_failed (connect)")
    assert (row.first_token_ms, row.prefill_ms, row.prompt_tokens) == (None, None, None)
    assert row.kv_token_seconds == row.gpu_seconds == 0.0


async def test_row_of_a_client_that_left(play: Playing) -> None:
    p = play("r0")
    exchange = p.ask()
    (await p.connects()).begins_stream()
    exchange.client_left()
    assert row_of(p).status == 499


async def test_row_of_a_lost_stream_has_its_error(play: Playing) -> None:
    p = play("r0")
    p.ask()
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO)
    engine.dies()
    row = row_of(p)
    assert (row.status, row.error, row.finish_reason) == (502, "upstream_lost (reset)", "")
    assert row.decode_tokens == 2


async def test_request_rejected_before_it_has_a_model_leaves_no_row(play: Playing) -> None:
    limited: Any = quota(requests_per_minute=1)
    assert limited.limits == QuotaLimitsPart(requests_per_minute=1)
    p = play("r0", quotas=(limited,))
    p.ask(stream=False)
    (await p.connects()).answers(200, sse.whole(BOT_V1))
    with pytest.raises(AssertionError, match="rate_limit_exceeded"):
        p.ask()
    assert len(p.gateway.services.traces.recent) == 1


ZEROS = PARENT.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32)


def sent_traceparent(engine: Engine) -> str:
    """Return the traceparent that an engine received."""
    (found,) = re.findall(rb"\r\ntraceparent: ([^\r]*)\r\n", bytes(engine.transport.written))
    return str(found.decode())


@pytest.mark.parametrize("parent", ["", "00-zz-b7ad6b7169203331-01", PARENT[:-3], "x" * 500, ZEROS, "ff" + PARENT[2:]])
async def test_malformed_traceparent_starts_a_new_trace(play: Playing, parent: str) -> None:
    p = play("r0")
    p.ask(stream=False, header_traceparent=parent)
    engine = await p.connects()
    engine.answers(200, sse.whole(BOT_V1))
    row = row_of(p)
    assert re.fullmatch("(?!0{32})[0-9a-f]{32}", row.trace_id) and row.trace_id != PARENT.split("-")[1]
    assert (row.span_id, row.parent_span_id) == ("", "")
    assert sent_traceparent(engine).split("-")[1] == row.trace_id


async def test_callers_trace_passes_through_without_spans(play: Playing) -> None:
    """A span id that the gateway does not export would leave the engine's spans without a parent."""
    p = play("r0")
    p.ask(stream=False, header_traceparent=PARENT)
    engine = await p.connects()
    engine.answers(200, sse.whole(BOT_V1))
    assert sent_traceparent(engine) == PARENT
    assert row_of(p).parent_span_id == PARENT.split("-")[2] and spans(row_of(p)) == []


@pytest.mark.parametrize(("parent", "sampled"), [(PARENT, True), (PARENT[:-2] + "00", False), ("", True)])
async def test_spans_are_made_unless_the_caller_opted_out(play: Playing, parent: str, sampled: bool) -> None:
    p = play("r0", limits=Limits(sampled_traces=2**32))
    p.ask(stream=False, header_traceparent=parent)
    engine = await p.connects()
    engine.answers(200, sse.whole(BOT_V1))
    row = row_of(p)
    assert bool(row.span_id) == sampled and bool(spans(row)) == sampled
    version, trace_id, span_id, flags = sent_traceparent(engine).split("-")
    assert (version, trace_id, flags) == ("00", row.trace_id, "01" if sampled else "00")
    assert span_id == (row.span_id or PARENT.split("-")[2])
    assert p.client.headers[b"traceresponse"].decode() == sent_traceparent(engine)
