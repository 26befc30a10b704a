"""The fleet as one process sees it: heartbeats folded into a frozen view per pool.

Folding is pure bookkeeping with time as an argument; who receives the beats is the bus's affair. A beat older than
the one already known is dropped (pub/sub reorders on reconnect). Silence takes a replica out; passive evidence
(`eject`) takes it out at once and is forgotten by a later beat only when the ejection has run out, since a replica can
talk to the bus and still not answer us.
"""

from bisect import bisect_left
from dataclasses import dataclass, field, replace

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.decisions.routing import PoolView, ReplicaView
from functions.fleet.heartbeat import SILENCE_LIMIT_S, Heartbeat, to_view

EJECTION_BASE_S = 5.0
EJECTION_CAP_S = 60.0
MAX_REPLICAS = 20_000  # bounds memory whatever the bus says
NOTED_FOR_S = 3.0  # two beats: one may have been on its way when the adapter was loaded
_MAX_NOTED = 256  # adapters of one replica


@dataclass(slots=True)
class _Known:
    heartbeat: Heartbeat
    view: ReplicaView
    seen_s: float
    ejected_until_s: float = 0.0
    ejections: int = 0
    noted: dict[EngineName, float] = field(default_factory=dict)  # until when: loaded, though no beat has said so yet


@dataclass(slots=True)
class _Members:
    """One pool's replicas, sorted by id; the frozen view is made when it is asked for, at most once a change.

    Beats come once a second from each replica, so a beat must not cost a walk over all of them (5,000 replicas: 15 us a
    beat with its view; rebuilding the pool each time took 430).
    """

    ids: list[ReplicaId] = field(default_factory=list)
    views: list[ReplicaView] = field(default_factory=list)
    frozen: PoolView | None = None

    def put(self, view: ReplicaView) -> None:
        index = bisect_left(self.ids, view.id)
        if index < len(self.ids) and self.ids[index] == view.id:
            self.views[index] = view
        else:
            self.ids.insert(index, view.id)
            self.views.insert(index, view)
        self.frozen = None

    def drop(self, replica_id: ReplicaId) -> None:
        index = bisect_left(self.ids, replica_id)
        del self.ids[index], self.views[index]
        self.frozen = None

    def view(self, name: PoolName) -> PoolView:
        if self.frozen is None:
            self.frozen = PoolView(name=name, replicas=tuple(self.views))
        return self.frozen


@dataclass(slots=True)
class FleetView:
    """Owned by one event loop. All times are monotonic seconds."""

    _known: dict[ReplicaId, _Known] = field(default_factory=dict)
    _pools: dict[PoolName, _Members] = field(default_factory=dict)

    def fold(self, heartbeat: Heartbeat, now_s: float) -> bool:
        """Take in one beat; False when it is older than what is known, or the fleet is over its bound."""
        view = to_view(heartbeat)
        known = self._known.get(view.id)
        if known is None:
            if len(self._known) >= MAX_REPLICAS:
                return False
            self._known[view.id] = _Known(heartbeat, view, now_s)
            self._put(view)
            return True
        if _order(heartbeat) <= _order(known.heartbeat):
            return False
        former = known.view
        if heartbeat.incarnation != known.heartbeat.incarnation:
            known.ejections, known.ejected_until_s = 0, 0.0  # a new agent: the evidence was against the old one
            known.noted.clear()
        if known.noted:
            view = _with_noted(view, known, now_s)
        known.heartbeat, known.view, known.seen_s = heartbeat, view, now_s
        if former.pool != view.pool:
            self._drop(former)
        self._put(view)
        return True

    def expire(self, now_s: float) -> list[ReplicaId]:
        """Forget the silent; returns who that was."""
        silent = [id_ for id_, known in self._known.items() if now_s - known.seen_s > SILENCE_LIMIT_S]
        for replica_id in silent:
            self._drop(self._known.pop(replica_id).view)
        return silent

    def eject(self, replica_id: ReplicaId, now_s: float) -> float:
        """Passive evidence against a replica: out for a time that doubles with each ejection. Seconds, or 0."""
        known = self._known.get(replica_id)
        if known is None:
            return 0.0
        if now_s < known.ejected_until_s:
            return known.ejected_until_s - now_s
        duration_s = min(EJECTION_CAP_S, EJECTION_BASE_S * 2.0 ** min(known.ejections, 10))
        known.ejections += 1
        known.ejected_until_s = now_s + duration_s
        return duration_s

    def answered(self, replica_id: ReplicaId) -> None:
        """A replica answered properly: past evidence against it no longer counts."""
        known = self._known.get(replica_id)
        if known is not None and known.ejections:
            known.ejections, known.ejected_until_s = 0, 0.0

    def note_adapter(self, replica_id: ReplicaId, name: EngineName, now_s: float) -> None:
        """The replica's agent has just told us that it loaded this; its beats will say so from the next but one on."""
        known = self._known.get(replica_id)
        if known is not None and (name in known.noted or len(known.noted) < _MAX_NOTED):
            known.noted[name] = now_s + NOTED_FOR_S
            known.view = _with_noted(to_view(known.heartbeat), known, now_s)
            self._put(known.view)

    def retract_adapter(self, replica_id: ReplicaId, name: EngineName) -> None:
        """Its engine does not know the adapter, whatever its agent told us."""
        known = self._known.get(replica_id)
        if known is not None and known.noted.pop(name, None) is not None:
            known.view = replace(known.view, adapters=to_view(known.heartbeat).adapters | known.noted.keys())
            self._put(known.view)

    def ejected(self, pool: PoolName, now_s: float) -> frozenset[ReplicaId]:
        """Who is out on passive evidence; nobody, where that would leave the pool without a ready replica.

        Sending into a pool that looks dead costs one failed attempt; refusing to may keep it dead for ever.
        """
        ready = [replica.id for replica in self.pool(pool).replicas if replica.phase == "ready"]
        out = frozenset(id_ for id_ in ready if now_s < self._known[id_].ejected_until_s)
        return out if len(out) < len(ready) else frozenset()

    def pool(self, name: PoolName) -> PoolView:
        members = self._pools.get(name)
        return members.view(name) if members is not None else PoolView(name=name, replicas=())

    def replica(self, replica_id: ReplicaId) -> ReplicaView | None:
        known = self._known.get(replica_id)
        return known.view if known is not None else None

    def heartbeats(self) -> list[tuple[Heartbeat, float]]:
        """Every known replica's last beat and when it was seen, by id."""
        return [(known.heartbeat, known.seen_s) for _, known in sorted(self._known.items())]

    def _put(self, view: ReplicaView) -> None:
        self._pools.setdefault(view.pool, _Members()).put(view)

    def _drop(self, view: ReplicaView) -> None:
        members = self._pools[view.pool]
        members.drop(view.id)
        if not members.ids:
            del self._pools[view.pool]


def _with_noted(view: ReplicaView, known: _Known, now_s: float) -> ReplicaView:
    """The view with the adapters that are noted still."""
    for name in [name for name, until_s in known.noted.items() if now_s >= until_s or name in view.adapters]:
        del known.noted[name]
    return replace(view, adapters=view.adapters | known.noted.keys()) if known.noted else view


def _order(heartbeat: Heartbeat) -> tuple[int, int]:
    return (heartbeat.incarnation, heartbeat.sequence)
