"""In which words a scaling decision says why: few causes for a metric's label, sentences for people. Pure."""

from typing import Literal

from functions.decisions.autoscaling.rules import Looked

Cause = Literal["steady", "bounds", "rule", "forecast", "blind", "quiet", "needed", "waiting"]


def told(looked: Looked) -> str:
    """The rule with what was measured: `queue_seconds > 0.5: +5% (0.8 s)`."""
    value = looked.value if looked.value is not None else 0.0
    shown = f"{value:.0%}" if looked.rule.metric in ("kv_usage", "utilization") else f"{value:.3g} s"
    return f"{looked.rule.text} ({shown})"
