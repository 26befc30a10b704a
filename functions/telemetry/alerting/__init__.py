"""Alerts, recording rules and dashboards: one source for Kubernetes and for a fleet on one machine.

`rules.yaml` is Prometheus's own format, `dashboards.yaml` a short form of Grafana's (`dashboards` expands it). An
alert's label `failure_mode` is also the name of its dashboard row and its runbook. `alerts` lists them, so that a
drill knows which alert has to fire.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

FOLDER = Path(__file__).parent
RULES_FILE = FOLDER / "rules.yaml"
DASHBOARDS_FILE = FOLDER / "dashboards.yaml"
RUNBOOKS = "docs/how-to/runbooks"

Severity = Literal["page", "ticket"]


@dataclass(frozen=True, slots=True)
class Alert:
    name: str
    failure_mode: str
    severity: Severity
    expr: str
    summary: str

    @property
    def runbook(self) -> str:
        """Path of the alert's runbook in this repository."""
        return f"{RUNBOOKS}/{self.failure_mode}.md"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A series that a recording rule creates."""

    name: str
    expr: str


@cache
def groups() -> list[dict[str, Any]]:
    """Return the groups of RULES_FILE as Prometheus reads them; do not change the result."""
    found: list[dict[str, Any]] = yaml.safe_load(RULES_FILE.read_text())["groups"]
    return found


def alerts() -> list[Alert]:
    return [
        Alert(
            name=rule["alert"],
            failure_mode=rule["labels"]["failure_mode"],
            severity=rule["labels"]["severity"],
            expr=rule["expr"],
            summary=rule["annotations"]["summary"],
        )
        for rule in _rules()
        if "alert" in rule
    ]


def recorded() -> list[Recorded]:
    return [Recorded(rule["record"], rule["expr"]) for rule in _rules() if "record" in rule]


def _rules() -> list[dict[str, Any]]:
    return [rule for group in groups() for rule in group["rules"]]
