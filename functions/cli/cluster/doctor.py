"""`shoal doctor`: check a cluster and report what is missing and how to fix it. It changes nothing.

Exit status 1 if a check fails. Warnings and unreadable objects do not count.
"""

import json
from collections import Counter
from dataclasses import asdict

import typer
from rich.markup import escape
from rich.table import Table

from functions.cli.cluster.access import ClusterChoice, KubeCluster
from functions.cli.cluster.facts import ClusterFacts, read
from functions.cli.cluster.finding import DoctorFinding, Level
from functions.cli.cluster.installation_checks import INSTALLATION_CHECKS
from functions.cli.cluster.platform_checks import PLATFORM_CHECKS
from functions.cli.cluster.supply_checks import SUPPLY_CHECKS
from functions.cli.terminal import make_console

_MARKS: dict[Level, str] = {
    "ok": "[green]✓[/]",
    "warn": "[yellow]![/]",
    "fail": "[red]✗[/]",
    "unknown": "[dim]?[/]",
}


def findings(facts: ClusterFacts, choice: ClusterChoice) -> list[DoctorFinding]:
    checks = (*PLATFORM_CHECKS, *INSTALLATION_CHECKS, *SUPPLY_CHECKS)
    return [finding for check in checks for finding in check(facts, choice)]


def doctor(choice: ClusterChoice, *, as_json: bool) -> None:
    cluster = KubeCluster(choice)
    found = findings(read(cluster), choice)
    is_well = not any(each.level == "fail" for each in found)
    if as_json:
        told = {"server": cluster.server, "ok": is_well, "findings": [asdict(each) for each in found]}
        typer.echo(json.dumps(told, indent=2))
    else:
        _print_findings(cluster.server, found)
    if not is_well:
        raise typer.Exit(1)


def _print_findings(server: str, found: list[DoctorFinding]) -> None:
    console = make_console()
    console.print(escape(server))
    table = Table("", "check", "found", box=None, pad_edge=False)
    for each in found:
        mend = f"\n[dim]fix:[/] {escape(each.mend)}" if each.mend and each.level != "ok" else ""
        table.add_row(_MARKS[each.level], escape(each.check), escape(each.words) + mend)
    console.print(table)
    counts = Counter(each.level for each in found)
    console.print(f"{counts['ok']} ok, {counts['warn']} warnings, {counts['fail']} failed, {counts['unknown']} unknown")
