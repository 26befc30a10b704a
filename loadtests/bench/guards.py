"""`python -m loadtests.bench.guards`: cost of each guard of the fast lane, in microseconds per request and per chunk.

Each guard is replaced here by nothing, or by the minimum that an honest client needs; no deployed gateway can be
configured so. As in `bare`, no sockets are involved. A slice with all guards runs right before or after a slice without
the guard, so that both see the same few milliseconds of the machine. Ratios are shown as a median and the middle half.
`nothing` compares a complete gateway with itself: a ratio that is no further from 1 is noise.

    head         limits of a head's bytes and headers
    connections  limits of connections, known and unknown, and the timeout between two requests
    bodies       limit of a body, and the memory that all bodies share
    JSON         limits of depth and number of values
    fields       allow-list of the route
    quarantine   quarantine of prompts on which replicas fail
    silence      detection of silent replicas with running requests
"""

import argparse
import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from statistics import median, quantiles
from typing import Any
from unittest.mock import patch

import orjson

from functions.api.ids import ReplicaId
from functions.gateway.http import lane
from functions.gateway.http.lane import LaneProtocol
from functions.gateway.intake import fields, intake
from functions.gateway.limits import Limits
from functions.gateway.routing.silence import Silence
from functions.gateway.services import Services
from functions.http.connections import Connections
from loadtests.bench import engine
from loadtests.bench.bare import Bare
from loadtests.bench.load import request
from loadtests.bench.parts import body

_REQUEST_BYTES = {"request 1 KiB": 1024, "request 200 KiB": 200 * 1024}
_CHUNK = "chunk"
_RUNS = {"request 1 KiB": 40, "request 200 KiB": 10, _CHUNK: 400}  # a slice of some 5 ms
_REPLICAS = 32
_UNBOUNDED = 1 << 62


class _AnyHead(LaneProtocol):
    __slots__ = ()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))


class _AnyTime(LaneProtocol):
    __slots__ = ()

    def _enter(self, phase: str, within_s: float) -> None:
        self._phase = phase


class _AnyBody(LaneProtocol):
    __slots__ = ()

    def on_body(self, body: bytes) -> None:
        self._body = body if not self._body else bytes(self._body) + body


class _Anything(_AnyHead, _AnyTime, _AnyBody):
    __slots__ = ()


class _AnyConnections(Connections):
    def add(self, connection: object, address: str = "") -> bool:
        return True

    def discard(self, connection: object) -> None: ...

    def mark_known(self, connection: object) -> None: ...

    def mark_active(self, connection: object) -> None: ...


class _Deaf(Silence):
    __slots__ = ()

    def record_bytes(self, replica_id: ReplicaId, now_s: float) -> None: ...


def _uncounted(services: Services) -> Services:
    return replace(services, connections=_AnyConnections(_UNBOUNDED))


def _deaf(services: Services) -> Services:
    services.router.silence = _Deaf()
    return services


@dataclass(frozen=True, slots=True)
class Without:
    """The replacements that make a gateway without one guard or without all."""

    protocol: type[LaneProtocol] = LaneProtocol
    limits: Limits = Limits()  # noqa: RUF009 - frozen
    others: tuple[Callable[[Services], Services], ...] = ()
    replaced: tuple[tuple[Any, str, Any], ...] = ()  # module, name, replacement

    def bare(self) -> Bare:
        def other(services: Services) -> Services:
            for each in self.others:
                services = each(services)
            return services

        return Bare(_REPLICAS, self.limits, lane=self.protocol, other=other)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        with ExitStack() as stack:
            for module, name, by in self.replaced:
                stack.enter_context(patch.object(module, name, by))
            yield


_LEDGER = (lane, "announced_bytes", lambda headers: 0)
_JSON = (intake, "parse_object", lambda content, depth, values: orjson.loads(content))
_FIELDS = (fields, "check_fields", lambda content, table: None)
_FORGIVING = Limits(quarantine_after_replicas=0)
GUARDS = {
    "nothing": Without(),
    "head": Without(_AnyHead),
    "connections": Without(_AnyTime, others=(_uncounted,)),
    "bodies": Without(_AnyBody, replaced=(_LEDGER,)),
    "JSON": Without(replaced=(_JSON,)),
    "fields": Without(replaced=(_FIELDS,)),
    "quarantine": Without(limits=_FORGIVING),
    "silence": Without(others=(_deaf,)),
    "all of them": Without(_Anything, _FORGIVING, (_uncounted, _deaf), (_LEDGER, _JSON, _FIELDS)),
}


def _works(without: Without) -> dict[str, Callable[[], object]]:
    """Return functions that process one request or chunk, each on its own gateway."""
    found: dict[str, Callable[[], object]] = {}
    with without.in_force():
        for name, size_bytes in _REQUEST_BYTES.items():
            bare = without.bare()
            wire = request(bare.target, body(size_bytes))
            found[name] = lambda bare=bare, wire=wire: bare.serve_whole_request(wire)  # type: ignore[misc]
        stream = without.bare().begin_stream()
        found[_CHUNK] = lambda: stream.data_received(engine.EVENT_CHUNK)
    return found


def _slice_us(work: Callable[[], object], runs: int) -> float:
    began_s = time.thread_time()
    for _ in range(runs):
        work()
    return (time.thread_time() - began_s) / runs * 1e6


async def measure(rounds: int) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Return pairs of microseconds with and without the guard, by guard and by kind of work."""
    with_all = _works(Without())
    lacking = {name: _works(without) for name, without in GUARDS.items()}
    pairs: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for number in range(rounds + 1):  # round 0 is the warm-up
        for name, without in GUARDS.items():
            for what, runs in _RUNS.items():
                found_us = {}
                for is_guarded in (number % 2 == 0, number % 2 == 1):  # alternate: the first slice warms the caches
                    with (Without() if is_guarded else without).in_force():
                        found_us[is_guarded] = _slice_us((with_all if is_guarded else lacking[name])[what], runs)
                if number:
                    pairs.setdefault((name, what), []).append((found_us[True], found_us[False]))
    return pairs


def _line(name: str, what: str, pairs: list[tuple[float, float]]) -> str:
    ratios = [guarded_us / bare_us for guarded_us, bare_us in pairs]
    low, _, high = quantiles(ratios, n=4)
    with_us, without_us = (min(each) for each in zip(*pairs, strict=True))
    return f"{name:12} {what:15} {with_us:8.2f} {without_us:8.2f}   {median(ratios):6.3f} [{low:.3f}-{high:.3f}]"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench.guards")
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    found = asyncio.run(measure(options.rounds))
    print(f"least of {options.rounds} slices, us; load average {os.getloadavg()[0]:.1f}")
    print(f"{'guard':12} {'':15} {'with':>8} {'without':>8}   with / without: median [middle half]")
    for (name, what), pairs in sorted(found.items(), key=lambda each: [*_RUNS].index(each[0][1])):
        print(_line(name, what, pairs))
