"""Placement of replicas on nodes: which replica fits where, and which are left over.

All accelerators of a replica are on one node, of the product that it requests. Large replicas are placed first, since
small ones fit into the rest. Among nodes with room, those with the fewest replicas of this pool come first (a failed
node should take one replica of each pool, not all of one), then the fullest (whole nodes stay free for large ones).
Worked example (test_large_replicas_are_packed_first): two nodes of 8, replicas of 4, 4, 4 and 1 x 4: in this order
all fit. With the small ones first, each on the emptiest node, the third of 4 would have no room.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PlacementDemand:
    """Replicas of one pool to be placed."""

    pool: str
    product: str
    accelerators: int  # accelerators of one replica
    replicas: int


@dataclass(slots=True)
class AcceleratorNode:
    name: str
    product: str
    accelerators: int
    placed: list[str] = field(default_factory=list)  # the pool of each replica
    used: int = 0

    @property
    def free(self) -> int:
        return self.accelerators - self.used


@dataclass(frozen=True, slots=True)
class Packing:
    nodes: tuple[AcceleratorNode, ...]
    unplaced: dict[str, int]  # number of replicas, by pool
    reasons: dict[str, str]  # reason, by pool

    @property
    def used_ratio(self) -> float:
        whole = sum(node.accelerators for node in self.nodes)
        return sum(node.used for node in self.nodes) / whole if whole else 0.0


def pack(demands: Iterable[PlacementDemand], nodes: Sequence[AcceleratorNode]) -> Packing:
    """Place all replicas, large ones first, and return the placement with those that found no node; `nodes` are not
    changed."""
    own = [AcceleratorNode(node.name, node.product, node.accelerators) for node in nodes]
    unplaced: dict[str, int] = {}
    reasons: dict[str, str] = {}
    for demand in sorted(demands, key=lambda each: (-each.accelerators, each.pool)):
        fitting = [node for node in own if node.product == demand.product]
        for _ in range(demand.replicas):
            place = min(
                (node for node in fitting if node.free >= demand.accelerators),
                key=lambda node: (node.placed.count(demand.pool), node.free, node.name),
                default=None,
            )
            if place is None:
                unplaced[demand.pool] = unplaced.get(demand.pool, 0) + 1
                reasons[demand.pool] = _why(demand, fitting)
                continue
            place.placed.append(demand.pool)
            place.used += demand.accelerators
    return Packing(tuple(own), unplaced, reasons)


def _why(demand: PlacementDemand, fitting: Sequence[AcceleratorNode]) -> str:
    if not fitting:
        return f"no node has {demand.product}"
    if max(node.accelerators for node in fitting) < demand.accelerators:
        return f"no node has {demand.accelerators} accelerators: divide it over nodes (pipeline) or use larger ones"
    free = sum(node.free for node in fitting)
    if free >= demand.accelerators:
        return f"{free} accelerators are free, but no {demand.accelerators} on one node"
    return f"{free} accelerators are free of {sum(node.accelerators for node in fitting)}"
