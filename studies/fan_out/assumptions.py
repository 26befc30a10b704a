"""Assumptions of a simulated fan-out. All figures but the rates were measured on the real node fetcher."""

from dataclasses import dataclass, field

from functions.decisions.distribution.swarm import SwarmPolicy
from functions.decisions.distribution.tracker import BoardPolicy


@dataclass(frozen=True, slots=True)
class Assumptions:
    nodes: int
    size_bytes: int
    chunk_bytes: int
    down_bytes_per_s: float  # for each node
    up_bytes_per_s: float
    store_bytes_per_s: float  # the store's total for all nodes
    latency_s: float = 0.002  # one way, between any two; includes the turn-around of a busy machine
    store_latency_s: float = 0.02  # until the first byte
    max_uploads: int = 4
    slices: int = 4  # slices of a chunk; transfers that share a link alternate slice by slice
    tick_s: float = 0.2
    start_spread_s: float = 0.5  # nodes start within this time
    hash_bytes_per_s: float = 1.2e9  # rate of the final check, sha256 on one core
    swarm: bool = True  # False: all nodes read from the store
    zones: int = 1
    killed: tuple[tuple[int, float], ...] = ()  # node, time
    corrupt: frozenset[int] = frozenset()  # nodes that send corrupt chunks
    store_down: tuple[float, float] | None = None  # from, until
    seed: int = 1
    policy: SwarmPolicy = field(default_factory=SwarmPolicy)
    board: BoardPolicy = field(default_factory=BoardPolicy)

    @property
    def chunks(self) -> int:
        return -(-self.size_bytes // self.chunk_bytes)

    @property
    def least_s(self) -> float:
        """Lower limit of the time by the links; see the worked example in the page on distribution."""
        supply = self.store_bytes_per_s + (self.nodes * self.up_bytes_per_s if self.swarm else 0.0)
        return max(
            self.size_bytes / self.down_bytes_per_s,
            self.size_bytes / self.store_bytes_per_s,
            self.nodes * self.size_bytes / supply,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    finished_s: tuple[float, ...]  # for the nodes that were not killed, ascending; each from its own start
    store_bytes: int
    peer_bytes: int
    failures: dict[str, int]
    announcements: int
    events: int

    @property
    def slowest_s(self) -> float:
        return self.finished_s[-1]

    @property
    def median_s(self) -> float:
        return self.finished_s[len(self.finished_s) // 2]
