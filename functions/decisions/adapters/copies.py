"""Whether a hot adapter should be loaded once more: where that would answer sooner, its load included.

    elsewhere = predicted there (nothing cached) + load,   load = DISK_MS with the files on its node, else STORE_MS
                                                                + EVICTION_MS where only its headroom is left
    a copy is wanted where the least elsewhere < predicted at the best holder

The request that finds out goes to the holder all the same; the copy is for those after it. Looked at only once the best
holder is predicted above DISK_MS, below which no load could pay. Replicas without room are not asked.
Worked example (test_worked_example_from_the_prologue): the only holder is predicted at 900 ms. A has the files on its
disk and is predicted at 100: 100 + 300 = 400, less than 900: a copy on A. B, idle, would have to fetch them: 1,500.

An agent keeps an eighth of its places free, so that a cold load need not wait until another adapter is withdrawn
(`adapter_state.AdapterPolicy.headroom`). A copy that takes one of those is paid by the next cold load, which waits for
that long; and whom it pushes out in the end is asked for again.
Worked example (test_a_copy_that_takes_the_headroom_must_be_worth_an_eviction): with 14 of 16 places taken, A counts
100 + 300 + 3,000 = 3,400: no copy for a holder predicted at 900, and one for a holder predicted at 4,000.
Replayed over 200 adapters and 128 places (docs/routing.md), copies at the price of a load alone were 168 in four
minutes; each pushed another out, cold starts went from 6 to 9 % of all requests, and p99 from 2.0 to 5.1 s.

Neighbours: `routing` asks, `functions.gateway.routing.adapter_copies` has it loaded.
"""

from collections.abc import Collection

from xxhash import xxh3_64_intdigest

from functions.api.ids import EngineName, ReplicaId
from functions.decisions.routing.candidates import SCAN_MAX, draw, heaviest
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.prediction import predict
from functions.decisions.routing.replicas import PoolIndex, ReplicaView, Row
from functions.decisions.routing.request import Prediction, RouteRequest

DISK_MS = 300.0  # measured: 0.1 to 0.3 s with the agent's round trip
HEADROOM_PART = 8  # of an agent's places one is kept free in so many
STORE_MS = 1_500.0  # a fetch of some ten megabytes from S3 on top
EVICTION_MS = 3_000.0  # what a withdrawal takes (`AdapterPolicy.withdraw_s`)


def copy_elsewhere(
    request: RouteRequest, pool: PoolIndex, best: Prediction, load: OwnLoad, excluded: Collection[ReplicaId]
) -> ReplicaId | None:
    """Where a second copy would have answered sooner than the best of the holders."""
    if best.total_ms <= DISK_MS:
        return None
    holders = pool.holders.get(request.engine_name, ())
    if len(holders) == len(pool.ready):
        return None  # there is no elsewhere
    rows = [row for row in _looked_at(request, pool) if _may_load(row[6]) and row[0] not in holders]
    rows = [row for row in rows if row[0] not in excluded]
    if not rows:
        return None
    times = {row[0]: predict(request, row[6], load).total_ms + load_ms(row[6], request.engine_name) for row in rows}
    least_ms = min(times.values())
    if least_ms >= best.total_ms:
        return None
    return heaviest([row for row in rows if times[row[0]] == least_ms], request.engine_name)[0]


def load_ms(replica: ReplicaView, name: EngineName) -> float:
    """What loading the adapter there takes, and takes from others."""
    eviction_ms = EVICTION_MS if _only_headroom(replica) else 0.0
    return (DISK_MS if replica.has_on_disk(name) else STORE_MS) + eviction_ms


def _only_headroom(replica: ReplicaView) -> bool:
    places = len(replica.adapters) + replica.adapter_room
    return replica.adapter_room <= max(1, places // HEADROOM_PART)


def _looked_at(request: RouteRequest, pool: PoolIndex) -> list[Row]:
    if len(pool.rows) <= SCAN_MAX:
        return pool.rows
    return draw(pool.rows, xxh3_64_intdigest(request.tie_key.encode()))


def _may_load(replica: ReplicaView) -> bool:
    return replica.peer_port > 0 and replica.adapter_room > 0
