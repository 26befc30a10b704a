"""Losses of replicas: how many of the requests that failed at one replica are failures of their version. Pure.

A replica that is killed, preempted or hung takes all with it that it has in hand, and says nothing. That is one thing
that has happened, however many streams were under way; the sequential test takes failures as independent
(`sequential_test`), so it gets

    one failure     of each group of requests, for all that failed within BURST_S of the first
    each of them    where the replica lived: it has ended an answer whole meanwhile, begun one that was sent there after
                    the first failure, or still speaks after half of BURST_S
    none            of what was sent there before the first and fails later: streams that fall silent with the replica

Who sends there after that believes it back, so that the next failure begins another loss. A version whose engine dies
of what it is sent loses a replica each time, and one that breaks some of its streams fails each time. An engine that
says that it has failed is not lost.
Worked example (test_worked_example_of_the_prologue): twelve streams break at 10.0 s and nothing is heard: 1 failure. Of
ten, two break at 20.0 s, and eight end whole at 20.3 s: 2 failures.

What the gateway reads when a replica is killed may have been sent before: what was under way and ends within DYING_S of
the first failure is no sign of life. A loss is one failure at each gateway that had requests there.
Neighbour: the gateway's evidence asks.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from functions.api.ids import ReplicaId
from functions.decisions.routing.retry import Failure

LOST = frozenset({Failure.CONNECT, Failure.RESET, Failure.FIRST_BYTE, Failure.SILENT, Failure.REPLICA_LOST})
BURST_S = 1.0
DYING_S = 0.2
FORGET_AFTER_S = 120.0  # twice what may be waited for at a replica that hangs: 60 s for a first byte
MAX_LOST = 256  # replicas at a time; the longest lost is forgotten
MAX_UNDECIDED = 2048  # failures of one replica within BURST_S; more than an engine runs at once

Group = TypeVar("Group", bound=Hashable)
Failed = TypeVar("Failed")


@dataclass(slots=True)
class _Loss(Generic[Group, Failed]):
    began_s: float
    groups: set[Group] = field(default_factory=set)  # that have counted it
    undecided: list[tuple[Group, Failed]] = field(default_factory=list)


class Losses(Generic[Group, Failed]):
    """Owned by one event loop. Times are monotonic seconds, arguments; what is returned is to be counted now."""

    __slots__ = ("_losses",)

    def __init__(self) -> None:
        self._losses: OrderedDict[ReplicaId, _Loss[Group, Failed]] = OrderedDict()  # the longest lost first

    def failed(
        self, replica_id: ReplicaId, sent_s: float, group: Group, failed: Failed, now_s: float, *, begun: bool
    ) -> list[tuple[Group, Failed]]:
        """A request that was sent there at `sent_s` has failed, `begun` or not; after `decided`."""
        counted: list[tuple[Group, Failed]] = []
        loss = self._losses.get(replica_id)
        if loss is not None and begun and sent_s > loss.began_s:
            counted, loss = loss.undecided, None
        elif loss is not None and now_s >= loss.began_s + BURST_S and sent_s >= loss.began_s:
            loss = None
        if loss is None:
            loss = self._begun(replica_id, now_s)
        if group not in loss.groups:
            loss.groups.add(group)
            return [*counted, (group, failed)]
        if now_s < loss.began_s + BURST_S and len(loss.undecided) < MAX_UNDECIDED:
            loss.undecided.append((group, failed))
        return []

    def answered(self, replica_id: ReplicaId, sent_s: float, now_s: float) -> list[tuple[Group, Failed]]:
        """It has given a whole answer to what was sent there at `sent_s`: does it live?"""
        loss = self._losses.get(replica_id)
        if loss is None or (sent_s <= loss.began_s and now_s < loss.began_s + DYING_S):
            return []
        del self._losses[replica_id]
        return loss.undecided

    def decided(self, now_s: float, heard_s: Callable[[ReplicaId], float]) -> list[tuple[Group, Failed]]:
        """What is known of those whose time is over. `heard_s`: when bytes came from a replica last."""
        counted: list[tuple[Group, Failed]] = []
        for replica_id, loss in list(self._losses.items()):
            if now_s < loss.began_s + BURST_S:
                break  # the others are younger
            is_alive = heard_s(replica_id) >= loss.began_s + BURST_S / 2
            if is_alive:
                counted += loss.undecided
            if is_alive or now_s >= loss.began_s + FORGET_AFTER_S:
                del self._losses[replica_id]
            loss.undecided = []
        return counted

    def __len__(self) -> int:
        return len(self._losses)

    def _begun(self, replica_id: ReplicaId, now_s: float) -> _Loss[Group, Failed]:
        loss = self._losses[replica_id] = _Loss(now_s)
        self._losses.move_to_end(replica_id)
        while len(self._losses) > MAX_LOST:
            self._losses.popitem(last=False)
        return loss
