"""CPU time of one routing decision, request and explanation included: the best of several rounds."""

import timeit
from collections.abc import Callable, Iterator
from time import process_time

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.api.snapshot import RoutingEntry
from functions.decisions.routing.choice import RouteRequest, route
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.replicas import PoolIndex, ReplicaView

_SIZES = (1, 8, 32, 33, 512, 2000)
_ROUNDS, _CALLS = 9, 2000
_KEY = "0123456789abcdef0123456789abcdef"
_POLICY = RoutingEntry("default", ("*",))


def table() -> str:
    lines = [f"{'replicas':>8} {'busy us':>8} {'6 hits us':>9} {'+ session, zone us':>18} {'all idle us':>11}"]
    for size in _SIZES:
        plain, hits, all_of_it, idle = _costs(size)
        lines.append(f"{size:8} {plain:8.1f} {hits:9.1f} {all_of_it:18.1f} {idle:11.1f}")
    return "\n".join(lines) + "\n"


def _costs(size: int) -> tuple[float, float, float, float]:
    index, quiet, load = PoolIndex(_replicas(size, busy=True)), PoolIndex(_replicas(size, busy=False)), OwnLoad()
    for number in range(0, size, 2):
        load.add_request(_name(number), 1000)
    hits = {_name(number): 512 * (number + 1) for number in range(min(size, 6))}
    base = EngineName("base")
    return (
        _us(lambda: route(RouteRequest(base, False, 800, _KEY), index, _POLICY, load)),
        _us(lambda: route(RouteRequest(base, False, 800, _KEY, hits), index, _POLICY, load)),
        _us(lambda: route(RouteRequest(base, False, 800, _KEY, hits, _name(3), "west"), index, _POLICY, load)),
        _us(lambda: route(RouteRequest(base, False, 800, _KEY), quiet, _POLICY, OwnLoad())),
    )


def _us(call: Callable[[], object]) -> float:
    timer = timeit.Timer(call, timer=process_time)
    return min(timer.repeat(_ROUNDS, _CALLS)) / _CALLS * 1e6


def _replicas(size: int, *, busy: bool) -> Iterator[ReplicaView]:
    for number in range(size):
        yield ReplicaView(
            id=_name(number),
            pool=PoolName("base"),
            host="10.0.0.1",
            port=8000,
            phase="ready",
            running=number % 7 if busy else 0,
            waiting=int(busy and number % 3 == 0),
            kv_usage_ratio=0.4,
            adapters=frozenset(),
            service_ms=50.0 + (number % 11 if busy else 0),
            prefill_ms_per_token=0.5,
            zone="west",
        )


def _name(number: int) -> ReplicaId:
    return ReplicaId(f"base-replica-{number:04d}")
