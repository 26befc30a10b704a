"""Failure domains: if many agents of a node or zone fall silent together, its other replicas are suspected.

A single replica is out after 15 s of silence, or at the first failed connection. A failed node or zone is detected
sooner and as a whole. Its members are suspected: they are avoided while any other replica can take the request, and
nothing more. A suspicion of a domain begins if all of this holds:

    late       MEMBERS_MIN of its members or more, and half of them, have been silent for LATE_S: three heartbeats
    together   so many of these fell silent within TOGETHER_S of each other; in a zone, on more than one node
    recent     at most BEGINS_WITHIN_S ago: an earlier silence was the bus's, even if other replicas have recovered
    others     three in five of the replicas outside the domain have sent heartbeats since: a heartbeat and a half
               after the last of the silent ones. Otherwise the bus is at fault, and no replica is suspected

From then on every member without a heartbeat since is suspected, also those that are not late yet. A heartbeat clears
its sender, and a domain without suspected members is forgotten. Silence counts from `listening_since_s` at the
earliest: after a pause of the bus, or of this process, all start anew. Replicas without a known node or zone belong
to no domain.

The controller reports nodes that are NotReady in Kubernetes. If the kubelet itself reports it ("down": no runtime, a
shutdown), the whole node is avoided. If the API server has no report ("unknown"), only silent members are avoided: a
kubelet without the control plane stops no engine. If more than half of the known nodes are reported, all reports are
ignored: the control plane is at fault, as Kubernetes itself assumes.

Worked example (test_worked_example_from_the_prologue): three zones with four replicas each, a heartbeat a second, the
last of zone c between 0.1 and 0.9 s. At 3.5 s two of its four are late: all four are suspected. At 5 s one sends a
heartbeat: it is clear, three are left. If all twelve fall silent, none is suspected at any time.

Neighbours: `functions.fleet.view` uses this for gateways, the registry and the simulator.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from functions.api.ids import ReplicaId

LATE_S = 3.0
TOGETHER_S = 2.0
BEGINS_WITHIN_S = 3.0  # since a domain became late
MEMBERS_MIN = 2
LOST_RATIO = 0.5
_NODES_MIN = 2  # nodes of a zone: a single one is a node failure
OTHERS_HEARD_RATIO = 0.6
MISSED_S = 1.5  # one heartbeat, and a margin
NODES_TOLD_MAX_RATIO = 0.5

NodeTrouble = Literal["down", "unknown"]
Domain = tuple[Literal["node", "zone"], str]


@dataclass(frozen=True, slots=True)
class Member:
    replica_id: ReplicaId
    node: str  # empty: unknown
    zone: str  # empty: unknown
    heard_s: float  # monotonic


@dataclass(frozen=True, slots=True)
class Suspicions:
    """Replicas suspected now, and the state for the next judgement."""

    replicas: Mapping[ReplicaId, Domain] = field(default_factory=dict)  # suspected replicas and their domain
    since_s: Mapping[Domain, float] = field(default_factory=dict)  # start, by silent domain

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
    """Return the replicas suspected now, with their node or zone: their domain fell silent while others were heard, or
    the controller reports their node (`told`: nodes that are not ready)."""
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
    """Return the domains with a late member, each with all its members. Zones come after nodes, so a replica in both is
    listed with its zone."""
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
    """Return True if enough replicas outside the domain sent heartbeats after it fell silent.

    `heard_s` has the times of all replicas that are not late, in order. A failing bus loses heartbeats one by one
    within a second, so a heartbeat from before the domain's silence proves nothing.
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
