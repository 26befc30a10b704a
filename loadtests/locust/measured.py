"""Locust's statistics: users record entries, and the verdict reads them.

Everything is stored in Locust's own entries, so that its page, CSV and HTML show it and the master merges workers'
figures. Answers and failures are Locust's requests. Parts of an answer, and events that are no answer, are not part of
the total, whose rate is that of answers: types ttft, gap, refused, gave up, waited, tokens, degraded, lag.
"""

from typing import Any

from locust.stats import RequestStats, StatsEntry

from loadtests.locust.slo import TIMES, Measured

ANSWERS = ("stream", "whole", "embed", "job")
REFUSED, GAVE_UP, TOKENS, DEGRADED = "refused", "gave up", "tokens", "degraded"


def beside_total(stats: RequestStats, kind: str, name: str, seconds: float | None, size: int = 0) -> None:
    """Record an entry outside the total: a time, or only a count if `seconds` is None."""
    entry: Any = stats.get(name, kind)
    entry.log(None if seconds is None else seconds * 1000, size)


def by_entry(stats: RequestStats) -> dict[str, Measured]:
    """Return the measurements by entry name. A refusal's name is `NAME STATUS CODE` and belongs to NAME."""
    found: dict[str, list[StatsEntry]] = {}
    for (name, kind), entry in stats.entries.items():
        found.setdefault(name.split(" ", 1)[0] if kind == REFUSED else name, []).append(entry)
    seconds = _seconds(stats)
    return {name: _measured(entries, seconds) for name, entries in found.items()}


def _measured(entries: list[StatsEntry], seconds: float) -> Measured:
    kinds = {kind: [entry for entry in entries if entry.method == kind] for kind in {each.method for each in entries}}
    answered = [entry for kind in ANSWERS for entry in kinds.get(kind, [])]
    failures = sum(entry.num_failures for entry in answered)
    return Measured(
        {kind: dict(entry.response_times) for kind in TIMES for entry in kinds.get(kind, []) if entry.response_times},
        {kind: float(entry.total_response_time) for kind in TIMES for entry in kinds.get(kind, [])},
        answers=sum(entry.num_requests for entry in answered) - failures,
        failures=failures,
        refusals=_count(kinds, REFUSED),
        given_up=_count(kinds, GAVE_UP),
        degraded=_count(kinds, DEGRADED),
        tokens=sum(entry.total_content_length for entry in kinds.get(TOKENS, [])),
        seconds=seconds,
    )


def _count(kinds: dict[str, list[StatsEntry]], kind: str) -> int:
    return sum(entry.num_requests for entry in kinds.get(kind, []))


def _seconds(stats: RequestStats) -> float:
    ended_s = max((entry.last_request_timestamp or 0.0 for entry in stats.entries.values()), default=0.0)
    return max(0.0, ended_s - stats.start_time)
