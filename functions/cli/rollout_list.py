"""Rollouts, one a line."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from functions.cli.rollout_picture import rollout_of
from functions.cli.rollout_tables import STATE_COLOURS, number_words, seconds_words


def rollout_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("rollout", "model", "from → to", "state", "share", "stage", "for", box=None, pad_edge=False)
    table.columns[0].no_wrap = True
    for column in (4, 5, 6):
        table.columns[column].justify = "right"
    now_unix_s = time.time()
    for row in rows:
        it = rollout_of(row)
        table.add_row(
            it.id,
            escape(f"{it.model}:{it.channel}"),
            escape(f"{it.from_version} → {it.to_version}"),
            f"[{STATE_COLOURS[it.state]}]{it.state.replace('_', ' ')}[/]",
            number_words(it.percent, "%").replace(".0", ""),
            f"{it.stage + 1}/{len(it.policy.stages)}",
            seconds_words(max(0.0, now_unix_s - it.stage_began_unix_s)) if it.is_active else "",
        )
    return table
