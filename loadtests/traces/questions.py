"""What the command line asks, of ten million rows of a week in the local store."""

import time
from pathlib import Path

from functions.telemetry.store.questions import Search, find, search
from loadtests.traces.rows import generated
from loadtests.traces.store_process import store_process

_WEEK_S = 7 * 24 * 3600
_BATCH_ROWS = 250_000  # of more, the digests of all hours at once would pass a statement's memory
_TRIES = 5


def questions(folder: Path, rows: int) -> None:
    with store_process(folder / "store") as process:
        store = process.client()
        store.migrate(30)
        since_s = int(time.time()) - _WEEK_S
        began_s, part_s = time.monotonic(), _WEEK_S * _BATCH_ROWS // rows
        for number in range(rows // _BATCH_ROWS):
            store.order(generated(_BATCH_ROWS, since_s + number * part_s, part_s, number * _BATCH_ROWS))
        print(f"{rows} rows made in {time.monotonic() - began_s:.0f} s")
        on_disk = store.ask(
            "SELECT sum(bytes_on_disk) AS b, sum(rows) AS n, count() AS p FROM system.parts "
            "WHERE active AND table = 'requests'"
        )[0]
        print(f"on disk {on_disk['b'] / on_disk['n']:.0f} bytes a row, {on_disk['p']} parts")
        now_s = time.time()
        some = search(store, Search(now_s - 3 * 24 * 3600, limit=1))[0]
        asked = {
            "one request by its id": lambda: find(store, some.request_id),
            "the last hour, newest": lambda: search(store, Search(now_s - 3600)),
            "a tenant's last hour": lambda: search(store, Search(now_s - 3600, tenant="tenant-7")),
            "a tenant's week, slowest": lambda: search(
                store, Search(now_s - _WEEK_S, tenant="tenant-7", slowest_first=True)
            ),
            "a model's day, errors": lambda: search(store, Search(now_s - 86_400, model="tenant-7/m1", errors=True)),
            "the week, errors": lambda: search(store, Search(now_s - _WEEK_S, errors=True)),
            "the week, slowest": lambda: search(store, Search(now_s - _WEEK_S, slowest_first=True)),
            "the week by hour and model, from the rollup": lambda: store.ask(
                "SELECT hour, model_id, sum(requests) AS n FROM shoal.requests_hourly WHERE tenant_id = 'tenant-7' "
                "GROUP BY hour, model_id"
            ),
        }
        for name, ask in asked.items():
            times_ms = []
            for _ in range(_TRIES):
                began_s = time.monotonic()
                answer = ask()
                times_ms.append((time.monotonic() - began_s) * 1000)
            size = len(answer) if isinstance(answer, list) else int(answer is not None)
            print(f"{name:45} first {times_ms[0]:7.0f} ms, median {sorted(times_ms)[_TRIES // 2]:7.0f} ms, {size} rows")
        store.close()
