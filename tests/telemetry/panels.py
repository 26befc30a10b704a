"""Query every panel of the shipped dashboards from a fleet's Prometheus and draw those that have data.

    .venv/bin/python -m tests.telemetry.panels http://127.0.0.1:8452 [FOLDER] [--minutes 60]

This is not Grafana: it runs each panel's query over the period and draws the lines under the panel's title. It names
queries that are refused or have no data; whether data was expected depends on the failures that were injected.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from functions.cli.charts import Panel, Series, lines
from functions.telemetry.alerting.dashboards import short_form

STEPS = 300
LINES_MAX = 6  # lines per panel in a picture


def query_range(client: httpx.Client, expr: str, since_s: float, until_s: float) -> list[dict[str, Any]]:
    """Run the range query; raises httpx.HTTPStatusError if it is refused."""
    params = {"query": expr, "start": since_s, "end": until_s, "step": (until_s - since_s) / STEPS}
    answer = client.get("/api/v1/query_range", params=params).raise_for_status()
    found: list[dict[str, Any]] = answer.json()["data"]["result"]
    return found


def legend(pattern: str, metric: dict[str, str]) -> str:
    for name, value in metric.items():
        pattern = pattern.replace(f"{{{{{name}}}}}", value)
    return pattern


def drawn(panel: dict[str, Any], found: list[dict[str, Any]], since_s: float) -> Panel:
    made = [
        Series(
            legend(panel["legend"], each["metric"]),
            [(float(at) - since_s) / 60 for at, _ in each["values"]],
            [float(value) for _, value in each["values"]],
        )
        for each in found[:LINES_MAX]
    ]
    return Panel(panel["title"], panel["unit"], made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--minutes", type=float, default=60.0)
    given = parser.parse_args()
    until_s = time.time()
    since_s = until_s - given.minutes * 60
    refused = 0
    with httpx.Client(base_url=given.url, timeout=30.0, trust_env=False) as client:
        for name, dashboard in short_form().items():
            made: list[Panel] = []
            for row in dashboard["rows"]:
                for panel in row["panels"]:
                    what = f"{name}: {row.get('mode') or row['title']}: {panel['title']}"
                    try:
                        found = query_range(client, panel["expr"], since_s, until_s)
                    except httpx.HTTPStatusError as error:
                        refused += 1
                        sys.stdout.write(f"REFUSED  {what}: {error.response.text[:300]}\n")
                        continue
                    sys.stdout.write(f"{'data' if found else 'EMPTY':8s} {what}: {len(found)} lines\n")
                    made += [drawn(panel, found, since_s)] if found else []
            if given.folder is not None and made:
                lines(given.folder / f"{name}.png", dashboard["title"], made, x_label="minutes", note="not Grafana")
    sys.exit(1 if refused else 0)


if __name__ == "__main__":
    main()
