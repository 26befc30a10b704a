"""The registry's own samples of each pool, from heartbeats and gateways: every ten seconds, for an hour.

They replace Prometheus if it is not configured or unavailable. Each registry takes its own, from its start on. Their
number is limited: POOLS_MAX pools, and SAMPLES_MAX samples per figure. A pool without reports for an hour is deleted.
An unknown figure is stored as a gap, never as zero.
"""

import asyncio
import math
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, get_args

from functions.fleet.heartbeat import Heartbeat
from functions.fleet.pool_board import PoolSum
from functions.registry.fleet_watch import FleetWatch

Figure = Literal["ttft_p99_s", "gap_p99_s", "queue_s", "kv_usage_ratio", "tokens_per_s"]
FIGURES: Final[tuple[Figure, ...]] = get_args(Figure)
EVERY_S = 10.0
SAMPLES_MAX = 360
POOLS_MAX = 200
MOST_BYTES = POOLS_MAX * (len(FIGURES) + 1) * SAMPLES_MAX * 8

Row = Mapping[Figure, float | None]


def rows_of(sums: Mapping[str, PoolSum], heartbeats: Iterable[Heartbeat]) -> dict[str, Row]:
    """Return the current figures by pool, from its gateways' reports and the heartbeats of its ready replicas."""
    ready: dict[str, list[Heartbeat]] = {}
    for each in heartbeats:
        if each.phase == "ready":
            ready.setdefault(each.pool, []).append(each)
    return {pool: _row(sums.get(pool), ready.get(pool, [])) for pool in sorted(sums.keys() | ready.keys())}


def _row(told: PoolSum | None, ready: Sequence[Heartbeat]) -> Row:
    return {
        "ttft_p99_s": told.ttft_p99_s if told is not None else None,
        "gap_p99_s": told.gap_p99_s if told is not None else None,
        "queue_s": told.queue_s if told is not None else None,
        "kv_usage_ratio": max((each.kv_usage_ratio for each in ready), default=None),
        "tokens_per_s": sum(each.decode_tokens_per_s for each in ready) if ready else None,
    }


class Samples:
    """Samples of all pools. Times are Unix seconds, passed as arguments. Owned by one event loop."""

    def __init__(self) -> None:
        self._pools: dict[str, _Ring] = {}

    def add_rows(self, rows: Mapping[str, Row], now_unix_s: float) -> None:
        for pool, row in rows.items():
            if pool in self._pools or len(self._pools) < POOLS_MAX:
                self._pools.setdefault(pool, _Ring()).add(now_unix_s, row)
        kept_s = EVERY_S * SAMPLES_MAX
        self._pools = {pool: ring for pool, ring in self._pools.items() if now_unix_s - ring.newest_s <= kept_s}

    def series(self, start_s: float, step_s: float, points: int) -> dict[Figure, dict[str, list[float | None]]]:
        """Return for each figure and pool the largest sample of each step, because a mean would hide peaks; None for
        steps without one. Pools without any sample are left out."""
        made: dict[Figure, dict[str, list[float | None]]] = {figure: {} for figure in FIGURES}
        for pool, ring in self._pools.items():
            for figure, values in ring.maximum_by_step(start_s, step_s, points).items():
                if any(value is not None for value in values):
                    made[figure][pool] = values
        return made


class _Ring:
    __slots__ = ("_at", "_columns")

    def __init__(self) -> None:
        self._at = array("d")
        self._columns = {figure: array("d") for figure in FIGURES}

    @property
    def newest_s(self) -> float:
        return self._at[-1]

    def add(self, now_s: float, row: Row) -> None:
        columns = (self._at, *self._columns.values())
        values = (now_s, *(_or_hole(row.get(figure)) for figure in FIGURES))
        for column, value in zip(columns, values, strict=True):
            column.append(value)
            del column[:-SAMPLES_MAX]

    def maximum_by_step(self, start_s: float, step_s: float, points: int) -> dict[Figure, list[float | None]]:
        made: dict[Figure, list[float | None]] = {figure: [None] * points for figure in FIGURES}
        for index, at_s in enumerate(self._at):
            place = math.floor((at_s - start_s) / step_s)
            if 0 <= place < points:
                for figure, values in made.items():
                    value = self._columns[figure][index]
                    before = values[place]
                    if not math.isnan(value) and (before is None or value > before):
                        values[place] = value
        return made


def _or_hole(value: float | None) -> float:
    return math.nan if value is None else value


async def sample(samples: Samples, fleet: FleetWatch, wall_clock: Callable[[], float] = time.time) -> None:
    """Add a sample of all pools every EVERY_S until cancelled, except while the bus is unavailable."""
    while True:
        if fleet.bus_connected:
            samples.add_rows(rows_of(fleet.pools.sums(), (seen.heartbeat for seen in fleet.replicas())), wall_clock())
        await asyncio.sleep(EVERY_S)
