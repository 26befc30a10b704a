"""The swarm tracker: a board for each artifact that nodes are fetching, in memory and bounded.

It stores nothing durably. After a restart every node announces itself again within one interval, and meanwhile nodes
use the peers that they know. Each registry has a tracker of its own. Nodes that announce to different registries form
separate swarms, each of which reads the artifact from the store once. Neighbours: decisions.distribution.tracker
(chooses each node's peers and the chunks that it reads from the store).
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.params import Depends

from functions.api.ids import Digest
from functions.artifacts.errors import ArtifactRefused
from functions.artifacts.manifest import check_digest
from functions.artifacts.swarm.addresses import is_loopback
from functions.artifacts.swarm.protocol import (
    BODY_MAX_BYTES,
    SWARM_PATH,
    MessageRefused,
    decode_announcement,
    encode_answer,
)
from functions.decisions.distribution.swarm import PeerAnswer
from functions.decisions.distribution.tracker import Announcement, Board, BoardFull, BoardPolicy
from functions.registry.conventions import read_body
from functions.registry.errors import ApiError

FORGET_AFTER_S = 120.0  # age at which a board without announcements is deleted


class TrackerFull(Exception):
    """The limit of artifacts or nodes is reached: continue without peers, or announce again later."""


class OtherShape(Exception):
    """The artifact is known with another number of chunks: one of the two manifests is wrong."""


@dataclass(frozen=True, slots=True)
class BoardReport:
    digest: Digest
    chunks: int
    nodes: int
    complete: int
    leases: int


@dataclass(slots=True)
class Tracker:
    """Boards of all artifacts in transfer. Owned by one event loop."""

    policy: BoardPolicy = field(default_factory=BoardPolicy)
    max_boards: int = 256  # artifacts at a time
    max_nodes: int = 8192  # on all boards; 90 MB with the largest bitmap (4 KiB) and avoid list (64 addresses)
    rng: Random = field(default_factory=Random)
    clock: Callable[[], float] = time.monotonic
    _boards: OrderedDict[Digest, Board] = field(default_factory=OrderedDict)

    def announce(self, digest: Digest, count: int, announcement: Announcement) -> PeerAnswer:
        """Record a node's announcement for the artifact of `count` chunks, and return the peers for it. Raises
        TrackerFull, BoardFull or OtherShape."""
        now_s = self.clock()
        board = self._boards.get(digest)
        if board is None or not board.has_member(announcement.address):
            self._check_room(now_s)
        return self._board(digest, count, now_s).announce(announcement, now_s, self.rng)

    def leave(self, digest: Digest, address: str) -> None:
        if (board := self._boards.get(digest)) is not None:
            board.remove_member(address)

    def reports(self) -> list[BoardReport]:
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
                raise TrackerFull(f"{len(self._boards)} artifacts are in transfer, which is the limit")
            board = self._boards[digest] = Board(count, self.policy)
        if board.count != count:
            raise OtherShape(f"{digest} has {board.count} chunks, not {count}")
        self._boards.move_to_end(digest)
        return board

    def _check_room(self, now_s: float) -> None:
        """Raise TrackerFull if there is no room for one more node, even after silent ones are forgotten."""
        if self._nodes >= self.max_nodes:
            self._forget_old(now_s)
            if self._nodes >= self.max_nodes:
                raise TrackerFull(f"{self._nodes} nodes take part in all transfers together, which is the limit")

    @property
    def _nodes(self) -> int:
        return sum(board.nodes for board in self._boards.values())

    def _forget_old(self, now_s: float) -> None:
        """Delete boards without recent announcements, and silent nodes from the others. Boards are in the order of
        their last announcement."""
        while self._boards and now_s - next(iter(self._boards.values())).heard_s > FORGET_AFTER_S:
            self._boards.popitem(last=False)
        for board in self._boards.values():
            board.expire(now_s)


# `/internal/v1/swarm`: nodes that fetch an artifact find each other here. Requires the agents' credential.
#
# POST /internal/v1/swarm/{digest}   a node's state → peers, chunks to read from the store, time to announce again
# GET  /internal/v1/swarm            artifacts in transfer, for people


_RETRY_AFTER_S = 10


def tracker_routes(tracker: Tracker, required: Sequence[Depends]) -> APIRouter:
    """Make the routes; `required` are dependencies of all of them (the agents' credential)."""
    router = APIRouter(dependencies=required)

    @router.post(SWARM_PATH + "{digest}")
    async def announce(digest: str, request: Request) -> Response:
        asked = _digest(digest)
        document = b"".join(await read_body(request, BODY_MAX_BYTES))
        from_loopback = request.client is not None and is_loopback(request.client.host)
        try:
            body, announcement = decode_announcement(document, loopback_allowed=from_loopback)
            answer = tracker.announce(asked, body.chunks, announcement)
        except MessageRefused as error:
            raise ApiError(400, "invalid_announcement", str(error)) from error
        except OtherShape as error:
            raise ApiError(409, "other_manifest", str(error)) from error
        except (TrackerFull, BoardFull) as error:
            raise ApiError(503, "tracker_full", str(error), headers={"retry-after": str(_RETRY_AFTER_S)}) from error
        if body.leaving:
            tracker.leave(asked, announcement.address)
        return Response(encode_answer(answer, body.chunks), media_type="application/json")

    @router.get(SWARM_PATH.rstrip("/"))
    async def travelling() -> dict[str, Any]:
        return {"object": "list", "data": [asdict(report) for report in tracker.reports()]}

    return router


def _digest(text: str) -> Digest:
    try:
        return check_digest(text)
    except ArtifactRefused as error:
        raise ApiError(400, "invalid_digest", str(error), param="digest") from error
