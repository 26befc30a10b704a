"""Cold loads that requests wait for, and copies of adapters, in virtual time.

This module does what `functions.gateway.routing.adapter_loads` and `adapter_copies` do, with their limits, but by
callbacks on a virtual clock. The same functions choose the replica.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from functions.api.ids import EngineName, ReplicaId
from functions.api.snapshot import RoutingEntry
from functions.decisions.adapters.cold import ColdChoice
from functions.decisions.routing.choice import NoReplica, RouteRequest
from functions.decisions.routing.own_load import OwnLoad
from functions.fleet.view import FleetView
from functions.gateway.routing.adapter_copies import MAX_AT_ONCE, PAUSE_S
from loadtests.routing.virtual_engine import POOL, Clock, Engine

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 2.0


@dataclass(slots=True)
class _Load:
    request: RouteRequest
    waiters: list[Callable[[], None]]
    asked: set[ReplicaId] = field(default_factory=set)
    pause_s: float = _FIRST_PAUSE_S


class VirtualCold:
    def __init__(
        self,
        engines: Mapping[ReplicaId, Engine],
        fleet: FleetView,
        load: OwnLoad,
        policy: RoutingEntry,
        clock: Clock,
        choice: ColdChoice,
    ) -> None:
        self._choice = choice
        self._engines, self._fleet, self._load, self._policy, self._clock = engines, fleet, load, policy, clock
        self._loads: dict[EngineName, _Load] = {}
        self._copies: dict[EngineName, None] = {}
        self._copied_s: dict[EngineName, float] = {}
        self.copies = 0

    def wait(self, request: RouteRequest, then: Callable[[], None]) -> None:
        """Call `then` when a replica has loaded the adapter."""
        load = self._loads.get(request.engine_name)
        if load is not None:
            load.waiters.append(then)
            return
        self._loads[request.engine_name] = _Load(request, [then])
        self._request_load(request.engine_name)

    def copy(self, name: EngineName, replica_id: ReplicaId) -> None:
        now_s = self._clock.now_s
        if len(self._copies) >= MAX_AT_ONCE or now_s - self._copied_s.get(name, -PAUSE_S) < PAUSE_S:
            return
        self._copied_s[name] = now_s
        self._copies[name] = None
        self.copies += 1
        self._fleet.reserve_adapter_slot(replica_id)
        self._engines[replica_id].load_cold(name)

    def loaded(self, engine: Engine, name: EngineName) -> None:
        self._copies.pop(name, None)
        self._fleet.note_adapter(engine.id, name, self._clock.now_s)
        load = self._loads.pop(name, None)
        for then in load.waiters if load is not None else ():
            then()

    def refused(self, _: Engine, name: EngineName) -> None:
        """Request the adapter from another replica, because this one has no room."""
        self._copies.pop(name, None)
        if name in self._loads:
            self._request_load(name)

    def _request_load(self, name: EngineName) -> None:
        load = self._loads.get(name)
        if load is None:
            return
        pool = self._fleet.pool(POOL)
        found = self._choice(load.request, pool, self._policy, self._load, load.asked)
        if isinstance(found, NoReplica):
            load.asked.clear()
            self._clock.at(self._clock.now_s + load.pause_s, lambda: self._request_load(name))
            load.pause_s = min(_LONGEST_PAUSE_S, 2 * load.pause_s)
            return
        load.asked.add(found.id)
        self._fleet.reserve_adapter_slot(found.id)
        self._engines[found.id].load_cold(name)
