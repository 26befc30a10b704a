"""CPU time of the fast lane without rows, with rows and with spans: alternating in one run, minimum of many repeats.

Only the loop's thread is counted. The cost of the writing thread is printed separately.
"""

import time
from collections.abc import Callable
from pathlib import Path

from functions.gateway.limits import Limits
from functions.telemetry import otlp
from functions.telemetry.trace_row import encode
from functions.telemetry.trace_sink import TraceSink
from loadtests.bench.bare import Bare
from loadtests.bench.load import request
from loadtests.bench.parts import body

_ROUNDS, _RUNS = 500, 25  # many short repeats: the minimum is then one without disturbance
_REPLICAS = 32
_ALL_SAMPLED = Limits(sampled_traces=2**32)
_WITHOUT = "no rows"


async def lane(folder: Path) -> None:
    files = {name: TraceSink(folder / name, time.time) for name in ("rows", "spans")}
    bares = {
        _WITHOUT: Bare(_REPLICAS, traced=False),
        "rows in memory": Bare(_REPLICAS),
        "rows to files": Bare(_REPLICAS, traces=files["rows"]),
        "rows to files, spans of all": Bare(_REPLICAS, _ALL_SAMPLED, files["spans"]),
    }
    for sink in files.values():
        sink.start()
    found_us = _alternating({name: _asking(bare) for name, bare in bares.items()})
    for name, least_us in found_us.items():
        print(f"a request of 1 KiB, {name:28} {least_us:6.1f} us, {least_us - found_us[_WITHOUT]:+5.1f}")
    traced = bares["rows to files, spans of all"].gateway.services.traces.recent[-1]
    row = traced.row()
    works: dict[str, Callable[[], object]] = {
        "its row, made and encoded": lambda: encode(traced.row()),
        "its spans, made and encoded": lambda: otlp.document("shoal-gateway", "g", otlp.spans(row)),
    }
    for name, least_us in _alternating(works).items():
        print(f"off the lane: {name:34} {least_us:6.1f} us")
    for sink in files.values():
        sink.close()
        assert sink.spooled_total > 0 and sink.dropped_total == 0, "rows went to the files"


def _asking(bare: Bare) -> Callable[[], object]:
    request_bytes = request(bare.target, body(1024))
    return lambda: bare.serve_whole_request(request_bytes)


def _alternating(works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the minimum of many repeats in microseconds, by name."""
    found_us = dict.fromkeys(works, float("inf"))
    for _ in range(_ROUNDS):
        for name, work in works.items():
            began_s = time.thread_time()
            for _ in range(_RUNS):
                work()
            found_us[name] = min(found_us[name], (time.thread_time() - began_s) / _RUNS * 1e6)
    return found_us
