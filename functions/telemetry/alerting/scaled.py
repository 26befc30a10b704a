"""Rules with shorter windows: the same expressions with all their times scaled, for a fleet on which drills run.

An alert that looks back two minutes and holds for another cannot be observed twice in one minute. Ranges (`[5m]`),
offsets and `for` are scaled. Thresholds are not: a snapshot is too old after 60 s either way. A range is never
shorter than `SCRAPES_AT_LEAST` scrapes. Worked example (test_windows_are_a_fifth): at 0.2 `rate(x[2m])` is
`rate(x[24s])`, `for: 1m` is 12 s, `[1m]` is 12 s.

The least scale follows from what is polled rarely: a controller's long poll is answered every 25 s, and the rule
that counts these polls over 3 min must see at least one.
"""

import re
from typing import Any

import yaml

from functions.telemetry.alerting import RULES_FILE, groups

LEAST, SHORT = 0.2, 0.2
SCRAPES_AT_LEAST = 4

_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_RANGE = re.compile(r"\[(\d+)([smhd])\]")
_OFFSET = re.compile(r"\boffset (\d+)([smhd])")
_DURATION = re.compile(r"(\d+)([smhd])")


def rules_text(scale: float = 1.0, scrape_every_s: float = 5.0) -> bytes:
    """Return Prometheus' rules file with all windows multiplied by `scale`; ValueError if the scale is not from LEAST
    to 1."""
    if not LEAST <= scale <= 1.0:
        raise ValueError(f"windows are scaled by {LEAST} to 1, not by {scale}")
    if scale == 1.0:
        return RULES_FILE.read_bytes()
    made = [group | {"rules": [_scaled(rule, scale, scrape_every_s) for rule in group["rules"]]} for group in groups()]
    text: str = yaml.safe_dump({"groups": made}, sort_keys=False, allow_unicode=True, width=1000)
    return text.encode()


def _scaled(rule: dict[str, Any], scale: float, scrape_every_s: float) -> dict[str, Any]:
    least_s = SCRAPES_AT_LEAST * scrape_every_s

    def window(found: re.Match[str]) -> str:
        return f"[{_seconds(found, scale, least_s)}]"

    def offset(found: re.Match[str]) -> str:
        return f"offset {_seconds(found, scale, 0.0)}"

    made = rule | {"expr": _OFFSET.sub(offset, _RANGE.sub(window, rule["expr"]))}
    if (held := _DURATION.fullmatch(rule.get("for", ""))) is not None:
        made["for"] = _seconds(held, scale, 0.0)
    return made


def _seconds(found: re.Match[str], scale: float, least_s: float) -> str:
    return f"{round(max(least_s, int(found[1]) * _UNIT_S[found[2]] * scale))}s"


def held_s(alert: str, scale: float = 1.0) -> float:
    """Return the seconds for which the alert's expression holds before the alert fires; KeyError if there is no such
    alert."""
    rules = {rule["alert"]: rule for group in groups() for rule in group["rules"] if "alert" in rule}
    held = _DURATION.fullmatch(rules[alert].get("for", ""))
    return float(_seconds(held, scale, 0.0)[:-1]) if held is not None else 0.0
