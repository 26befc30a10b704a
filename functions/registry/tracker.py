"""The tracker: a board for each artifact that nodes are fetching, in memory and bounded.

Nothing of it is durable: a registry that restarts hears of every node within one announcement, and meanwhile nodes go
on with the peers they know. Each registry has a tracker of its own; nodes that announce to different ones form separate
swarms, each of which reads the artifact from the store once.
Neighbours: decisions.swarm_board (who is named to whom, who reads what), tracker_routes (HTTP).
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from functions.api.ids import Digest
from functions.decisions.distribution.swarm import Answer
from functions.decisions.distribution.tracker import Announcement, Board, BoardPolicy

FORGET_AFTER_S = 120.0  # a board that nobody writes to


class TrackerFull(Exception):
    """As many artifacts travel as may: go on without peers, or ask again later."""


class OtherShape(Exception):
    """The artifact is known with another number of chunks: one of the two has a wrong manifest."""


@dataclass(frozen=True, slots=True)
class BoardReport:
    digest: Digest
    chunks: int
    nodes: int
    complete: int
    leases: int


@dataclass(slots=True)
class Tracker:
    """One event loop's."""

    policy: BoardPolicy = field(default_factory=BoardPolicy)
    max_boards: int = 256  # artifacts at once
    max_nodes: int = 8192  # on all boards; with the largest bitmap (4 KiB) and list to avoid (64 addresses) 90 MB
    rng: Random = field(default_factory=Random)
    clock: Callable[[], float] = time.monotonic
    _boards: OrderedDict[Digest, Board] = field(default_factory=OrderedDict)

    def announce(self, digest: Digest, count: int, news: Announcement) -> Answer:
        """TrackerFull, BoardFull, OtherShape."""
        now_s = self.clock()
        board = self._boards.get(digest)
        if board is None or not board.knows(news.address):
            self._check_room(now_s)
        return self._board(digest, count, now_s).announce(news, now_s, self.rng)

    def leave(self, digest: Digest, address: str) -> None:
        if (board := self._boards.get(digest)) is not None:
            board.leave(address)

    def reports(self) -> list[BoardReport]:
        """Every artifact that travels, by digest."""
        self._forget_old(self.clock())
        return [
            BoardReport(digest, board.count, board.nodes, board.complete, board.leases)
            for digest, board in sorted(self._boards.items())
        ]

    def _board(self, digest: Digest, count: int, now_s: float) -> Board:
        board = self._boards.get(digest)
        if board is None:
            self._forget_old(now_s)
            if len(self._boards) >= self.max_boards:
                raise TrackerFull(f"{len(self._boards)} artifacts are on their way already")
            board = self._boards[digest] = Board(count, self.policy)
        if board.count != count:
            raise OtherShape(f"{digest} has {board.count} chunks, not {count}")
        self._boards.move_to_end(digest)
        return board

    def _check_room(self, now_s: float) -> None:
        """For one node more."""
        if self._nodes >= self.max_nodes:
            self._forget_old(now_s)
            if self._nodes >= self.max_nodes:
                raise TrackerFull(f"{self._nodes} nodes take part already, in all artifacts together")

    @property
    def _nodes(self) -> int:
        return sum(board.nodes for board in self._boards.values())

    def _forget_old(self, now_s: float) -> None:
        """Boards are in the order of their last news."""
        while self._boards and now_s - next(iter(self._boards.values())).heard_s > FORGET_AFTER_S:
            self._boards.popitem(last=False)
        for board in self._boards.values():
            board.expire(now_s)
