"""The lane with and without spans, alternating, by the least of many repeats."""

import time

from functions.gateway.limits import Limits
from functions.telemetry import otlp
from functions.telemetry.trace_row import encode
from loadtests.bench.bare import Bare
from loadtests.bench.load import request
from loadtests.bench.parts import body

_ROUNDS, _RUNS = 20, 200


async def lane() -> None:
    found: dict[str, float] = {}
    bares = {"off": Bare(32), "on": Bare(32, Limits(sampled_traces=2**32))}
    wires = {name: request(bare.target, body(1024)) for name, bare in bares.items()}
    for _ in range(_ROUNDS):
        for name, bare in bares.items():
            began_s = time.thread_time()
            for _ in range(_RUNS):
                bare.whole(wires[name])
            found[name] = min(found.get(name, 1e9), (time.thread_time() - began_s) / _RUNS * 1e6)
    print(f"a request of 1 KiB, spans off {found['off']:.1f} us, on {found['on']:.1f} us")
    traced = bares["on"].gateway.services.traces.recent[-1]
    row = traced.row()
    for name, work in (
        ("its row, made and encoded", lambda: encode(traced.row())),
        ("its spans, made and encoded", lambda: otlp.document("shoal-gateway", "g", otlp.spans(row))),
    ):
        least_us = 1e9
        for _ in range(_ROUNDS):
            began_s = time.thread_time()
            for _ in range(_RUNS):
                work()
            least_us = min(least_us, (time.thread_time() - began_s) / _RUNS * 1e6)
        print(f"off the lane: {name} {least_us:.1f} us")
