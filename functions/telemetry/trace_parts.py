"""Consecutive parts of a request's time, computed from its row, for the waterfall and the spans."""

from dataclasses import dataclass

from functions.telemetry.trace_row import TraceRow


@dataclass(frozen=True, slots=True)
class TracePart:
    """One part of a request's time, in milliseconds since its arrival."""

    name: str
    start_ms: float
    ms: float


def parts(row: TraceRow) -> list[TracePart]:
    """Return the parts of a request's time (auth, queue, route, connect, prefill, decode), without those that it never
    reached. `other` is the rest, as after an end before the first token."""
    found, at_ms = [], 0.0
    decode_ms = row.total_ms - row.first_token_ms if row.first_token_ms is not None else None
    for name, ms in (
        ("auth", row.auth_ms),
        ("queue", row.queue_ms),
        ("route", row.route_ms),
        ("connect", row.connect_ms),
        ("prefill", row.prefill_ms),
        ("decode", decode_ms),
    ):
        if ms is not None:
            found.append(TracePart(name, at_ms, ms))
            at_ms += ms
    if at_ms < row.total_ms - 0.001:
        found.append(TracePart("other", at_ms, row.total_ms - at_ms))
    return found
