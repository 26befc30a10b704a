"""View of the fleet in one process: heartbeats folded into a frozen view per pool.

Folding is pure bookkeeping with time as an argument; the bus receives the heartbeats. A heartbeat older than the
known one is dropped, since pub/sub reorders on reconnect. A silent replica is removed, unless all are silent
(`functions.decisions.health.expiry`). Passive evidence (`eject`) removes a replica immediately, whatever its
heartbeats report, because a replica can reach the bus and still not answer requests. The evidence does not apply to a
new agent that takes its place.

If the agents of a node or zone fall silent together, or a node is reported as not ready, its replicas are suspected
(`functions.decisions.health.failure_domains`). `update_suspicions` decides this a few times a second.

Neighbours: `outlier_status` stores the evidence; `functions.decisions.routing.replicas` is the index that decisions
read.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from functions.api.ids import EngineName, PoolName, ReplicaId, TenantId
from functions.api.snapshot import PoolEntry
from functions.decisions.health import expiry as expiries
from functions.decisions.health import failure_domains
from functions.decisions.health.failure_domains import NOBODY, Domain, Member, NodeTrouble, Suspicions
from functions.decisions.routing.replicas import PoolIndex, PoolView, ReplicaPhase, ReplicaView
from functions.fleet.heartbeat import SILENCE_LIMIT_S, Heartbeat, Pulse, to_view, with_pulse
from functions.fleet.outlier_status import OutlierStatus, OutlierTracker

MAX_REPLICAS = 20_000  # bounds memory, whatever arrives on the bus
NOTED_FOR_S = 3.0  # two heartbeats: one may have been on its way when the adapter was loaded
# an agent keeps a withdrawn adapter loaded at least this long, so that all gateways learn of it (`adapters`)
WITHDRAWN_FOR_S = 3.0
_MAX_NOTED = 256  # adapters per replica
_PAUSE_S = 2.0  # no heartbeat of any replica for this long: the bus or this process was interrupted


@dataclass(slots=True)
class _Known:
    heartbeat: Heartbeat
    plain: ReplicaView  # from the heartbeat alone
    view: ReplicaView
    seen_s: float
    spoke_s: float = float("-inf")  # last answer of its engine to this process
    # expiry time by adapter: loaded, but not in a heartbeat yet
    noted: dict[EngineName, float] = field(default_factory=dict)
    # expiry time by adapter: withdrawn, but most likely still in the engine
    withdrawn: dict[EngineName, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Members:
    """One pool's replicas, sorted by id. The frozen view is built on request, at most once per change.

    Each replica sends a heartbeat a second, so a heartbeat must not cost a walk over all replicas. With 5,000
    replicas a heartbeat takes 15 us including its view; rebuilding the pool each time took 430 us.
    """

    ids: list[ReplicaId] = field(default_factory=list)
    views: list[ReplicaView] = field(default_factory=list)
    index: PoolIndex = field(default_factory=PoolIndex)
    frozen: PoolView | None = None

    def dedicate(self, tenants: frozenset[TenantId]) -> None:
        if self.index.dedicated_to != tenants:
            self.index.dedicated_to = tenants
            self.frozen = None

    def put(self, view: ReplicaView) -> None:
        at = bisect_left(self.ids, view.id)
        if at < len(self.ids) and self.ids[at] == view.id:
            self.index.put(self.views[at], view)
            self.views[at] = view
        else:
            self.index.put(None, view)
            self.ids.insert(at, view.id)
            self.views.insert(at, view)
        self.frozen = None

    def drop(self, replica_id: ReplicaId) -> None:
        at = bisect_left(self.ids, replica_id)
        self.index.drop(self.views[at])
        del self.ids[at], self.views[at]
        self.frozen = None

    def view(self, name: PoolName) -> PoolView:
        if self.frozen is None:
            self.frozen = PoolView(name, tuple(self.views), self.index.dedicated_to)
        return self.frozen


@dataclass(slots=True)
class FleetView:
    """Fleet state of one process. Owned by one event loop. All times are monotonic seconds."""

    _known: dict[ReplicaId, _Known] = field(default_factory=dict)
    _pools: dict[PoolName, _Members] = field(default_factory=dict)
    outliers: OutlierTracker = field(default_factory=OutlierTracker)
    _nobody: PoolIndex = field(default_factory=PoolIndex)
    _dedicated: Mapping[PoolName, frozenset[TenantId]] = field(default_factory=dict)
    suspicions: Suspicions = NOBODY
    expiry: expiries.Expiry = expiries.NOTHING  # result of the last `expire`
    _troubled_nodes: Mapping[str, NodeTrouble] = field(default_factory=dict)
    _troubled_until_s: float = float("inf")
    _heard_s: float = float("-inf")  # last heartbeat of any replica
    _listening_since_s: float = float("-inf")  # without a pause

    def fold(self, heartbeat: Heartbeat, now_s: float, its_view: ReplicaView | None = None) -> bool:
        """Add or update a replica by one heartbeat. Return False if it is older than the known one, or the fleet
        exceeds MAX_REPLICAS. `its_view`: the result of `to_view` for the same heartbeat, if the caller already has
        it."""
        if now_s - self._heard_s > _PAUSE_S:
            self._listening_since_s = now_s
        self._heard_s = now_s
        view = its_view or to_view(heartbeat)
        known = self._known.get(view.id)
        if known is None:
            if len(self._known) >= MAX_REPLICAS:
                return False
            self._known[view.id] = _Known(heartbeat, view, view, now_s)
            self._put(view)
            return True
        if _order(heartbeat) <= _order(known.heartbeat):
            return False
        former, known.plain = known.view, view
        is_same_agent = heartbeat.incarnation == known.heartbeat.incarnation
        if not is_same_agent:
            self.outliers.forget(former.pool, view.id)  # a new agent: the evidence was against the old one
            known.noted.clear()
        if known.noted:
            view = _with_noted(view, known, now_s)
        if not is_same_agent or view.phase != "ready":
            known.withdrawn.clear()  # the engine may be another one
        elif known.withdrawn or not former.adapters <= view.adapters:
            view = _with_withdrawn(view, known, now_s)
        known.heartbeat, known.view, known.seen_s = heartbeat, view, now_s
        if former.pool != view.pool:
            self.outliers.forget(former.pool, view.id)
            self._drop(former)
        self._put(view)
        return True

    def complete_pulse(self, pulse: Pulse) -> tuple[Heartbeat, ReplicaView] | None:
        """Return the heartbeat that a pulse stands for, and its view; None while no whole heartbeat of that agent is
        known."""
        known = self._known.get(ReplicaId(pulse.replica_id))
        if known is None or known.heartbeat.incarnation != pulse.incarnation:
            return None
        heartbeat = with_pulse(known.heartbeat, pulse)
        return heartbeat, to_view(heartbeat, like=known.plain)

    def expire(
        self, now_s: float, spoke_s: Callable[[ReplicaId], float] = lambda _: float("-inf")
    ) -> dict[ReplicaId, ReplicaPhase]:
        """Forget replicas that are silent by themselves, not with most of their pool or the fleet. Return them with the
        last phase that each reported. `expiry` then has the other silent replicas. `spoke_s`: time of the last bytes
        from a replica's engine on any request."""
        limit_s = now_s - SILENCE_LIMIT_S
        silent = {
            id_: known
            for id_, known in self._known.items()
            if known.seen_s < limit_s and self._listening_since_s < limit_s
        }
        if not silent:
            self.expiry = expiries.NOTHING
            return {}
        self.expiry = expiries.judge(
            [
                expiries.Silent(id_, known.view.pool, known.view.phase, max(known.spoke_s, spoke_s(id_)))
                for id_, known in silent.items()
            ],
            Counter(
                known.view.pool
                for id_, known in self._known.items()
                if id_ not in silent and expiries.is_present(known.view.phase)
            ),
            now_s,
        )
        gone = {id_: silent[id_].view.phase for id_ in self.expiry.gone}
        for replica_id in gone:
            self.forget(replica_id)
        return gone

    def forget(self, replica_id: ReplicaId) -> None:
        """Forget a replica and the evidence against it, until its next heartbeat."""
        known = self._known.pop(replica_id, None)
        if known is not None:
            self.outliers.forget(known.view.pool, replica_id)
            self._drop(known.view)

    def reset_silence(self, now_s: float) -> None:
        """Restart the silence timers: until now heartbeats could not arrive."""
        for known in self._known.values():
            known.seen_s = now_s

    def set_troubled_nodes(self, troubled: Mapping[str, NodeTrouble], until_s: float) -> None:
        """Replace the nodes that are not ready, as the controller reports them; they count until `until_s`."""
        self._troubled_nodes, self._troubled_until_s = troubled, until_s

    def update_suspicions(self, now_s: float) -> tuple[frozenset[Domain], frozenset[Domain]]:
        """Update suspicions a few times a second. Return the domains newly suspected and those no longer suspected."""
        before = self.suspicions
        if self._troubled_nodes and now_s >= self._troubled_until_s:
            self._troubled_nodes = {}
        if not before.replicas and not self._troubled_nodes and not self._has_late(now_s):
            return frozenset(), frozenset()
        members = [
            Member(id_, known.heartbeat.node, known.heartbeat.zone, known.seen_s) for id_, known in self._known.items()
        ]
        self.suspicions = failure_domains.judge(before, members, self._troubled_nodes, self._listening_since_s, now_s)
        return self.suspicions.domains - before.domains, before.domains - self.suspicions.domains

    def _has_late(self, now_s: float) -> bool:
        late_s = now_s - failure_domains.LATE_S
        return self._listening_since_s <= late_s and any(known.seen_s <= late_s for known in self._known.values())

    def eject(self, replica_id: ReplicaId, now_s: float) -> float:
        """Count a failed request, and eject the replica for a time that doubles with each ejection. Return the time in
        seconds, or 0 if the replica is unknown."""
        known = self._known.get(replica_id)
        if known is None:
            return 0.0
        self.outliers.request_counts(known.view.pool, replica_id).failed()
        return self.outliers.breaker(known.view.pool, replica_id).eject(now_s)

    def record_fault(self, replica_id: ReplicaId, now_s: float) -> float:
        """Record a 500 response as a failed request. Return the seconds for which the replica is out; 0 while there
        were few in a row, or if it is unknown."""
        known = self._known.get(replica_id)
        if known is None:
            return 0.0
        self.outliers.request_counts(known.view.pool, replica_id).failed()
        return self.outliers.breaker(known.view.pool, replica_id).record_fault(now_s)

    def record_refusal(self, replica_id: ReplicaId, now_s: float, retry_after_s: float = 0.0) -> None:
        """Record a 429 or 503 response: the replica counts as slower for a while and is avoided for `retry_after_s`."""
        known = self._known.get(replica_id)
        if known is not None:
            self.outliers.breaker(known.view.pool, replica_id).record_refusal(now_s, retry_after_s)

    def record_sent(self, replica_id: ReplicaId, now_s: float) -> None:
        """Record that a request is sent to the replica."""
        known = self._known.get(replica_id) if self.outliers.troubled else None
        if known is not None:
            self.outliers.record_sent(known.view.pool, replica_id, now_s)

    def record_first_token(self, replica_id: ReplicaId, sent_s: float, now_s: float, computed_tokens: int) -> None:
        """Record the first token of a request sent at `sent_s`, with its time per computed token (`computed_tokens` of
        the prompt), for the comparison with the pool."""
        known = self._known.get(replica_id)
        if known is not None:
            known.spoke_s = now_s
            seen = self.outliers.request_counts(known.view.pool, replica_id)
            seen.first_token((now_s - sent_s) * 1000.0, computed_tokens)

    def record_answer(self, replica_id: ReplicaId, sent_s: float, now_s: float) -> None:
        """Record a proper answer to a request sent at `sent_s`: evidence against the replica from before then no longer
        counts."""
        known = self._known.get(replica_id)
        if known is not None:
            known.spoke_s = now_s
            self.outliers.request_counts(known.view.pool, replica_id).requests += 1
            if self.outliers.troubled:
                self.outliers.record_answer(known.view.pool, replica_id, sent_s, now_s)

    def note_adapter(self, replica_id: ReplicaId, name: EngineName, now_s: float) -> None:
        """Record for a limited time that the replica's agent has reported a loaded adapter, before heartbeats include
        it, which they do from the next but one on."""
        known = self._known.get(replica_id)
        if known is not None and (name in known.noted or len(known.noted) < _MAX_NOTED):
            known.noted[name] = now_s + NOTED_FOR_S
            known.withdrawn.pop(name, None)
            view = replace(known.plain, adapter_room=known.view.adapter_room)
            known.view = replace(_with_noted(view, known, now_s), withdrawn=frozenset(known.withdrawn))
            self._put(known.view)

    def reserve_adapter_slot(self, replica_id: ReplicaId) -> None:
        """Reserve room for one adapter load until the replica's next heartbeat, which has the true number. Otherwise
        all requests within a second would go to one replica with room, and wait there for an adapter to be drained."""
        known = self._known.get(replica_id)
        if known is not None and known.view.adapter_room:
            known.view = replace(known.view, adapter_room=known.view.adapter_room - 1)
            self._put(known.view)

    def retract_adapter(self, replica_id: ReplicaId, name: EngineName) -> None:
        """Withdraw an adapter recorded by `note_adapter`: the replica's engine does not know it, despite its agent's
        report."""
        known = self._known.get(replica_id)
        if known is not None and known.noted.pop(name, None) is not None:
            adapters = known.plain.adapters.union(known.noted)
            known.view = replace(known.view, adapters=adapters)
            self._put(known.view)

    def dedicate(self, pools: Iterable[PoolEntry]) -> None:
        """Replace which pools are dedicated to which tenants, by a new snapshot, for current and later replicas."""
        self._dedicated = {entry.name: frozenset(entry.dedicated_to) for entry in pools if entry.dedicated_to}
        for name, members in self._pools.items():
            members.dedicate(self._dedicated.get(name, frozenset()))

    def indexes(self) -> Iterable[tuple[PoolName, PoolIndex]]:
        return ((name, members.index) for name, members in self._pools.items())

    def outlier_status(self, pool: PoolName, now_s: float) -> OutlierStatus:
        """Return the status of the pool: its replicas that are out on passive evidence, that count as slower, or that
        are suspected with node or zone."""
        ready = self.index(pool).ready
        status = self.outliers.pool_status(pool, ready, now_s)
        if not self.suspicions.replicas:
            return status
        return replace(status, suspected=frozenset(self.suspicions.replicas.keys() & ready.keys()))

    def ejected(self, pool: PoolName, now_s: float) -> frozenset[ReplicaId]:
        """Return the replicas that are out on passive evidence, or suspected. If most of the ready replicas would be
        out on evidence, none is. Suspected ones are not returned if that would leave no ready replica."""
        status = self.outlier_status(pool, now_s)
        both = status.out | status.suspected
        return both if len(both) < len(self.index(pool).ready) else status.out

    def eject_outliers(self, now_s: float) -> list[ReplicaId]:
        """Eject replicas that perform much worse than the others of their pool. Return the ejected replicas."""
        return self.outliers.eject_outliers([(name, len(it.index.ready)) for name, it in self._pools.items()], now_s)

    def index(self, name: PoolName) -> PoolIndex:
        """Return the pool's index as decisions read it, empty for an unknown pool; valid until the next heartbeat."""
        members = self._pools.get(name)
        return members.index if members is not None else self._nobody

    def pool(self, name: PoolName) -> PoolView:
        members = self._pools.get(name)
        return members.view(name) if members is not None else PoolView(name=name, replicas=())

    def replica(self, replica_id: ReplicaId) -> ReplicaView | None:
        known = self._known.get(replica_id)
        return known.view if known is not None else None

    def heartbeats(self) -> list[tuple[Heartbeat, float]]:
        """Return every known replica's last heartbeat and when it was received (monotonic seconds), sorted by replica
        id."""
        return [(known.heartbeat, known.seen_s) for _, known in sorted(self._known.items())]

    def _put(self, view: ReplicaView) -> None:
        members = self._pools.get(view.pool)
        if members is None:
            members = self._pools[view.pool] = _Members()
            members.dedicate(self._dedicated.get(view.pool, frozenset()))
        members.put(view)

    def _drop(self, view: ReplicaView) -> None:
        members = self._pools[view.pool]
        members.drop(view.id)
        if not members.ids:
            del self._pools[view.pool]


def _with_noted(view: ReplicaView, known: _Known, now_s: float) -> ReplicaView:
    """Return the view with the noted adapters that have not expired; drop the others, and those in the heartbeat, from
    `known`."""
    for name in [name for name, until_s in known.noted.items() if now_s >= until_s or name in view.adapters]:
        del known.noted[name]
    return replace(view, adapters=view.adapters.union(known.noted)) if known.noted else view


def _with_withdrawn(view: ReplicaView, known: _Known, now_s: float) -> ReplicaView:
    """Return the view with `withdrawn`: the adapters that its heartbeats listed until recently. They are recorded in
    `known`, which still has the former view."""
    for name in known.view.adapters - view.adapters:
        if len(known.withdrawn) < _MAX_NOTED:
            known.withdrawn[name] = now_s + WITHDRAWN_FOR_S
    for name in [name for name, until_s in known.withdrawn.items() if now_s >= until_s or name in view.adapters]:
        del known.withdrawn[name]
    return replace(view, withdrawn=frozenset(known.withdrawn)) if known.withdrawn else view


def _order(heartbeat: Heartbeat) -> tuple[int, int]:
    return (heartbeat.incarnation, heartbeat.sequence)
