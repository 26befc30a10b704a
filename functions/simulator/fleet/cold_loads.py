"""Adapters that nobody of a pool has: asked for at an agent, once for all requests of a gateway that wait for the same.

The rules are those of `functions.gateway.routing.adapter_loads`, in virtual time: the one chosen by
`decisions.adapters.cold` is asked, after a refusal the next one; when all have refused they are asked again after a
pause that doubles, until the time is over. Second copies of hot adapters (`decisions.adapters.copies`) are asked for
in the background.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.api.snapshot import RoutingEntry
from functions.decisions.adapters.cold import choose_cold
from functions.decisions.routing.choice import NoReplica, ReplicaView, RouteRequest
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.replicas import Row
from functions.fleet.view import FleetView
from functions.simulator.events import Events
from functions.simulator.fleet.request import Request

LoadState = Literal["loaded", "unknown", "no_room", "slow", "failed", "unreachable"]
Pick = Callable[[Sequence[Row]], Row]
Told = Callable[[Request, ReplicaId | None, str], None]
LoadAdapter = Callable[[ReplicaId, EngineName, float, Callable[[LoadState], None]], None]

_MAX_CALLS = 16
_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 2.0
_LEAST_WAIT_S = 0.05
_MAX_WAITING, _MAX_WAITING_EACH, _MAX_LOADS = 2048, 256, 512  # as `functions.gateway.limits`
_COPY_PAUSE_S, _MAX_COPIES, _COPY_WAIT_S, _MAX_COPY_NAMES = (
    10.0,
    8,
    30.0,
    4096,
)  # as `functions.gateway.routing.adapter_copies`


@dataclass(slots=True, eq=False)
class _Load:
    wanted: RouteRequest  # the first one's: the others wait for the same adapter
    pool: PoolName
    policy: RoutingEntry
    pick: Pick | None
    ends_s: float
    told: Told
    waiters: dict[Request, None] = field(default_factory=dict)
    tried: set[ReplicaId] = field(default_factory=set)
    calls: int = 0
    pause_s: float = _PAUSE_S
    last: str = "no_replica"
    asked: ReplicaId | None = None


class ColdLoads:
    """Of one gateway."""

    def __init__(
        self, fleet: FleetView, load: OwnLoad, events: Events, load_adapter: LoadAdapter, wait_s: float
    ) -> None:
        self._fleet = fleet
        self._load = load
        self._events = events
        self._ask = load_adapter
        self._wait_s = wait_s
        self._loads: dict[tuple[PoolName, EngineName], _Load] = {}
        self._copied_s: OrderedDict[EngineName, float] = OrderedDict()
        self._copying = 0
        self.waiting = 0

    def wait(self, request: Request, wanted: RouteRequest, policy: RoutingEntry, pick: Pick | None, told: Told) -> None:
        """`told` is called once: with who has it, or with nobody and why."""
        key = (request.pool, wanted.engine_name)
        load = self._loads.get(key)
        is_full = self.waiting >= _MAX_WAITING or (load is None and len(self._loads) >= _MAX_LOADS)
        if is_full or (load is not None and len(load.waiters) >= _MAX_WAITING_EACH):
            told(request, None, "too_many")
            return
        self.waiting += 1
        if load is not None:
            load.waiters[request] = None
            return
        load = _Load(wanted, request.pool, policy, pick, self._events.now_s + self._wait_s, told)
        load.waiters[request] = None
        self._loads[key] = load
        self._next(load)

    def copy(self, name: EngineName, replica_id: ReplicaId) -> None:
        """Where a second one would pay."""
        now_s = self._events.now_s
        if self._copying >= _MAX_COPIES or now_s - self._copied_s.get(name, -_COPY_PAUSE_S) < _COPY_PAUSE_S:
            return
        self._copied_s[name] = now_s
        self._copied_s.move_to_end(name)
        if len(self._copied_s) > _MAX_COPY_NAMES:
            self._copied_s.popitem(last=False)
        self._copying += 1
        self._fleet.take_room(replica_id)
        self._ask(replica_id, name, _COPY_WAIT_S, partial(self._copied, name, replica_id))

    def replica_lost(self, replica_id: ReplicaId) -> None:
        """Calls to its agent are given up for another's."""
        for load in list(self._loads.values()):
            if load.asked == replica_id:
                self._answered(load, load.calls, replica_id, "unreachable")

    # inside

    def _next(self, load: _Load) -> None:
        """Ask one more, if there is any sense in it."""
        holder = self._holder(load)
        if holder is not None:
            self._tell(load, holder)
            return
        replica = self._choose(load)
        left_s = load.ends_s - self._events.now_s
        if isinstance(replica, NoReplica):
            if not load.tried or left_s <= load.pause_s:
                self._tell(load, None)
                return
            load.tried.clear()
            self._events.after(load.pause_s, partial(self._next, load))
            load.pause_s = min(_LONGEST_PAUSE_S, 2 * load.pause_s)
            return
        if load.calls >= _MAX_CALLS or left_s <= _LEAST_WAIT_S:
            self._tell(load, None)
            return
        load.calls += 1
        load.asked = replica.id
        load.tried.add(replica.id)
        self._fleet.take_room(replica.id)
        self._ask(replica.id, load.wanted.engine_name, left_s, partial(self._answered, load, load.calls, replica.id))

    def _answered(self, load: _Load, call: int, replica_id: ReplicaId, state: LoadState) -> None:
        if load.asked != replica_id or load.calls != call:
            return  # given up meanwhile
        load.asked, load.last = None, state
        if state == "loaded":
            self._fleet.note_adapter(replica_id, load.wanted.engine_name, self._events.now_s)
            self._tell(load, replica_id)
        elif state == "slow":
            self._tell(load, None)
        else:
            self._next(load)

    def _choose(self, load: _Load) -> ReplicaView | NoReplica:
        out = self._fleet.ejected(load.pool, self._events.now_s) | load.tried
        if load.pick is None:
            return choose_cold(load.wanted, self._fleet.pool(load.pool), load.policy, self._load, out)
        rows = [row for row in self._fleet.index(load.pool).rows if row[0] not in out and row[6].peer_port]
        return load.pick(rows)[6] if rows else NoReplica("all_tried")

    def _holder(self, load: _Load) -> ReplicaId | None:
        out = self._fleet.ejected(load.pool, self._events.now_s)
        held = self._fleet.index(load.pool).rows_of(load.wanted.engine_name)
        return min((row[0] for row in held if row[0] not in out), default=None)

    def _tell(self, load: _Load, replica_id: ReplicaId | None) -> None:
        del self._loads[load.pool, load.wanted.engine_name]
        waiters, load.waiters = list(load.waiters), {}
        self.waiting -= len(waiters)
        for request in waiters:
            load.told(request, replica_id, load.last)

    def _copied(self, name: EngineName, replica_id: ReplicaId, state: LoadState) -> None:
        self._copying -= 1
        if state == "loaded":
            self._fleet.note_adapter(replica_id, name, self._events.now_s)
