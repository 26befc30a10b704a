"""A whole fan-out in virtual time.

    simulate(Assumptions(nodes=32, size_bytes=2_000_000_000, …)) -> Outcome

The model includes each node's up and down link and the store's link, shared slice by slice; latencies; the tracker;
the limits on uploads and requests; nodes that die or send corrupt chunks; a store outage. It excludes CPU, disks,
switches (any two nodes reach each other at their links' rates), and TCP slow start.
"""

from dataclasses import dataclass, field
from functools import partial
from random import Random

from functions.decisions.distribution.swarm import PeerAnswer, Swarm
from functions.decisions.distribution.tracker import Announcement, Board
from functions.simulator.events import Events
from studies.fan_out.assumptions import Assumptions, Outcome
from studies.fan_out.node import Link, SimNode

_LIMIT_S = 7 * 86_400.0


@dataclass(slots=True)
class Simulation:
    assumptions: Assumptions
    events: Events = field(default_factory=Events)
    store_bytes: float = 0.0
    announcements: int = 0
    store: Link = field(init=False)
    board: Board = field(init=False)
    rng: Random = field(init=False)
    nodes_by_address: dict[str, SimNode] = field(default_factory=dict)
    _unfinished: int = 0

    def __post_init__(self) -> None:
        self.store = Link(self.assumptions.store_bytes_per_s)
        self.board = Board(self.assumptions.chunks, self.assumptions.board)
        self.rng = Random(self.assumptions.seed)  # noqa: S311 - the same seed, the same run

    def run(self) -> Outcome:
        killed = dict(self.assumptions.killed)
        for index in range(self.assumptions.nodes):
            node = self._node(index)
            self.nodes_by_address[node.address] = node
            self.events.at(node.began_s, node.start)
            if index in killed:
                self.events.at(killed[index], partial(self._kill, node))
        self._unfinished = self.assumptions.nodes
        self.events.run(lambda: self._unfinished == 0, _LIMIT_S)
        return self._outcome()

    def announce(self, news: Announcement) -> PeerAnswer:
        self.announcements += 1
        return self.board.announce(news, self.events.now_s, self.rng)

    def size_of(self, chunk: int) -> int:
        """Return the bytes of a chunk: all have one size but the last."""
        return min(self.assumptions.chunk_bytes, self.assumptions.size_bytes - chunk * self.assumptions.chunk_bytes)

    def on_finished(self, node: SimNode) -> None:
        self._unfinished -= 1

    def _kill(self, node: SimNode) -> None:
        if node.finished_s is None:
            self._unfinished -= 1
        node.kill()

    def _node(self, index: int) -> SimNode:
        given = self.assumptions
        address, zone = f"10.{index >> 16}.{index >> 8 & 255}.{index & 255}:8500", f"zone-{index % given.zones}"
        began_s = self.rng.random() * given.start_spread_s
        return SimNode(
            self,
            index,
            address,
            zone,
            began_s,
            Swarm(address, zone, given.chunks, 0, began_s, given.policy),
            Random(self.rng.random()),  # noqa: S311
            Link(given.up_bytes_per_s),
            Link(given.down_bytes_per_s),
            corrupt=index in given.corrupt,
        )

    def _outcome(self) -> Outcome:
        nodes = self.nodes_by_address.values()
        failures: dict[str, int] = {}
        for node in nodes:
            for name, count in node.failures.items():
                failures[name] = failures.get(name, 0) + count
        return Outcome(
            tuple(sorted(node.finished_s - node.began_s for node in nodes if node.finished_s is not None)),
            round(self.store_bytes),
            sum(node.from_peers_bytes for node in nodes),
            failures,
            self.announcements,
            self.events.happened,
        )


def simulate(assumptions: Assumptions) -> Outcome:
    """Run until all nodes have the artifact; TimeoutError if that never happens."""
    return Simulation(assumptions).run()
