"""Quantities in policies: durations, percentages, key expiry, and patterns of pool names.

Durations are a whole number and a unit, `500ms | 60s | 5m | 2h`, since a bare number would leave the unit open. The
kinds store the text as written and provide the number beside it (`session.ttl`, `session.ttl_s`).

A key expires by date or by time. A date is the last day on which the key works, in UTC: `2027-06-30` expires when 1
July begins (test_a_date_lasts_until_its_day_is_over). A time is RFC 3339 with an offset, such as
`2027-06-30T18:00:00Z`, at which the key expires.
"""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator, Field

from functions.api.ids import NAME_PATTERN
from functions.api.kinds.base import matching

DURATION_PATTERN = r"[1-9][0-9]{0,8}(?:ms|s|m|h)"
DURATION_MAX_S = 30 * 24 * 3600.0  # a month: a longer duration is most likely a wrong unit
CHANCE_PATTERN = r"[0-9]{1,2}(?:\.[0-9]{1,4})?%"
POOL_PATTERN = rf"{NAME_PATTERN}|(?:[a-z0-9][a-z0-9._-]{{0,61}})?\*"

_DURATION = re.compile(r"(?P<number>[1-9][0-9]{0,8})(?P<unit>ms|s|m|h)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_DURATION_ALLOWED = "a whole number and ms, s, m or h, such as 500ms or 5m, up to 720h"
_CHANCE = re.compile(CHANCE_PATTERN)
_CHANCE_ALLOWED = "a percentage above 0% and up to 50%, such as 1% or 0.5%"
_POOL_PATTERN = re.compile(POOL_PATTERN)
_POOL_PATTERN_ALLOWED = "a pool's name, or a prefix of names and one * at the end, such as llama-*"


def duration_ms(text: str) -> int:
    """Convert `500ms`, `60s`, `5m` or `2h` to milliseconds; ValueError says what is allowed."""
    match = _DURATION.fullmatch(text)
    if match is None or (milliseconds := int(match["number"]) * _UNIT_MS[match["unit"]]) > DURATION_MAX_S * 1000:
        raise ValueError(_DURATION_ALLOWED)
    return milliseconds


def duration_s(text: str) -> float:
    """Convert `500ms`, `60s`, `5m` or `2h` to seconds; ValueError says what is allowed."""
    return duration_ms(text) / 1000


def duration_text(milliseconds: int) -> str:
    """Return milliseconds as canonical text: the largest unit in which the number is whole and at least 2, so 60s, 3m,
    15m, 60m, 2h. Whole seconds are never written in milliseconds: 1000 ms are `1s`."""
    for unit, size_ms in (("h", 3_600_000), ("m", 60_000)):
        if milliseconds % size_ms == 0 and milliseconds >= 2 * size_ms:
            return f"{milliseconds // size_ms}{unit}"
    return f"{milliseconds // 1000}s" if milliseconds % 1000 == 0 else f"{milliseconds}ms"


def chance_ratio(text: str) -> float:
    """Convert a percentage above 0 and up to 50 to a ratio: `1%` is 0.01; ValueError says what is allowed."""
    percent = Decimal(text[:-1]) if _CHANCE.fullmatch(text) is not None else Decimal(0)
    if not 0 < percent <= 50:
        raise ValueError(_CHANCE_ALLOWED)
    return float(percent / 100)


def chance_text(ratio: float) -> str:
    """Return a ratio as canonical text: 0.005 is `0.5%`."""
    return f"{(Decimal(repr(ratio)) * 100).normalize():f}%"


def _checked_chance(text: str) -> str:
    chance_ratio(text)
    return text


def _checked_duration(text: str) -> str:
    duration_ms(text)
    return text


def _checked_pool_pattern(text: str) -> str:
    if _POOL_PATTERN.fullmatch(text) is None:
        raise ValueError(_POOL_PATTERN_ALLOWED)
    return text


Chance = Annotated[str, AfterValidator(_checked_chance), matching(CHANCE_PATTERN)]
Duration = Annotated[str, AfterValidator(_checked_duration), matching(DURATION_PATTERN)]
PoolPattern = Annotated[str, AfterValidator(_checked_pool_pattern), matching(POOL_PATTERN)]
# -0.0 equals 0.0 but would have another hash in a snapshot
Ratio = Annotated[float, Field(ge=0, le=1), AfterValidator(abs)]
Positive = Annotated[int, Field(ge=1, le=10**15)]


_ALLOWED = "a date such as 2027-06-30, or RFC 3339 with an offset such as 2027-06-30T18:00:00Z"
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?(?:Z|[+-][0-9]{2}:[0-9]{2})"
)


def expiry_unix_s(text: str) -> float:
    """Return the Unix time from which a key with this expiry (a moment, or the last day in UTC) no longer works;
    ValueError says what is allowed."""
    try:
        if _DATE.fullmatch(text):
            return (datetime.fromisoformat(text).replace(tzinfo=UTC) + timedelta(days=1)).timestamp()
        if _MOMENT.fullmatch(text):
            return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        pass  # the shape is right but the day or hour does not exist: the error below applies
    raise ValueError(_ALLOWED)


def _checked(text: str) -> str:
    expiry_unix_s(text)
    return text


Expiry = Annotated[str, AfterValidator(_checked)]
