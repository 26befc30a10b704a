"""Dashboards in Grafana's import format, built from `dashboards.yaml`: rows of panels, three a line, one query each.

The data source is a variable, so that the files need no edits; panels of a failure mode name its runbook.
"""

import json
from typing import Any

import yaml

from functions.telemetry.alerting import DASHBOARDS_FILE, RUNBOOKS

_SOURCE = {"type": "prometheus", "uid": "${source}"}
_COLUMNS, _WIDTH, _HEIGHT = 3, 8, 7
_VARIABLE = {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}


def short_form() -> dict[str, Any]:
    """Return the dashboards' short form by name, each with `title` and `rows`; a row has `panels` and a `mode` or a
    `title`."""
    found: dict[str, Any] = yaml.safe_load(DASHBOARDS_FILE.read_text())
    return found


def files() -> dict[str, str]:
    """Return the dashboards as Grafana's JSON text, by file name."""
    return {f"shoal-{name}.json": _text(name, dashboard) for name, dashboard in short_form().items()}


def _text(name: str, dashboard: dict[str, Any]) -> str:
    made = {
        "uid": f"shoal-{name}",
        "title": dashboard["title"],
        "tags": ["shoal"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_VARIABLE]},
        "panels": _panels(dashboard["rows"]),
    }
    return json.dumps(made, indent=1) + "\n"


def _panels(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        made.append(
            {
                "id": len(made) + 1,
                "type": "row",
                "title": row.get("mode") or row["title"],
                "collapsed": False,
                "gridPos": {"h": 1, "w": 24, "x": 0, "y": y},
                "panels": [],
            }
        )
        y += 1
        for place, panel in enumerate(row["panels"]):
            line, column = divmod(place, _COLUMNS)
            grid = {"h": _HEIGHT, "w": _WIDTH, "x": column * _WIDTH, "y": y + line * _HEIGHT}
            made.append(_panel(len(made) + 1, panel, grid, row.get("mode")))
        y += -(-len(row["panels"]) // _COLUMNS) * _HEIGHT
    return made


def _panel(number: int, panel: dict[str, Any], grid: dict[str, int], mode: str | None) -> dict[str, Any]:
    about = {"description": f"Runbook: {RUNBOOKS}/{mode}.md"} if mode is not None else {}
    target = {"refId": "A", "expr": panel["expr"], "legendFormat": panel["legend"], "datasource": _SOURCE}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel["title"],
        **about,
        "datasource": _SOURCE,
        "gridPos": grid,
        "fieldConfig": {"defaults": {"unit": panel["unit"]}, "overrides": []},
        "targets": [target],
    }
