"""Location of a pool's adapters: in an engine, on a node's disk, or only in the store. Pure.

Each version counts once, in the best tier that any ready replica has it in. A disk's content is known from its bloom
filter, so one in a hundred of the adapters found on a disk is not there. Neighbours: the console and `shoal top` show
the result.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from functions.api.ids import EngineName
from functions.decisions.distribution import bloom
from functions.fleet.heartbeat import Heartbeat


@dataclass(frozen=True, slots=True)
class Tiers:
    pool: str
    registered: int
    in_engine: int
    on_disk: int
    in_store: int
    failing: Mapping[str, str]  # engine name -> error text of a replica


def tiers_of(adapters: Iterable[tuple[str, EngineName]], heartbeats: Sequence[Heartbeat]) -> tuple[Tiers, ...]:
    """Return how many adapters of each pool are on which storage tier, by pool name; pools without adapters are left
    out. `adapters` are pairs of pool and engine name."""
    names: dict[str, set[EngineName]] = {}
    for pool, name in adapters:
        names.setdefault(pool, set()).add(name)
    return tuple(_of_pool(pool, names[pool], heartbeats) for pool in sorted(names))


def _of_pool(pool: str, names: set[EngineName], heartbeats: Sequence[Heartbeat]) -> Tiers:
    ready = [heartbeat for heartbeat in heartbeats if heartbeat.pool == pool and heartbeat.phase == "ready"]
    loaded = names & {EngineName(name) for heartbeat in ready for name in heartbeat.adapters}
    disks = [disk for heartbeat in ready if (disk := bloom.decode(heartbeat.disk_bloom)) is not None]
    on_disk = {name for name in names - loaded if any(disk.holds_adapter(name) for disk in disks)}
    failing = {name: words for heartbeat in ready for name, words in heartbeat.adapter_failures.items()}
    return Tiers(pool, len(names), len(loaded), len(on_disk), len(names) - len(loaded) - len(on_disk), failing)
