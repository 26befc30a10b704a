"""`shoal status --context`: status of an installation from its API server; exit status 0 if everything is ready.

`shoal events`: events of both namespaces, the newest last, warnings marked.
"""

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from functions.cli.cluster.access import Body, Cluster, ClusterChoice, KubeCluster
from functions.cli.cluster.picture import read_objects, status_document
from functions.cli.terminal import make_console

_SHOWN = 60
_COLOURS = {"Reconciling": "yellow", "Stalled": "red"}


def status(choice: ClusterChoice, *, as_json: bool) -> None:
    cluster = KubeCluster(choice)
    seen = {"context": choice.context, "server": cluster.server, **status_document(read_objects(cluster))}
    if as_json:
        typer.echo(json.dumps(seen, indent=2))
    else:
        show(seen, make_console())
    if not seen["ready"]:
        raise typer.Exit(1)


def show(seen: Mapping[str, Any], console: Console) -> None:
    word = "[green]ready[/]" if seen["ready"] else "[yellow]not ready[/]"
    console.print(f"{escape(seen['server'])}  {word}")
    console.print(f"[bold]revision[/]  {_revision(seen['revision'], time.time())}", soft_wrap=True)
    if seen["revision"]["suspended"]:
        why = escape(seen["revision"]["suspend_reason"])
        console.print(f"[yellow]suspended[/]  {why or 'shoal resume ends it'}", soft_wrap=True)
    console.print()
    table = Table("process", "ready", "restarts", "", box=None, pad_edge=False)
    for each in seen["processes"]:
        led = f"[dim]led by {escape(each['leader'])}[/]" if each["leader"] else ""
        ready = f"{each['ready']}/{each['pods']}"
        table.add_row(each["name"], ready, str(each["restarts"]), led or escape(each["reason"]))
    console.print(table)
    console.print()
    if seen["replicas"]:
        table = Table("replica", "pool", "phase", "zone", "node", "restarts", "", box=None, pad_edge=False)
        for each in seen["replicas"][:_SHOWN]:
            cells = (each["replica_id"], each["pool"], each["phase"], each["zone"] or "-", each["node"] or "-")
            table.add_row(*map(escape, cells), str(each["restarts"]), escape(each["reason"]))
        console.print(table)
        console.print()
    _show_objects(seen, console)


def _show_objects(seen: Mapping[str, Any], console: Console) -> None:
    if seen["objects"]:
        table = Table("object", "condition", "reason", "message", box=None, pad_edge=False)
        for each in seen["objects"][:_SHOWN]:
            state = f"[{_COLOURS[each['state']]}]{each['state']}[/]"
            name = escape(f"{each['kind']}/{each['name']}")
            table.add_row(name, state, escape(each["reason"]), escape(each["message"]))
        console.print(table)
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(seen["counts"].items()))
    console.print(f"[dim]ready: {counts or 'nothing'}[/]")


def _revision(revision: Mapping[str, Any], now_unix_s: float) -> str:
    applied = revision["last_applied"]
    words = escape(applied) if applied else "the cluster's own objects"
    newest = revision["history"][0] if revision["history"] else None
    if newest is None:
        return words
    ago_min = max(0.0, now_unix_s - float(newest["ended_unix_s"])) / 60
    if newest["revision"] == applied:
        return f"{words}  [dim]{escape(newest['result'])} {ago_min:.0f} min ago[/]"
    return (
        f"{words}; [red]{escape(newest['revision'])} {escape(newest['result'])}: {escape(newest['message'][:300])}[/]"
    )


def events(choice: ClusterChoice, *, last: int, warnings: bool, as_json: bool) -> None:
    rows = rows_of(_all(KubeCluster(choice)), warnings=warnings)[-last:]
    if as_json:
        typer.echo(json.dumps({"events": rows}, indent=2))
        return
    if not rows:
        make_console().print("there are no events: a cluster keeps them for an hour")
        return
    table = Table("when", "", "object", "reason", "message", "times", box=None, pad_edge=False)
    for each in rows:
        mark = "[yellow]![/]" if each["type"] == "Warning" else ""
        cells = (each["object"], each["reason"], each["message"])
        table.add_row(each["at"], mark, *map(escape, cells), str(each["count"]))
    make_console().print(table)


def rows_of(bodies: Iterable[Body], *, warnings: bool) -> list[dict[str, Any]]:
    """Return events as rows, sorted by time; with `warnings`, only warnings. Events have a count or a series."""
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
