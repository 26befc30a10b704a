"""`shoal usage`: usage and cost by tenant, and paid, used and idle accelerator time by pool.

The figures come from the registry's ledger (docs/how-to/usage.md), in whole hours of UTC. With SHOAL_CLI_KEY a tenant
sees its own usage, also at a gateway. Only the operator sees the figures of pools.
"""

import json
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import typer
from rich.table import Table

from functions.cli.context import current_context
from functions.cli.refused import CommandRefused
from functions.cli.registry_client import Registry
from functions.cli.terminal import make_console

_AGO = re.compile(r"([1-9][0-9]{0,5})([mhd])")
_UNIT_S = {"m": 60, "h": 3600, "d": 86_400}
_TIMES = ("day", "hour")
_LATE_S = 120.0  # limit for a missing report; gateways report every ten seconds


def usage(
    *, tenant: str | None, model: str | None, pool: str | None, by: str, since: str, until: str | None, as_json: bool
) -> None:
    now_unix_s = time.time()
    given = {"tenant": tenant, "model": model, "pool": pool}
    params = _period(since, until, now_unix_s) | {"by": by} | {name: it for name, it in given.items() if it is not None}
    with Registry(current_context(clones=True)) as registry:
        answer: dict[str, Any] = registry.get("/v1/usage", **params)
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    console = make_console()
    if answer["total"] is None:
        console.print("gateways have reported no usage in this period")
    else:
        console.print(usage_table(answer["data"], answer["by"], answer["total"]))
    for line in notes(answer, now_unix_s):
        console.print(line, style="dim")


def pools(*, since: str, until: str | None, as_json: bool) -> None:
    with Registry(current_context(clones=True)) as registry:
        answer: dict[str, Any] = registry.get("/v1/usage/pools", **_period(since, until, time.time()))
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
    elif answer["data"]:
        make_console().print(pools_table(answer["data"]))
    else:
        make_console().print("the registry has seen no replica in this period")


def moment_unix_s(text: str, now_unix_s: float) -> float:
    """Return the Unix time of `90m`, `24h` or `7d` ago, of a date (its beginning in UTC), or of an RFC 3339 time."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return now_unix_s - int(ago[1]) * _UNIT_S[ago[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        message = (
            f"{text[:40]!r} is not a time: use 90m, 24h or 7d ago, a date such as 2027-06-30, or 2027-06-30T18:00:00Z"
        )
        raise CommandRefused(message) from error
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def usage_table(rows: Sequence[Mapping[str, Any]], by: Sequence[str], total: Mapping[str, Any]) -> Table:
    table = Table(*by, box=None, pad_edge=False, show_footer=bool(by))
    figures = [_figures(row) for row in rows]
    of_total = _figures(total)
    if by:
        table.columns[0].footer = "total"
    for name, text in of_total.items():
        table.add_column(name, justify="right", footer=f"[bold]{text}[/]")
    for row, cells in zip(rows, figures, strict=True):
        table.add_row(*(_named(dimension, row[dimension]) for dimension in by), *cells.values())
    if not by:
        table.show_footer = False
    return table


def pools_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("pool", box=None, pad_edge=False)
    for heading in ("paid h", "used h", "lost h", "idle h", "used", "paid", "idle", "per 1M", "breaks even", "seen h"):
        table.add_column(heading, justify="right")
    for row in rows:
        hours = [f"{row[f'{name}_accelerator_seconds'] / 3600:,.2f}" for name in ("paid", "used", "lost", "idle")]
        table.add_row(
            row["pool"],
            *hours,
            "–" if row["used_ratio"] is None else f"{row['used_ratio']:.1%}",
            _money(row["paid_cost"]),
            _money(row["idle_cost"]),
            _money(row["cost_per_million_tokens"]),
            _money(row["break_even_per_million_tokens"]),
            f"{row['minutes_seen'] / 60:,.1f}",
        )
    return table


def notes(answer: Mapping[str, Any], now_unix_s: float) -> list[str]:
    """Return the notes below the table: period, units, missing reports and omitted rows."""
    begins, ends = (_named("hour", answer[name]) for name in ("since_unix_s", "until_unix_s"))
    lines = [f"whole hours of UTC, {begins} to {ends}; acc. s are seconds of one accelerator, cost is in your money"]
    told = answer["last_told_unix_s"]
    if told is not None and now_unix_s - told > _LATE_S:
        lines.append(f"no gateway has reported its usage for {(now_unix_s - told) / 60:,.0f} minutes")
    if answer["has_more"]:
        lines.append(f"only the first {len(answer['data']):,} rows; the total is of all")
    return lines


def _period(since: str, until: str | None, now_unix_s: float) -> dict[str, Any]:
    period = {"since": moment_unix_s(since, now_unix_s)}
    return period if until is None else period | {"until": moment_unix_s(until, now_unix_s)}


def _figures(row: Mapping[str, Any]) -> dict[str, str]:
    shown = {
        "requests": f"{row['requests']:,}",
        "failed": f"{row['failed']:,}",
        "prompt": f"{row['prompt_tokens']:,}",
        "cached": f"{row['cached_tokens']:,}",
        "completion": f"{row['completion_tokens']:,}",
        "KV tok. s": f"{row['kv_token_seconds']:,.0f}",
        "acc. s": f"{row['accelerator_seconds']:,.1f}",
        "cost": _money(row["cost"]),
        "per 1M": _money(row["cost_per_million_tokens"]),
    }
    lost = {"lost acc. s": f"{row['lost_accelerator_seconds']:,.1f}"} if "lost_accelerator_seconds" in row else {}
    return shown | lost


def _named(dimension: str, value: Any) -> str:
    if dimension in _TIMES:
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d" if dimension == "day" else "%Y-%m-%d %H:%M")
    return str(value) or "(others)"


def _money(amount: float | None) -> str:
    """Format an amount with two decimals, or four below 1 because a request costs thousandths; a dash for None."""
    if amount is None:
        return "–"
    return f"{amount:,.2f}" if amount >= 1 or amount == 0 else f"{amount:.4f}"
