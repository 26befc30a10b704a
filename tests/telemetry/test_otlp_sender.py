"""Spans and events of controller and agents, as an OpenTelemetry collector gets them."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from functions.telemetry.otlp import Collector
from functions.telemetry.otlp_sender import BATCH, OtlpSender, SpanEvent, sender_of
from functions.telemetry.trace_shipping import ReceiverAway
from tests.telemetry.collectors import attributes, collector

IDS = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
PUSH = SpanEvent("shoal.push", 1_800_000_000.5, "main@a is applied", {"shoal.result": "applied", "shoal.count": 2})


def sender_to(url: str, **bounds: int) -> OtlpSender:
    return OtlpSender(Collector(url, {}), "shoal-agent", "r0", **bounds)


def test_an_event_is_a_log_record_with_a_name_and_a_span_says_whether_it_failed() -> None:
    with collector() as taken:
        sender = sender_to(taken.url)
        sender.event(PUSH)
        sender.span("shoal.adapter_load", IDS, (1.5, 2.0), {"shoal.adapter": "acme/bot"}, failed=True)
        sender.send()
        (event,), (span,) = taken.events(), taken.spans()
    assert (event.event_name, event.body.string_value) == ("shoal.push", "main@a is applied")
    assert (event.time_unix_nano, event.severity_number) == (1_800_000_000_500_000_000, 9)
    assert attributes(event)["shoal.result"] == "applied" and attributes(event)["shoal.count"] == 2
    assert (span.trace_id.hex(), span.span_id.hex(), span.status.code) == (*IDS, 2)
    assert span.end_time_unix_nano - span.start_time_unix_nano == 500_000_000


def test_events_are_resent_in_order_after_a_collector_outage() -> None:
    with collector(503) as taken:
        sender = sender_to(taken.url)
        for number in range(BATCH + 3):
            sender.event(SpanEvent("shoal.push", float(number), str(number), {}))
        with pytest.raises(ReceiverAway):
            sender.send()
        assert taken.events() == []
        sender.send()
        assert [event.body.string_value for event in taken.events()] == [str(number) for number in range(BATCH + 3)]
    assert (sender.sent_total, sender.dropped_total) == (BATCH + 3, 0)


def test_a_collector_that_stays_away_costs_the_oldest_and_bounded_memory() -> None:
    with collector() as taken:
        sender = sender_to(taken.url, waiting_max=10)
        for number in range(25):
            sender.event(SpanEvent("shoal.push", float(number), "x" * 100_000, {"shoal.detail": "y" * 100_000}))
        assert sender.dropped_total == 15
        sender.send()
        assert [event.time_unix_nano for event in taken.events()] == [number * 10**9 for number in range(15, 25)]
        assert all(len(body) < 50_000 for _, body in taken.bodies), "words are cut"


def test_refused_events_are_dropped() -> None:
    with collector(400) as taken:
        sender = sender_to(taken.url)
        sender.event(PUSH)
        sender.send()
        sender.event(PUSH)
        sender.send()
        assert (sender.dropped_total, sender.sent_total, len(taken.events())) == (1, 1, 1)


def test_closing_sends_pending_events() -> None:
    with collector() as taken:
        sender = sender_to(taken.url)
        sender.start()
        sender.event(PUSH)
        sender.close(within_s=10.0)
        assert len(taken.events()) == 1


@dataclass
class Settings:
    otlp_endpoint: str | None = None
    otlp_headers_file: Path | None = None
    otlp_ca_file: Path | None = None


def test_sender_without_endpoint_is_none() -> None:
    assert sender_of(Settings(), "shoal-agent", "r0") is None
    assert sender_of(Settings(""), "shoal-agent", "r0") is None
