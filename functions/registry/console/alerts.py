"""Alerts of ours that fire, or are about to, as the console shows them: what, since when, and the runbook.

Ours are those with the label `failure_mode` (`functions/telemetry/alerting/rules.yaml`): a cluster's Prometheus has
others', too. Labels and summaries have pools' and models' names in them, so they are bounded here and text in the page.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

SHOWN = 100
_WORDS_MAX_CHARS = 500
_LABELS_MAX = 20
_HIDDEN = frozenset({"alertname", "severity", "failure_mode"})
_ORDER = {"page": 0, "ticket": 1}


def shown(alerts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Those that fire first, of these what pages first, then the oldest."""
    ours = [described for each in alerts if (described := _described(each)) is not None]
    ours.sort(key=_urgency)
    firing = sum(each["state"] == "firing" for each in ours)
    return {"object": "list", "data": ours[:SHOWN], "total": len(ours), "firing": firing}


def _urgency(described: Mapping[str, Any]) -> tuple[bool, int, float]:
    return described["state"] != "firing", _ORDER.get(described["severity"], 2), described["since_unix_s"] or 0.0


def _described(alert: Mapping[str, Any]) -> dict[str, Any] | None:
    labels, notes = _texts(alert.get("labels")), _texts(alert.get("annotations"))
    if not labels.get("failure_mode"):
        return None
    others = [(name, value) for name, value in sorted(labels.items()) if name not in _HIDDEN]
    return {
        "name": labels.get("alertname", ""),
        "state": str(alert.get("state", ""))[:20],
        "severity": labels.get("severity", ""),
        "failure_mode": labels["failure_mode"],
        "summary": notes.get("summary", ""),
        "runbook_url": notes.get("runbook_url", ""),
        "labels": dict(others[:_LABELS_MAX]),
        "since_unix_s": _unix_s(alert.get("activeAt")),
        "value": str(alert.get("value", ""))[:40],
    }


def _texts(given: Any) -> dict[str, str]:
    if not isinstance(given, Mapping):
        return {}
    return {str(name)[:100]: str(value)[:_WORDS_MAX_CHARS] for name, value in given.items()}


def _unix_s(text: Any) -> float | None:
    """Of Prometheus's `2026-01-02T03:04:05.678901234Z`."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None
