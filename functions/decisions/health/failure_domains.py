"""Failure domains: when many agents of a node or of a zone fall silent together, what is left of it is suspected.

A replica alone is out after 15 s of silence, or at the first connection that fails. A node or a zone is understood
sooner and as a whole. Its members are suspected, which is to say: avoided while any other replica can take the request,
and never more than that. A suspicion of a domain begins where all of this holds:

    late       MEMBERS_MIN of its members or more, and half of them, have said nothing for LATE_S: three heartbeats
    together   so many of these fell silent within TOGETHER_S of each other; of a zone, on more than one node
    lately     BEGINS_WITHIN_S ago at the most: what was the bus's silence then is no domain's when others come back
    others     of the replicas outside of it, three in five are heard, and were so since: a heartbeat and a half after
               the last of the silent ones. Else it is the bus, and nobody is suspected

From then on every member is suspected that has not been heard since: also those whose third heartbeat is not missing
yet. A heartbeat clears its sender at once; a domain without anybody left to suspect is forgotten.
Silence counts from when somebody was heard again (`listening_since_s`): after a pause of the bus, or of ourselves, all
begin anew. Replicas whose node or zone is not known belong to no domain.

Nodes that Kubernetes calls NotReady, as the controller tells: those whose kubelet says so itself ("down": no runtime, a
shutdown) are avoided whole. Those of which the API server has heard nothing ("unknown") lose only members that are not
heard either: a kubelet that is cut off from the control plane takes no engine with it. Where more than half of the
known nodes are told, nothing is believed: that is the control plane's trouble, as Kubernetes itself sees it.

Worked example (test_worked_example_from_the_prologue): three zones with four replicas each, a heartbeat a second, the
last of zone c between 0.1 and 0.9 s. At 3.5 s two of its four are late: all four are suspected. At 5 s one is heard: it
is clear, three are left. Had all twelve fallen silent, nobody would be suspected at any time.

Neighbours: `functions.fleet.view` keeps it for gateways, the registry and the simulator.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from functions.api.ids import ReplicaId

LATE_S = 3.0
TOGETHER_S = 2.0
BEGINS_WITHIN_S = 3.0  # of a domain's being late
MEMBERS_MIN = 2
LOST_RATIO = 0.5
_NODES_MIN = 2  # of a zone: one alone is that node
OTHERS_HEARD_RATIO = 0.6
MISSED_S = 1.5  # one heartbeat, and a late one
NODES_TOLD_MAX_RATIO = 0.5

NodeTrouble = Literal["down", "unknown"]
Domain = tuple[Literal["node", "zone"], str]


@dataclass(frozen=True, slots=True)
class Member:
    replica_id: ReplicaId
    node: str  # empty: not known
    zone: str  # the same
    heard_s: float  # monotonic


@dataclass(frozen=True, slots=True)
class Suspicions:
    """What is suspected now, and what the next judgement needs to know."""

    replicas: Mapping[ReplicaId, Domain] = field(default_factory=dict)  # who, and with which domain
    since_s: Mapping[Domain, float] = field(default_factory=dict)  # of domains that fell silent

    @property
    def domains(self) -> frozenset[Domain]:
        return frozenset(self.replicas.values())


NOBODY = Suspicions()


def judge(
    before: Suspicions,
    members: Sequence[Member],
    told: Mapping[str, NodeTrouble],
    listening_since_s: float,
    now_s: float,
) -> Suspicions:
    """`told`: nodes that are not ready, as the controller has said."""
    replicas: dict[ReplicaId, Domain] = {}
    since_s: dict[Domain, float] = {}
    late = {each.replica_id for each in members if _silent_s(each, listening_since_s, now_s) >= LATE_S}
    heard_s = sorted(each.heard_s for each in members if each.replica_id not in late) if late else []
    for domain, inside in _domains_of(members, late).items():
        if not _others_are_heard(inside, late, heard_s, len(members) - len(inside), listening_since_s):
            continue
        began_s = before.since_s.get(domain)
        if began_s is None:
            if not _fell_silent(domain, inside, late, listening_since_s, now_s):
                continue
            began_s = now_s
        unheard = [each.replica_id for each in inside if each.heard_s < began_s]
        if unheard:
            since_s[domain] = began_s
            replicas.update(dict.fromkeys(unheard, domain))
    for each in _on_troubled_nodes(members, told, listening_since_s, now_s):
        replicas.setdefault(each.replica_id, ("node", each.node))
    return Suspicions(replicas, since_s) if replicas else NOBODY


def _silent_s(member: Member, listening_since_s: float, now_s: float) -> float:
    return now_s - max(member.heard_s, listening_since_s)


def _domains_of(members: Iterable[Member], late: set[ReplicaId]) -> dict[Domain, list[Member]]:
    """Those with somebody who is late; a zone after its nodes, so that the larger one names who is in both."""
    troubled: set[Domain] = set()
    for each in members:
        if each.replica_id in late:
            troubled |= set(_names(each))
    inside: dict[Domain, list[Member]] = defaultdict(list)
    for each in members if troubled else ():
        for domain in _names(each):
            if domain in troubled:
                inside[domain].append(each)
    return dict(sorted(inside.items()))


def _names(member: Member) -> list[Domain]:
    both: list[Domain] = [("node", member.node), ("zone", member.zone)]
    return [each for each in both if each[1]]


def _fell_silent(
    domain: Domain, inside: Sequence[Member], late: set[ReplicaId], listening_since_s: float, now_s: float
) -> bool:
    silent = [each for each in inside if each.replica_id in late]
    if domain[0] == "zone" and len({each.node or each.replica_id for each in silent}) < _NODES_MIN:
        return False
    last_s = [max(each.heard_s, listening_since_s) for each in silent]
    if now_s - max(last_s, default=now_s) > LATE_S + BEGINS_WITHIN_S:
        return False
    together = sum(each >= max(last_s) - TOGETHER_S for each in last_s) if last_s else 0
    return together >= max(MEMBERS_MIN, LOST_RATIO * len(inside))


def _others_are_heard(
    inside: Sequence[Member], late: set[ReplicaId], heard_s: Sequence[float], outside: int, listening_since_s: float
) -> bool:
    """`heard_s`: in order, of all that are not late. A bus that falls silent takes a second to do so, heartbeat by
    heartbeat: who was heard last before it is no more there than who was heard first.
    """
    since_s = MISSED_S + max(max(each.heard_s, listening_since_s) for each in inside if each.replica_id in late)
    found = len(heard_s) - bisect_left(heard_s, since_s)
    found -= sum(each.heard_s >= since_s and each.replica_id not in late for each in inside)
    return outside > 0 and found >= OTHERS_HEARD_RATIO * outside


def _on_troubled_nodes(
    members: Sequence[Member], told: Mapping[str, NodeTrouble], listening_since_s: float, now_s: float
) -> list[Member]:
    if not told:
        return []
    known = {each.node for each in members if each.node}
    if len(known & told.keys()) > NODES_TOLD_MAX_RATIO * len(known):
        return []
    return [
        each
        for each in members
        if (trouble := told.get(each.node)) == "down"
        or (trouble == "unknown" and _silent_s(each, listening_since_s, now_s) >= MISSED_S)
    ]
