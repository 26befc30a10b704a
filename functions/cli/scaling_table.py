"""How many replicas each pool is to have, and why: a part of `shoal status`."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table


def scaling_table(scaling: Sequence[Mapping[str, Any]], now_unix_s: float | None = None) -> Table | None:
    """None where no pool is scaled and none is held back."""
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
