"""Tables of `shoal status`: revision, objects, replicas, models, processes.

They fit 80 columns, or use a wider terminal.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from functions.cli.context import SHORT_COMMIT
from functions.cli.rollout_tables import rollout_table
from functions.cli.top import PHASE_COLOURS, failure_lines, overload_lines, tier_table

SHOWN_PROBLEMS = 5


def show_revision(controller: dict[str, Any], console: Console) -> None:
    for name, words in revision_lines(controller, time.time()):
        console.print(f"[bold]{name:<9}[/] {words}")


def revision_lines(controller: dict[str, Any], now_unix_s: float) -> list[tuple[str, str]]:
    """Return lines as (heading, text with markup). A line without a heading continues the previous one."""
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
        where = "; [yellow]the gateway does not report its epoch[/]"
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


def scaling_table(scaling: Sequence[Mapping[str, Any]], now_unix_s: float | None = None) -> Table | None:
    """Return the table of scaled pools, or None if no pool is scaled, warm or held back."""
    shown = [each for each in scaling if each["desired"] is not None or each["warm"] or each["held"]]
    if not shown:
        return None
    now_s = time.time() if now_unix_s is None else now_unix_s
    table = Table("pool", box=None, pad_edge=False)
    for heading in ("serve", "warm", "desired", "since"):
        table.add_column(heading, justify="right")
    table.add_column("why")
    for each in shown:
        desired = str(each["desired"]) if each["desired"] is not None else "-"
        since_s = each["since_unix_s"]
        table.add_row(
            escape(each["pool"]),
            str(each["serving"]),
            str(each["warm"]),
            desired,
            f"{max(0.0, now_s - since_s):.0f} s" if since_s is not None else "-",
            escape("; ".join(word for word in (each["reason"], each["held"]) if word)),
        )
    return table


STATE_COLOURS = {"Ready": "green", "Reconciling": "yellow", "Stalled": "red"}
ALWAYS_LISTED = ("InferenceService", "Model")  # other kinds are listed only if not Ready
LISTED_MAX = 60
SHORT_DIGEST = len("sha256:") + 12
WIDE_COLUMNS = 100


def show(seen: dict[str, Any], console: Console) -> None:
    controller = seen["controller"]
    if controller is None:
        _show_without_controller(seen, console)
        return
    target = controller["target"]
    word = "[green]ready[/]" if seen["ready"] else "[yellow]not ready[/]"
    console.print(f"{escape(seen['gateway'])}  {word}  engine {target['engine']}")
    if seen["prometheus"] is not None:
        console.print(f"[dim]metrics and alerts: {escape(seen['prometheus'])}/alerts[/]")
    show_revision(controller, console)
    console.print()
    _show_objects(controller, console)
    console.print()
    scaling = scaling_table(controller.get("scaling", ()))
    if scaling is not None:
        console.print(scaling)
        console.print()
    _show_replicas(seen, console)
    console.print()
    _show_models(seen, console)
    _show_processes(controller["processes"], console)
    for line in _problems(controller):
        console.print(f"[red]![/] {escape(line)}")


def _show_without_controller(seen: dict[str, Any], console: Console) -> None:
    running = seen["without_controller"]
    if not running:
        console.print(escape(f"no fleet runs in {seen['state_dir']}: start one with `shoal up`"))
        return
    names = ", ".join(f"{process['name']} ({process['pid']})" for process in running)
    console.print(escape(f"no controller answers, but these processes still run: {names}"))
    console.print("`shoal up` takes them over, `shoal down` stops them.")


def _show_objects(controller: dict[str, Any], console: Console) -> None:
    listed = [o for o in controller["objects"] if o["kind"] in ALWAYS_LISTED or o["state"] != "Ready"]
    table = Table("object", "condition", "reason", "message", box=None, pad_edge=False)
    table.columns[0].overflow = "fold"
    for each in listed[:LISTED_MAX]:
        name = f"{_short_kind(each['kind'])}/{each['name']}"
        state = f"[{STATE_COLOURS[each['state']]}]{each['state']}[/]"
        table.add_row(escape(name), state, escape(each["reason"]), escape(each["message"]))
    if table.row_count:
        console.print(table)
    if len(listed) > LISTED_MAX:
        console.print(f"[dim]… and {len(listed) - LISTED_MAX} more: shoal status -o json[/]")
    others = [
        f"{counts['Ready']} {_plural(kind, counts['Ready'])}"
        for kind, counts in sorted(controller["counts"].items())
        if kind not in ALWAYS_LISTED and counts["Ready"]
    ]
    if others:
        console.print(f"[dim]also ready: {', '.join(others)}[/]")


def _short_kind(kind: str) -> str:
    return "pool" if kind == "InferenceService" else kind.removesuffix("Policy").lower()


def _plural(kind: str, count: int) -> str:
    if count == 1:
        return kind
    return kind[:-1] + "ies" if kind.endswith("y") else kind + "s"


def _show_replicas(seen: dict[str, Any], console: Console) -> None:
    known = {replica["replica_id"]: replica for replica in seen["replicas"]}
    engines = {p["replica"]: p for p in seen["controller"]["processes"] if p["role"] == "engine"}
    pool_shown = console.width >= WIDE_COLUMNS  # in a narrow terminal the replica's name shows its pool
    table = Table("replica", *(["pool"] if pool_shown else []), "phase", box=None, pad_edge=False)
    for heading in ("running", "waiting", "kv", "adapters", "restarts", "heartbeat"):
        table.add_column(heading, justify="right")
    is_told = any(replica.get("weights_digest") for replica in known.values())
    if is_told:
        table.add_column("weights")
    for replica_id in sorted(known.keys() | engines.keys()):
        heartbeat, engine = known.get(replica_id), engines.get(replica_id)
        restarts = str(engine["restarts"]) if engine is not None else "-"
        pool = (heartbeat or engine or {}).get("pool") or "-"
        name = [escape(replica_id), *([escape(pool)] if pool_shown else [])]
        if heartbeat is None:
            table.add_row(*name, "[dim]no heartbeat[/]", "", "", "", "", restarts, "never")
            continue
        table.add_row(
            *name,
            _phase(heartbeat["phase"]),
            str(heartbeat["running"]),
            str(heartbeat["waiting"]),
            f"{heartbeat['kv_usage_ratio']:.0%}",
            str(len(heartbeat["adapters"])),
            restarts,
            f"{heartbeat['age_s']:.1f} s ago",
            *([escape(weights_name(heartbeat, seen["base_versions"]))] if is_told else []),
        )
    if table.row_count:
        console.print(table)
    for line in mixed_lines(seen["replicas"], seen["base_versions"]):
        console.print(line, soft_wrap=True)
    for heartbeat in known.values():
        if heartbeat["phase"] != "ready" and heartbeat["reason"]:
            console.print(f"  {escape(heartbeat['replica_id'])}: {escape(heartbeat['reason'])}")


def weights_name(replica: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    """Return the name of the base version that the replica has loaded, else the beginning of its digest, else `not
    known`."""
    digest = str(replica.get("weights_digest") or "")
    return versions.get(digest, digest[:SHORT_DIGEST]) or "not known"


def mixed_lines(replicas: Sequence[Mapping[str, Any]], versions: Mapping[str, str]) -> list[str]:
    """Return a line for each pool whose ready replicas have loaded different weights, with counts by version."""
    found: dict[str, Counter[str]] = {}
    for replica in replicas:
        if replica["phase"] == "ready" and replica.get("weights_digest"):
            found.setdefault(str(replica["pool"]), Counter())[weights_name(replica, versions)] += 1
    return [
        f"[yellow]![/] {escape(pool)} mixes weights: "
        + ", ".join(f"{escape(name)} on {number}" for name, number in sorted(counts.items()))
        for pool, counts in sorted(found.items())
        if len(counts) > 1
    ]


def _show_models(seen: dict[str, Any], console: Console) -> None:
    """Print overloaded pools, adapters by tier and active rollouts; nothing if the registry did not answer."""
    for line in overload_lines(seen["pools"]):
        console.print(line, soft_wrap=True)
    if seen["adapters"]:
        console.print(tier_table(seen["adapters"]))
        for line in failure_lines(seen["adapters"]):
            console.print(line, soft_wrap=True)
        console.print()
    if seen["rollouts"]:
        console.print(rollout_table(seen["rollouts"]))
        console.print()


def _show_processes(processes: list[dict[str, Any]], console: Console) -> None:
    table = Table("process", "phase", "for", "pid", "port", "restarts", "reason", box=None, pad_edge=False)
    for column in (2, 3, 4, 5):
        table.columns[column].justify = "right"
    for process in processes:
        table.add_row(
            escape(process["name"]),
            _phase(process["phase"]),
            _age(process["age_s"]),
            str(process["pid"] or "-"),
            str(process["port"] or "-"),
            str(process["restarts"]),
            escape(process["reason"][:80]),
        )
    console.print(table)


def _problems(controller: dict[str, Any]) -> list[str]:
    snapshot = controller["snapshot"]
    lines = [controller["stalled"]] if controller["stalled"] else []
    lines += [f"snapshot: {problem}" for problem in snapshot["problems"]]
    if not snapshot["complete"] and not snapshot["problems"] and not snapshot["held"]:
        lines.append(f"snapshot: {snapshot['message']}")
    operation = controller["controller"]["operation"]
    lines += [operation] if operation.startswith("failed") else []
    return [*lines, *([controller["registry_problem"]] if controller["registry_problem"] else [])]


def _phase(phase: str) -> str:
    return f"[{PHASE_COLOURS.get(phase, 'red')}]{escape(phase)}[/]"


def _age(age_s: float) -> str:
    if age_s < 120:
        return f"{age_s:.0f} s"
    return f"{age_s / 60:.0f} min" if age_s < 7200 else f"{age_s / 3600:.0f} h"
