"""`shoal trace REQUEST_ID`: one request's waterfall and routing decision. `shoal traces`: search requests.

Both read the trace store, which has the requests of all gateways about a second after their end. If it does not have a
request, `shoal trace` reads the files of the local fleet's gateway, which are written 0.25 s after the end.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import orjson
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from functions.api.kinds.quantities import duration_s
from functions.cli.context import current_context
from functions.cli.refused import CommandRefused
from functions.cli.terminal import make_console
from functions.cli.trace_source import open_trace_store, since_unix_s
from functions.telemetry.store.questions import Search, search
from functions.telemetry.store.questions import find as ask_store
from functions.telemetry.trace_parts import TracePart, parts
from functions.telemetry.trace_row import RowInvalid, TraceRow, find

BAR_COLUMNS = 48


def trace(
    request_id: str, directory: Path | None, *, cluster: str | None = None, namespace: str = "shoal", as_json: bool
) -> None:
    """Print the trace of a request; fail if none is found. `directory` restricts the search to its files."""
    row = _in_files(request_id, directory) if directory is not None else _find_row(request_id, cluster, namespace)
    if as_json:
        sys.stdout.write(orjson.dumps(msgspec.to_builtins(row), option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        show(row, make_console())


def _find_row(request_id: str, cluster: str | None, namespace: str) -> TraceRow:
    """Find a request's row in the store, else in the local fleet's files."""
    context, why = current_context(), ""
    try:
        with open_trace_store(context, cluster, namespace) as store:
            row = ask_store(store, request_id)
    except CommandRefused as error:
        row, why = None, f"; {error}"
    if row is not None:
        return row
    if cluster is None and context.layout.traces_dir.is_dir():
        return _in_files(request_id, context.layout.traces_dir, why)
    raise CommandRefused(f"no trace of {request_id} in the store{why}")


def _in_files(request_id: str, directory: Path, why: str = "") -> TraceRow:
    if not directory.is_dir():
        raise CommandRefused(f"there is no directory {directory}: gateways write traces to SHOAL_GATEWAY_TRACE_DIR")
    try:
        row = find(directory, request_id)
    except (RowInvalid, OSError) as error:
        raise CommandRefused(f"the row of {request_id} in {directory} cannot be read: {error}") from error
    if row is None:
        raise CommandRefused(
            f"no trace of {request_id} in {directory}: the id is the answer's x-request-id; only the newest requests "
            f"are kept, and none that was refused before it had a model (wrong key, tenant's own limit){why}"
        )
    return row


def show(row: TraceRow, console: Console) -> None:
    console.print(f"[bold]{escape(row.request_id)}[/]  {escape(_result_words(row))}")
    console.print(escape(_caller_words(row)), style="dim")
    console.print()
    console.print(waterfall(row))
    console.print()
    console.print(_facts(row))
    if row.route_score:
        console.print()
        console.print(_decision(row))


def waterfall(row: TraceRow) -> Table:
    table = Table("part", "ms", "", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    for part in parts(row):
        table.add_row(part.name, f"{part.ms:.1f}", _bar(part, row.total_ms))
    table.add_row("[bold]total[/]", f"[bold]{row.total_ms:.1f}[/]", "")
    return table


def _bar(part: TracePart, total_ms: float) -> str:
    """Return a bar with markup that is at least one column wide and stays inside the chart."""
    scale = BAR_COLUMNS / total_ms if total_ms > 0 else 0.0
    start = min(BAR_COLUMNS - 1, int(part.start_ms * scale))
    width = max(1, min(BAR_COLUMNS - start, round(part.ms * scale)))
    return f"{' ' * start}[cyan]{'━' * width}[/]"


def _result_words(row: TraceRow) -> str:
    ended = f"{row.status}" + (f" {row.error}" if row.error else "")
    reason = f", finished by {row.finish_reason}" if row.finish_reason else ""
    return f"{ended}{reason}"


def _caller_words(row: TraceRow) -> str:
    how = "stream" if row.stream else "whole answer"
    return f"tenant {row.tenant_id}, key {row.key_id}, {row.class_}, {how}, snapshot {row.snapshot_epoch}"


def _facts(row: TraceRow) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    tokens = "not reported" if row.prompt_tokens is None else _tokens(row)
    degraded = f", instead of {row.degraded_from}" if row.degraded_from else ""
    facts: dict[str, Any] = {
        "model": f"{row.model_id}@{row.version}{degraded}",
        "pool": row.pool,
        "replica": f"{row.replica_id or 'none'} ({row.attempt_count} attempt{'s' if row.attempt_count != 1 else ''})",
        "tokens": tokens,
        "between tokens": _gaps(row),
        "cost": f"{row.kv_token_seconds:.0f} KV-token-seconds, {row.gpu_seconds:.3f} GPU-seconds",
    }
    for name, value in facts.items():
        table.add_row(name, escape(str(value)))
    return table


def _tokens(row: TraceRow) -> str:
    return f"{row.prompt_tokens} prompt ({row.cached_tokens} cached), {row.completion_tokens} completion"


def _gaps(row: TraceRow) -> str:
    if row.inter_token_p50_ms is None or row.inter_token_p99_ms is None:
        return "not streamed"
    return f"p50 {row.inter_token_p50_ms:.1f} ms, p99 {row.inter_token_p99_ms:.1f} ms"


def _decision(row: TraceRow) -> Table:
    """Return the terms of the routing decision as they were predicted."""
    table = Table("route", row.route_reason or "none", box=None, pad_edge=False)
    for name, value in row.route_score.items():
        if name != "reason":
            table.add_row(escape(name), escape(_said(value)))
    return table


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {inner}" for name, inner in value.items())
    return str(value)


_DAY_S = 86_400.0


def traces(asked: Search, *, cluster: str | None, namespace: str, as_json: bool) -> None:
    with open_trace_store(current_context(), cluster, namespace) as store:
        found = search(store, asked)
    if as_json:
        sys.stdout.write(orjson.dumps([msgspec.to_builtins(row) for row in found], option=orjson.OPT_INDENT_2).decode())
        sys.stdout.write("\n")
        return
    console = make_console()
    if not found:
        console.print("No request matches.")
        return
    console.print(table(found))
    if len(found) == asked.limit:
        console.print(f"The first {asked.limit}; --limit shows more.", style="dim")


def since(text: str) -> float:
    """Return the Unix time of `90s`, `15m`, `2h` or `7d` ago. Fail for other texts."""
    try:
        ago_s = int(text[:-1]) * _DAY_S if text.endswith("d") and text[:-1].isdigit() else duration_s(text)
    except ValueError as error:
        raise CommandRefused(f"--since {text}: {error}; or days, such as 7d") from error
    return since_unix_s(ago_s)


def over_ms(text: str | None) -> float | None:
    try:
        return duration_s(text) * 1000 if text is not None else None
    except ValueError as error:
        raise CommandRefused(f"--over {text}: {error}") from error


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
