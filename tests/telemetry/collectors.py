"""A real OTLP/HTTP receiver on loopback that answers with the test's statuses and records the accepted bodies."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import orjson
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class Taken:
    statuses: list[int] = field(default_factory=list)  # statuses of the next answers; 200 afterwards
    bodies: list[tuple[str, bytes]] = field(default_factory=list)  # path and body of the requests answered with 200
    url: str = ""

    def spans(self) -> list[Any]:
        """Return the received spans, parsed with OTLP's own schema."""
        return [span for path, body in self.bodies if path == "/v1/traces" for span in spans_in(body)]

    def events(self) -> list[Any]:
        found = []
        for path, body in self.bodies:
            if path == "/v1/logs":
                (resource,) = json_format.ParseDict(orjson.loads(body), ExportLogsServiceRequest()).resource_logs
                found += list(resource.scope_logs[0].log_records)
        return found


def spans_in(body: bytes) -> list[Any]:
    """Parse the spans; ids are hexadecimal in OTLP's JSON but base64 in protobuf's."""
    told = orjson.loads(body)
    for span in told["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for name in ("traceId", "spanId", "parentSpanId"):
            if name in span:
                span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    (resource,) = json_format.ParseDict(told, ExportTraceServiceRequest()).resource_spans
    return list(resource.scope_spans[0].spans)


def attributes(record: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in record.attributes}


@contextmanager
def collector(*statuses: int) -> Iterator[Taken]:
    taken = Taken(list(statuses))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = taken.statuses.pop(0) if taken.statuses else 200
            if status == 200:
                taken.bodies.append((self.path, body))
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    taken.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield taken
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
