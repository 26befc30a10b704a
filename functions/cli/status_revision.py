"""The part of `shoal status` that tells which revision of the branch runs, and why it is not the newest."""

import time
from typing import Any

from rich.console import Console
from rich.markup import escape

SHOWN_PROBLEMS = 5
SHORT_COMMIT = 10


def show_revision(controller: dict[str, Any], console: Console) -> None:
    for name, words in revision_lines(controller, time.time()):
        console.print(f"[bold]{name:<9}[/] {words}")


def revision_lines(controller: dict[str, Any], now_unix_s: float) -> list[tuple[str, str]]:
    """(heading, words with markup); a line without a heading goes on where the one before ended."""
    revision, snapshot = controller["revision"], controller["snapshot"]
    lines = [("revision", _desired(revision, now_unix_s))]
    if revision["suspended"]:
        since = _ago(now_unix_s - revision["suspended"]["since_unix_s"])
        why = escape(revision["suspended"]["reason"])
        lines.append(("suspended", f"[yellow]for {since}[/]{': ' + why if why else ''}; `shoal resume` ends it"))
    if (revision["tip"] or revision["problem_count"]) and revision["tip"] != revision["desired"]:
        lines += _tip(revision)
    if revision["trouble"]:
        lines.append(("", f"[red]the branch cannot be read:[/] {escape(revision['trouble'])}"))
    lines.append(("snapshot", _snapshot(snapshot)))
    return [*lines, *(("", f"[yellow]{escape(flip)}[/]") for flip in snapshot["held"][:SHOWN_PROBLEMS])]


def _desired(revision: dict[str, Any], now_unix_s: float) -> str:
    if not revision["desired"]:
        return "[red]none[/]"
    words = f"{short(revision['desired'])}  {escape(revision['message'])}"
    if revision["desired"] == revision["last_applied"]:
        return f"{words}  [dim]applied {_ago(now_unix_s - revision['applied_unix_s'])} ago[/]"
    before = f", {short(revision['last_applied'])} before" if revision["last_applied"] else ""
    return f"{words}  [yellow]being applied[/][dim]{before}[/]"


def _tip(revision: dict[str, Any]) -> list[tuple[str, str]]:
    name = f"{short(revision['tip'])}  {escape(revision['tip_message'])}" if revision["tip"] else "nothing to run"
    if not revision["problem_count"]:
        return [("newer", f"{name}  [yellow]waits[/]")]
    count = revision["problem_count"]
    shown = [("", f"  {escape(problem)}") for problem in revision["problems"][:SHOWN_PROBLEMS]]
    more = [("", f"  … and {count - SHOWN_PROBLEMS} more")] if count > SHOWN_PROBLEMS else []
    return [("refused", f"{name}  [red]{count} problem{'s' if count > 1 else ''}[/]"), *shown, *more]


def _snapshot(snapshot: dict[str, Any]) -> str:
    if not snapshot["epoch"]:
        return escape(snapshot["message"])
    age = f", {_ago(snapshot['age_s'])} old" if snapshot["age_s"] is not None else ""
    gateway = snapshot["gateway_epoch"]
    if gateway is None:
        where = "; [yellow]the gateway does not say which it uses[/]"
    elif gateway == snapshot["epoch"]:
        where = ", on the gateway"
    else:
        where = f"; [yellow]the gateway uses epoch {gateway}[/]"
    return f"epoch {snapshot['epoch']}{age}{where}"


def short(revision: str) -> str:
    branch, _, commit = revision.rpartition("@")
    return f"{escape(branch)}@{commit[:SHORT_COMMIT]}"


def _ago(seconds: float) -> str:
    seconds = max(0.0, seconds)
    for limit_s, unit_s, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"
