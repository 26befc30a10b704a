"""Policy expressions: the result is a value whose text parses to the same value, or an error with a position."""

from functions.api.expressions import ExpressionInvalid, parse_halt, parse_scale_rule
from tests.fuzz.inputs import grown

DICTIONARY = (
    "error_rate",
    "p99_latency",
    "p99_ttft",
    "queue_seconds",
    "kv_usage",
    "utilization",
    " > ",
    "<=",
    "2%",
    "2x",
    "1.2 * slo",
    "500ms",
    "720h",
    " for 60s",
    ": +10%",
    ": -1",
)


def check(data: bytes) -> None:
    text = grown(data).decode("utf-8", "replace")
    for parse in (parse_halt, parse_scale_rule):
        try:
            value = parse(text)
        except ExpressionInvalid as invalid:
            assert 0 <= invalid.offset_chars <= len(text) and str(invalid)
        else:
            assert parse(value.text) == value, value.text
