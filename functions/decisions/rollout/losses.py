"""Losses of replicas: how many failed requests of one replica count as failures of its version.

A replica that is killed, preempted or hung fails all its requests without an error message. That is one incident,
however many streams were running. The sequential test assumes independent failures (`sequential_test`), so it counts

    one failure     for each group of requests, for all that failed within BURST_S of the first
    each of them    if the replica lived: since the first failure it completed an answer, or began one that was sent
                    there later, or still sent bytes after half of BURST_S
    none            of those sent before the first failure that fail later: streams that fell silent with the replica

A request sent there after that means that the replica counts as healthy again, so the next failure starts another
loss. A version that crashes its engine loses a replica each time, and one that breaks some of its streams fails each
time. An engine that reports its failure is not lost. Worked example (test_worked_example_of_the_prologue): twelve
streams break at 10.0 s, and no bytes follow: 1 failure. Two of ten streams break at 20.0 s, and eight complete at
20.3 s: 2 failures.

Bytes that arrive after a kill may have been sent before it: a request in flight that ends within DYING_S of the first
failure is no sign of life. A loss is one failure at each gateway with requests there. Neighbour: the gateway's
evidence uses this.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from functions.api.ids import ReplicaId
from functions.decisions.routing.retry import AttemptFailure

LOST = frozenset(
    {
        AttemptFailure.CONNECT,
        AttemptFailure.RESET,
        AttemptFailure.FIRST_BYTE,
        AttemptFailure.SILENT,
        AttemptFailure.REPLICA_LOST,
    }
)
BURST_S = 1.0
DYING_S = 0.2
FORGET_AFTER_S = 120.0  # twice the longest wait at a hung replica: 60 s for a first byte
MAX_LOST = 256  # replicas at a time; the oldest loss is dropped
MAX_UNDECIDED = 2048  # failures of one replica within BURST_S; more than an engine runs in parallel

Group = TypeVar("Group", bound=Hashable)
Failed = TypeVar("Failed")


@dataclass(slots=True)
class _Loss(Generic[Group, Failed]):
    began_s: float
    groups: set[Group] = field(default_factory=set)  # groups that have counted the loss
    undecided: list[tuple[Group, Failed]] = field(default_factory=list)


class Losses(Generic[Group, Failed]):
    """Losses seen by one event loop. Times are monotonic seconds; methods return the failures to count now."""

    __slots__ = ("_losses",)

    def __init__(self) -> None:
        self._losses: OrderedDict[ReplicaId, _Loss[Group, Failed]] = OrderedDict()  # oldest loss first

    def failed(
        self, replica_id: ReplicaId, sent_s: float, group: Group, failed: Failed, now_s: float, *, begun: bool
    ) -> list[tuple[Group, Failed]]:
        """Record a failed request, sent at `sent_s`, and return the failures to count now; `begun` is True if its
        answer had begun. Of one lost replica's failures only each group's first counts at once. Call `collect_decided`
        first."""
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
        """Record a complete answer to a request sent at `sent_s`. If it shows that the replica lives, end its loss and
        return the undecided failures, which count."""
        loss = self._losses.get(replica_id)
        if loss is None or (sent_s <= loss.began_s and now_s < loss.began_s + DYING_S):
            return []
        del self._losses[replica_id]
        return loss.undecided

    def collect_decided(self, now_s: float, heard_s: Callable[[ReplicaId], float]) -> list[tuple[Group, Failed]]:
        """Settle the losses whose time is over and return the failures that count: those of replicas that live.
        `heard_s` returns the time of a replica's last bytes."""
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
