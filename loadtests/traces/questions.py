"""Durations of the command line's queries, on ten million rows of a week in the local store."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from functions.telemetry.store.client import TraceStore
from functions.telemetry.store.questions import Search, find, search
from functions.telemetry.trace_row import TraceRow
from loadtests.traces.rows import generated
from loadtests.traces.store_process import store_process

_HOUR_S, _DAY_S = 3600, 24 * 3600
_WEEK_S = 7 * _DAY_S
_BATCH_ROWS = 250_000  # with more, the digests of all hours together would exceed a statement's memory limit
_TRIES = 5
_ROLLUP = (
    "SELECT hour, model_id, sum(requests) AS n FROM shoal.requests_hourly WHERE tenant_id = 'tenant-7' "
    "GROUP BY hour, model_id"
)


def questions(folder: Path, rows: int) -> None:
    with store_process(folder / "store") as process:
        store = process.client()
        _fill(store, rows)
        now_s = time.time()
        some = search(store, Search(now_s - 3 * _DAY_S, limit=1))[0]
        for name, ask in _queries(store, some, now_s).items():
            times_ms = []
            for _ in range(_TRIES):
                began_s = time.monotonic()
                size = ask()
                times_ms.append((time.monotonic() - began_s) * 1000)
            median_ms = sorted(times_ms)[_TRIES // 2]
            print(f"{name:46} first {times_ms[0]:6.0f} ms, median {median_ms:6.0f} ms, {size} rows", flush=True)
        store.close()


def _fill(store: TraceStore, rows: int) -> None:
    store.migrate(30)
    since_s = int(time.time()) - _WEEK_S
    began_s, part_s = time.monotonic(), _WEEK_S * _BATCH_ROWS // rows
    for number in range(rows // _BATCH_ROWS):
        store.execute(generated(_BATCH_ROWS, since_s + number * part_s, part_s, number * _BATCH_ROWS))
    print(f"{rows} rows made in {time.monotonic() - began_s:.0f} s", flush=True)
    on_disk = store.select(
        "SELECT sum(bytes_on_disk) AS b, sum(rows) AS n, count() AS p FROM system.parts "
        "WHERE active AND table = 'requests'"
    )[0]
    print(f"on disk {on_disk['b'] / on_disk['n']:.0f} bytes a row, {on_disk['p']} parts")


def _queries(store: TraceStore, some: TraceRow, now_s: float) -> dict[str, Callable[[], int]]:
    """Return the queries by label; each returns its number of rows."""
    hour_s, day_s, week_s = now_s - _HOUR_S, now_s - _DAY_S, now_s - _WEEK_S
    searches = {
        "the last hour": Search(hour_s),
        "a tenant's last hour": Search(hour_s, tenant="tenant-7"),
        "a tenant's week, slowest": Search(week_s, tenant="tenant-7", slowest_first=True),
        "a model's day, errors": Search(day_s, model="tenant-7/m1", errors=True),
        "a model's week": Search(week_s, model="tenant-7/m1"),
        "a replica's day, slowest": Search(day_s, replica="replica-7", slowest_first=True),
        "a pool's week, over 15 s": Search(week_s, pool="pool-3", over_ms=15_000.0),
        "one trace of the week": Search(week_s, trace_id=some.trace_id),
        "the week, errors": Search(week_s, errors=True),
        "the week, slowest": Search(week_s, slowest_first=True),
        "the week, 10,000 newest": Search(week_s, limit=10_000),
    }
    return {
        "one request by its id": lambda: int(find(store, some.request_id) is not None),
        **{name: partial(_size, store, each) for name, each in searches.items()},
        "a tenant's week by hour and model, totals": lambda: len(store.select(_ROLLUP)),
    }


def _size(store: TraceStore, asked: Search) -> int:
    return len(search(store, asked))
