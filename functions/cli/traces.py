"""`shoal traces`: a search over requests, the newest first or the slowest.

Asked of the trace store, so of all gateways together. A row is there about a second after its request's end.
"""

import sys
from datetime import UTC, datetime

import msgspec
import orjson
from rich.markup import escape
from rich.table import Table

from functions.api.kinds.quantities import duration_s
from functions.cli.context import current_context
from functions.cli.refused import Refused
from functions.cli.terminal import make_console
from functions.cli.trace_source import asked_store, since_unix_s
from functions.telemetry.store.questions import Search, search
from functions.telemetry.trace_row import TraceRow

_DAY_S = 86_400.0


def traces(asked: Search, *, cluster: str | None, namespace: str, as_json: bool) -> None:
    with asked_store(current_context(), cluster, namespace) as store:
        found = search(store, asked)
    if as_json:
        sys.stdout.write(orjson.dumps([msgspec.to_builtins(row) for row in found], option=orjson.OPT_INDENT_2).decode())
        sys.stdout.write("\n")
        return
    console = make_console()
    if not found:
        console.print("No request of which that is true.")
        return
    console.print(table(found))
    if len(found) == asked.limit:
        console.print(f"The first {asked.limit}; --limit shows more.", style="dim")


def since(text: str) -> float:
    """Unix seconds of `90s`, `15m`, `2h` or `7d` ago; Refused."""
    try:
        ago_s = int(text[:-1]) * _DAY_S if text.endswith("d") and text[:-1].isdigit() else duration_s(text)
    except ValueError as error:
        raise Refused(f"--since {text}: {error}; or days, such as 7d") from error
    return since_unix_s(ago_s)


def over_ms(text: str | None) -> float | None:
    try:
        return duration_s(text) * 1000 if text is not None else None
    except ValueError as error:
        raise Refused(f"--over {text}: {error}") from error


def table(rows: list[TraceRow]) -> Table:
    found = Table(box=None, pad_edge=False)
    for name in ("at (UTC)", "request", "tenant", "model", "replica"):
        found.add_column(name, no_wrap=True)
    for name in ("status", "first ms", "total ms", "tokens"):
        found.add_column(name, justify="right", no_wrap=True)
    found.add_column("why")
    for row in rows:
        at = datetime.fromtimestamp(row.ts, UTC).strftime("%m-%d %H:%M:%S")
        first = f"{row.first_token_ms:.0f}" if row.first_token_ms is not None else ""
        tokens = f"{row.prompt_tokens}+{row.completion_tokens}" if row.prompt_tokens is not None else ""
        cells = (at, row.request_id, row.tenant_id, f"{row.model_id}@{row.version}", row.replica_id)
        status = f"[red]{row.status}[/]" if row.status >= 400 else str(row.status)
        why = row.error or row.finish_reason
        found.add_row(*map(escape, cells), status, first, f"{row.total_ms:.0f}", tokens, escape(why))
    return found
