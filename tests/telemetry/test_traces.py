"""Trace rows are written to disk whole and bounded, without blocking requests."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.telemetry.gap_histogram import Gaps
from functions.telemetry.trace_files import TraceFiles
from functions.telemetry.trace_row import COLUMNS, RowInvalid, TraceRow, decode, encode, find, rows
from functions.telemetry.trace_sink import TraceSink

CONTRACT = (
    "ts, request_id, trace_id, span_id, parent_span_id, tenant_id, key_id, model_id, version, artifact_digest, "
    "base_model, adapter_id, pool, replica_id, session_id, class, stream, attempt_count, route_reason, route_score, "
    "snapshot_epoch, prompt_tokens, cached_tokens, completion_tokens, auth_ms, queue_ms, route_ms, connect_ms, "
    "prefill_ms, first_token_ms, inter_token_p50_ms, inter_token_p99_ms, decode_tokens, total_ms, kv_token_seconds, "
    "gpu_seconds, status, finish_reason, degraded_from, error"
)
LONG_S = 60.0


def row(request_id: str = "r-1", **changes: object) -> TraceRow:
    some = TraceRow(
        ts=1_800_000_000.5,
        request_id=request_id,
        trace_id="",
        tenant_id="acme",
        key_id="ci",
        model_id="acme/bot",
        version="v1",
        artifact_digest="sha256:ab",
        base_model="base",
        adapter_id="acme/bot@sha256:ab",
        pool="base",
        replica_id="r0",
        session_id="",
        class_="interactive",
        stream=True,
        attempt_count=1,
        route_reason="least_predicted_wait",
        route_score={"predicted_ms": 12.5},
        snapshot_epoch=7,
        prompt_tokens=100,
        cached_tokens=0,
        completion_tokens=20,
        auth_ms=1.0,
        queue_ms=0.0,
        route_ms=1.0,
        connect_ms=2.0,
        prefill_ms=36.0,
        first_token_ms=40.0,
        inter_token_p50_ms=10.0,
        inter_token_p99_ms=20.0,
        decode_tokens=20,
        total_ms=240.0,
        kv_token_seconds=30.0,
        gpu_seconds=0.1,
        status=200,
        finish_reason="stop",
        degraded_from="",
        error="",
    )
    return msgspec.structs.replace(some, **changes)


class Ready:
    """A row that is already built."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id

    def row(self) -> TraceRow:
        return row(self.request_id)


def test_the_columns_are_those_of_the_contract_in_its_order() -> None:
    assert ", ".join(COLUMNS) == CONTRACT
    assert list(msgspec.json.decode(encode(row()))) == list(COLUMNS)


def test_a_row_comes_back_as_it_was() -> None:
    some = row(error='quote " and\nline', first_token_ms=None)
    assert b"\n" not in encode(some), "one line"
    assert decode(encode(some)) == some
    with pytest.raises(RowInvalid):
        decode(b'{"ts": 1}')


def test_the_newest_row_of_a_request_is_found(tmp_path: Path) -> None:
    files = TraceFiles(tmp_path, file_bytes=1, max_bytes=1 << 20)  # a file for each write
    files.write([encode(row("a", status=500)), encode(row("b"))], 1.0)
    files.write([encode(row("a", status=200))], 2.0)
    files.close()
    found = find(tmp_path, "a")
    assert found is not None and found.status == 200
    assert find(tmp_path, "never") is None and find(tmp_path / "nowhere", "a") is None


def test_files_are_bounded_in_bytes_and_the_oldest_go_first(tmp_path: Path) -> None:
    files = TraceFiles(tmp_path, file_bytes=1, max_bytes=2 * (len(encode(row("0"))) + 1) + 1)  # room for a third
    for number in range(10):
        files.write([encode(row(str(number)))], float(number))
    files.close()
    assert [one.request_id for one in rows(tmp_path)] == ["7", "8", "9"]


def test_half_a_line_at_the_end_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "requests-0000000000001-1.ndjson"
    path.write_bytes(encode(row("whole")) + b"\n" + encode(row("half"))[:40])
    assert [one.request_id for one in rows(path)] == ["whole"]


def test_closed_sink_has_written_all_rows(tmp_path: Path) -> None:
    sink = TraceSink(tmp_path / "traces", lambda: 1.0)
    sink.start()
    for number in range(3000):
        sink.offer(Ready(str(number)))
    sink.close(LONG_S)
    assert [one.request_id for one in rows(tmp_path / "traces")] == [str(number) for number in range(3000)]
    assert sink.dropped_total == 0


def test_missing_disk_costs_only_rows(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where the directory should be")
    sink = TraceSink(tmp_path / "taken", lambda: 1.0)
    sink.start()
    for number in range(10):
        sink.offer(Ready(str(number)))
    sink.close(LONG_S)
    assert sink.dropped_total == 10
    assert [one.row().request_id for one in sink.recent] == [str(number) for number in range(10)]


def test_when_nothing_is_written_the_oldest_are_dropped_and_counted(tmp_path: Path) -> None:
    sink = TraceSink(tmp_path, lambda: 1.0, waiting_rows=100)  # not started, like a disk that never answers
    for number in range(250):
        sink.offer(Ready(str(number)))
    assert sink.dropped_total == 150
    sink.start()
    sink.close(LONG_S)
    assert [one.request_id for one in rows(tmp_path)] == [str(number) for number in range(150, 250)]


def test_without_a_directory_only_the_last_ones_are_kept() -> None:
    sink = TraceSink(None, lambda: 1.0)
    sink.start()
    for number in range(2000):
        sink.offer(Ready(str(number)))
    sink.close()
    assert 0 < len(sink.recent) < 2000 and sink.recent[-1].row().request_id == "1999"


def test_worked_example_of_the_prologue() -> None:
    gaps = Gaps()
    for gap_s in (0.01, 0.01, 0.04):
        gaps.add(gap_s)
    assert gaps.quantile_ms(0.5) == pytest.approx(9.2, abs=0.05)
    assert gaps.quantile_ms(0.99) == pytest.approx(36.9, abs=0.05)
    assert Gaps().quantile_ms(0.5) is None


@given(st.lists(st.floats(0.00001, 30.0), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_off_by_an_eighth_at_most(seconds: list[float], quantile: float) -> None:
    gaps = Gaps()
    for gap_s in seconds:
        gaps.add(gap_s)
    ranked = sorted(seconds)
    true_ms = 1000 * ranked[max(0, -int(-quantile * len(ranked) // 1) - 1)]
    found_ms = gaps.quantile_ms(quantile)
    assert found_ms is not None
    assert found_ms == pytest.approx(true_ms, rel=0.13, abs=0.002)


def test_absurd_gaps_are_counted_too() -> None:
    gaps = Gaps()
    for gap_s in (0.0, -1.0, 1e6):
        gaps.add(gap_s)
    assert gaps.total == 3 and gaps.quantile_ms(1.0) is not None
