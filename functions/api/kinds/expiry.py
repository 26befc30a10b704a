"""When a key ends: a date, or a moment.

A date is the last day on which the key works, in UTC: `2027-06-30` ends as 1 July begins (test_a_date_lasts_until_its_
day_is_over). A moment is RFC 3339 with an offset, such as `2027-06-30T18:00:00Z`, and the key ends then.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import AfterValidator

_ALLOWED = "a date such as 2027-06-30, or RFC 3339 with an offset such as 2027-06-30T18:00:00Z"
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?(?:Z|[+-][0-9]{2}:[0-9]{2})"
)


def expiry_unix_s(text: str) -> float:
    """The moment from which the key no longer works; ValueError says what may be written."""
    try:
        if _DATE.fullmatch(text):
            return (datetime.fromisoformat(text).replace(tzinfo=UTC) + timedelta(days=1)).timestamp()
        if _MOMENT.fullmatch(text):
            return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        pass  # the shape is right and the day or hour does not exist: said below
    raise ValueError(_ALLOWED)


def _checked(text: str) -> str:
    expiry_unix_s(text)
    return text


Expiry = Annotated[str, AfterValidator(_checked)]
