"""Spans of trace rows, as an OpenTelemetry collector reads them."""

from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from functions.telemetry.otlp import Collector, OtlpReceiver, document, headers_of, spans
from functions.telemetry.trace_files import TraceFiles
from functions.telemetry.trace_row import TraceRow, encode
from functions.telemetry.trace_shipping import PieceRefused, ReceiverAway, Shipping
from tests.telemetry.collectors import spans_in
from tests.telemetry.test_traces import row

TRACE, SPAN, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7"


def traced(**changes: object) -> TraceRow:
    return row(**{"trace_id": TRACE, "span_id": SPAN, "parent_span_id": PARENT, **changes})


def test_a_request_is_one_span_with_its_parts_below() -> None:
    found = spans_in(document("shoal-gateway", "g1", spans(traced(status=502, error="upstream_failed"))))
    own, *children = found
    assert (own.trace_id.hex(), own.span_id.hex(), own.parent_span_id.hex()) == (TRACE, SPAN, PARENT)
    assert (own.kind, own.status.code) == (2, 2)
    assert (own.end_time_unix_nano - own.start_time_unix_nano) == 240_000_000
    assert own.start_time_unix_nano == 1_800_000_000_500_000_000
    told = {each.key: each.value for each in own.attributes}
    assert told["gen_ai.usage.output_tokens"].int_value == 20 and told["shoal.tenant"].string_value == "acme"
    assert [each.name for each in children] == ["auth", "queue", "route", "connect", "prefill", "decode"]
    assert {each.parent_span_id.hex() for each in children} == {SPAN}
    assert children[-1].end_time_unix_nano == own.end_time_unix_nano
    assert len({each.span_id for each in found}) == 7


def test_a_batch_that_comes_twice_is_the_same_spans() -> None:
    assert spans(traced()) == spans(traced())


def test_a_request_that_is_not_sampled_leaves_none() -> None:
    assert spans(traced(span_id="")) == []


class Played(BaseHTTPRequestHandler):
    """A collector that answers with the test's status."""

    statuses: list[int]
    bodies: list[bytes]
    tokens: list[str | None]

    def do_POST(self) -> None:
        assert self.path == "/v1/traces" and self.headers["content-type"] == "application/json"
        self.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.tokens.append(self.headers["x-token"])
        self.send_response(self.statuses.pop(0) if self.statuses else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def played() -> Iterator[HTTPServer]:
    Played.statuses, Played.bodies, Played.tokens = [], [], []
    server = HTTPServer(("127.0.0.1", 0), Played)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_rows_go_out_while_a_collector_answers_and_wait_while_it_does_not(played: HTTPServer, tmp_path: Path) -> None:
    (tmp_path / "headers").write_text("x-token: secret\n")
    files = TraceFiles(tmp_path / "traces", 1 << 20, 1 << 24)
    files.write([encode(traced()), encode(traced(span_id="")), encode(traced(span_id=PARENT))], 1.0)
    Played.statuses = [503, 429, 401]
    with closing(Collector(f"http://127.0.0.1:{played.server_port}/", headers_of(tmp_path / "headers"))) as collector:
        shipping = Shipping(tmp_path / "traces", "otlp", OtlpReceiver(collector, "shoal-gateway", "g1"))
        for _ in range(3):
            with pytest.raises(ReceiverAway):
                shipping.ship()
        shipping.ship()
    assert (shipping.written_total, shipping.waiting_bytes) == (3, 0)
    assert len(spans_in(Played.bodies[-1])) == 14 and set(Played.tokens) == {"secret"}


def test_permanently_rejected_spans_are_dropped(played: HTTPServer) -> None:
    Played.statuses = [400]
    with closing(Collector(f"http://127.0.0.1:{played.server_port}", {})) as collector:
        with pytest.raises(PieceRefused):
            OtlpReceiver(collector, "shoal-gateway", "g1").receive(encode(traced()) + b"\n", "a piece")
        with pytest.raises(PieceRefused):
            OtlpReceiver(collector, "shoal-gateway", "g1").receive(b"{half\n", "a piece")
