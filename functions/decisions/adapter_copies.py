"""Whether a hot adapter should be loaded once more: where that would answer sooner, its load included.

    elsewhere = predicted there (nothing cached) + load,   load = DISK_MS with the files on its node, else STORE_MS
    a copy is wanted where the least elsewhere < predicted at the best holder

The request that finds out goes to the holder all the same; the copy is for those after it. Looked at only once the best
holder is predicted above DISK_MS, below which no load could pay. Replicas without room are not asked.
Worked example (test_worked_example_from_the_prologue): the only holder is predicted at 900 ms. A has the files on its
disk and is predicted at 100: 100 + 300 = 400, less than 900: a copy on A. B, idle, would have to fetch them: 1,500.

Neighbours: `routing` asks, `functions.gateway.adapter_copies` has it loaded.
"""

from collections.abc import Collection

from xxhash import xxh3_64_intdigest

from functions.api.ids import EngineName, ReplicaId
from functions.decisions.own_load import OwnLoad
from functions.decisions.prediction import predict
from functions.decisions.replicas import PoolIndex, ReplicaView, Row
from functions.decisions.routing_candidates import SCAN_MAX, draw, heaviest
from functions.decisions.routing_request import Prediction, RouteRequest

DISK_MS = 300.0  # measured: 0.1 to 0.3 s with the agent's round trip
STORE_MS = 1_500.0  # a fetch of some ten megabytes from S3 on top


def copy_elsewhere(
    request: RouteRequest, pool: PoolIndex, best: Prediction, load: OwnLoad, excluded: Collection[ReplicaId]
) -> ReplicaId | None:
    """Where a second copy would have answered sooner than the best of the holders."""
    if best.total_ms <= DISK_MS:
        return None
    holders = pool.holders.get(request.engine_name, ())
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
    """What loading the adapter there takes."""
    return DISK_MS if replica.has_on_disk(name) else STORE_MS


def _looked_at(request: RouteRequest, pool: PoolIndex) -> list[Row]:
    if len(pool.rows) <= SCAN_MAX:
        return pool.rows
    return draw(pool.rows, xxh3_64_intdigest(request.tie_key.encode()))


def _may_load(replica: ReplicaView) -> bool:
    return replica.peer_port > 0 and replica.adapter_room > 0
