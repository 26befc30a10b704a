"""`python -m loadtests.bench.bare`: CPU time of the fast lane's own Python, in microseconds per request and per chunk.

Both transports are fakes without sockets, so only parsing, deciding, accounting and formatting are measured. The
minimum of many repeats hardly varies on a busy machine, unlike the figures of `make bench`. Compare it before and after
a change.
"""

import argparse
import asyncio
import cProfile
import pstats
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from functions.api import keys
from functions.api.ids import ReplicaId
from functions.api.snapshot import content_hash
from functions.decisions.catalogue import Catalogue
from functions.gateway.assembly import make_services
from functions.gateway.gateway import Gateway
from functions.gateway.http.lane import LaneProtocol
from functions.gateway.limits import Limits
from functions.gateway.metrics import Metrics
from functions.gateway.request.upstream import UpstreamConnection
from functions.gateway.services import Services
from functions.gateway.tracing import offer
from functions.telemetry.trace_sink import TraceSink
from loadtests.bench import engine
from loadtests.bench.gateway import snapshot_of
from loadtests.bench.heartbeats import heartbeat
from loadtests.bench.load import Target, request
from loadtests.bench.parts import body

_PEPPER = "0" * 32
_REPEATS = 15


class Transport:
    """A transport that passes each write to `on_write` and never blocks."""

    def __init__(self, on_write: Callable[[bytes], None] = lambda data: None) -> None:
        self.write = on_write

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str) -> None:
        """Return None: there is no socket."""

    def set_write_buffer_limits(self, high: int) -> None:
        """Ignore the limits: writes never wait."""

    def pause_reading(self) -> None:
        pass

    resume_reading = abort = close = pause_reading


class Bare:
    """A gateway, one client connection, and one idle connection to each of its replicas."""

    def __init__(
        self,
        replicas: int,
        limits: Limits | None = None,
        traces: TraceSink | None = None,
        *,
        traced: bool = True,
        lane: type[LaneProtocol] = LaneProtocol,
        other: Callable[[Services], Services] = lambda services: services,
    ) -> None:
        """Build the gateway. `traced=False` removes the trace rows, `lane` replaces the protocol class and `other`
        replaces services; no deployed gateway can be configured so."""
        api_key = keys.mint("bench", "bench", bytes(32))
        limits = replace(limits or Limits(), upstream_keep_alive_s=1e9)  # fake connections do not expire
        services = make_services(
            pepper=_PEPPER.encode(),
            limits=limits,
            metrics=Metrics(),
            clock=time.monotonic,
            wall_clock=time.time,
            traces=traces,
        )
        if not traced:
            others = tuple(each for each in services.end_listeners if getattr(each, "func", None) is not offer)
            assert len(others) == len(services.end_listeners) - 1, "rows are offered by one listener"
            services = replace(services, end_listeners=others)
        gateway = self.gateway = Gateway(other(services))
        snapshot = snapshot_of(api_key, _PEPPER)
        gateway.swap(Catalogue(snapshot, content_hash(snapshot)))
        self.asked: UpstreamConnection | None = None
        for number in range(replicas):
            gateway.receive_heartbeat(heartbeat(number, 10_000 + number, 1))
            connection = UpstreamConnection(services.upstreams, ReplicaId(f"bench-{number}"))
            connection.connection_made(cast(Any, Transport(self._asks(connection))))
            services.upstreams.release(connection)
        self.target = Target(0, b"authorization: Bearer %b\r\n" % api_key.encode())
        self.client = lane(gateway, cast(Any, None), cast(Any, SimpleNamespace(connections=set())), {})
        self.client.connection_made(cast(Any, Transport()))

    def _asks(self, connection: UpstreamConnection) -> Callable[[bytes], None]:
        def write(data: bytes) -> None:
            self.asked = connection

        return write

    def serve_whole_request(self, request_bytes: bytes) -> None:
        self.client.data_received(request_bytes)
        cast(UpstreamConnection, self.asked).data_received(engine.ANSWER)

    def begin_stream(self) -> UpstreamConnection:
        self.client.data_received(request(self.target, body(1024, stream=True)))
        connection = cast(UpstreamConnection, self.asked)
        connection.data_received(engine.STREAM_HEAD + engine.EVENT_CHUNK)
        return connection


def _least_us(work: Callable[[], None], runs: int) -> float:
    best_us = float("inf")
    for _ in range(_REPEATS):
        began_s = time.thread_time()
        for _ in range(runs):
            work()
        best_us = min(best_us, (time.thread_time() - began_s) / runs * 1e6)
    return best_us


async def run(replicas: int, profiled: bool) -> None:
    for size_bytes in (1024, 8 * 1024, 64 * 1024, 200 * 1024):
        bare = Bare(replicas)
        request_bytes = request(bare.target, body(size_bytes))
        runs = max(20, 300 * 1024 // size_bytes)
        least_us = _least_us(partial(bare.serve_whole_request, request_bytes), runs)
        print(f"request of {size_bytes // 1024:3} KiB  {least_us:8.1f} us")
    bare = Bare(replicas)
    stream = bare.begin_stream()
    print(f"chunk of a stream   {_least_us(lambda: stream.data_received(engine.EVENT_CHUNK), 3000):8.1f} us")
    print(f"chunk with usage    {_least_us(lambda: stream.data_received(engine.COUNTED_CHUNK), 3000):8.1f} us")
    if profiled:
        bare = Bare(replicas)
        request_bytes = request(bare.target, body(1024))
        profile = cProfile.Profile()
        profile.enable()
        for _ in range(10_000):
            bare.serve_whole_request(request_bytes)
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench.bare")
    parser.add_argument("--replicas", type=int, default=32)
    parser.add_argument("--profile", action="store_true", help="print the time of a 1 KiB request by function")
    options = parser.parse_args()
    asyncio.run(run(options.replicas, options.profile))
