"""`shoal events`: what happened on a cluster, the newest last: events of both namespaces, warnings marked."""

import json
from collections.abc import Iterable
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from functions.cli.cluster.access import Body, Cluster, ClusterChoice, KubeCluster
from functions.cli.terminal import make_console


def events(choice: ClusterChoice, *, last: int, warnings: bool, as_json: bool) -> None:
    rows = rows_of(_all(KubeCluster(choice)), warnings=warnings)[-last:]
    if as_json:
        typer.echo(json.dumps({"events": rows}, indent=2))
        return
    if not rows:
        make_console().print("nothing is known: a cluster keeps events for an hour")
        return
    table = Table("when", "", "object", "reason", "message", "times", box=None, pad_edge=False)
    for each in rows:
        mark = "[yellow]![/]" if each["type"] == "Warning" else ""
        cells = (each["object"], each["reason"], each["message"])
        table.add_row(each["at"], mark, *map(escape, cells), str(each["count"]))
    make_console().print(table)


def rows_of(bodies: Iterable[Body], *, warnings: bool) -> list[dict[str, Any]]:
    """By time, in both forms that events come in (a count, or a series)."""
    rows = [_row(each) for each in bodies if not warnings or each.get("type") == "Warning"]
    return sorted(rows, key=lambda row: str(row["at"]))


def _row(event: Body) -> dict[str, Any]:
    about, series = event.get("involvedObject", {}), event.get("series") or {}
    at = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return {
        "at": str(at or event["metadata"].get("creationTimestamp", ""))[:19],
        "type": event.get("type", ""),
        "object": f"{about.get('kind', '')}/{about.get('name', '')}",
        "reason": event.get("reason", ""),
        "message": event.get("message", ""),
        "count": series.get("count") or event.get("count") or 1,
    }


def _all(cluster: Cluster) -> list[Body]:
    spaces = (cluster.choice.system, cluster.choice.models)
    return [each for space in spaces for each in cluster.list(f"/api/v1/namespaces/{space}/events")]
