"""Loads of adapters that no replica has, requested from an agent once for all requests that wait for the same
adapter.

    wait -> (choose a replica -> request its agent)* -> loaded: the requests are routed to it at once
                  ^ no room, unknown yet, draining, gone |-> refused, or out of time: the requests fail with the reason

A gateway has one load per adapter in progress, for any number of waiting requests. Agents join the loads of several
gateways. If a replica cannot load the adapter, the next one is tried. After all have failed they are tried again,
after a pause that doubles, until the time is over. A request leaves when its client does or at its own deadline. The
load continues for later requests.

Limits: waiting requests per adapter and in all, loads (whose clients may all have left), calls per load, and seconds.
The adapters of one tenant get at most half of the waiting requests and of the loads, so that a flood of them leaves
room for others. While a pool is on its overload ladder, its adapters are loaded one at a time, because a load delays
requests that are being answered. Several gateways share that time (`next_turn_s`). Loading does not stop entirely:
otherwise a request for a cold adapter would be locked out for as long as the overload lasts. An artifact that an
agent refused is not requested again for a moment, so that a flood of requests for it costs nothing. Worked example
(test_fifty_concurrent_requests_make_one_load_call): 50 requests for one cold adapter make one call and get 50 answers.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.api.snapshot import RoutingEntry
from functions.decisions.adapters.cold import ColdChoice, choose_cold, next_turn_s
from functions.decisions.routing.choice import NoReplica, ReplicaView, RouteRequest
from functions.decisions.routing.own_load import OwnLoad
from functions.fleet.tasks import Supervised
from functions.fleet.view import FleetView
from functions.gateway.limits import Limits
from functions.gateway.routing.load_client import LoadAnswer, Loader

ColdOutcome = Literal["loaded", "refused", "no_room", "slow", "no_replica", "too_many", "held_back", "failed"]

MAX_CALLS = 16  # calls per load: a few replicas, a few tries each
_LONGEST_PAUSE_S = 2.0
_REFUSED_FOR_S = 2.0
_MAX_REFUSED = 1024
_LEAST_WAIT_S = 0.05  # smallest remaining time for which a call is made


@dataclass(frozen=True, slots=True)
class ColdFailed:
    """Reason why the adapter was not loaded. `reason` is a text for people, if possible the agent's."""

    outcome: ColdOutcome
    reason: str = ""


class AdapterWaiter(Protocol):
    """A request that waits for an adapter."""

    def adapter_loaded(self, replica: ReplicaView) -> None: ...

    def adapter_not_loaded(self, failed: ColdFailed) -> None: ...


@dataclass(slots=True, eq=False)
class _AdapterLoad:
    """Load of one adapter in progress."""

    request: RouteRequest  # request of the first waiter; the others need the same adapter
    pool: PoolName
    policy: RoutingEntry
    excluded: frozenset[ReplicaId]
    began_s: float
    ends_s: float
    lacking: frozenset[ReplicaId] = frozenset()  # replicas that any waiter found to lack the adapter
    waiters: dict[AdapterWaiter, None] = field(default_factory=dict)
    asked: ReplicaId | None = None
    call: asyncio.Timeout | None = None


class ColdLoads:
    """Loads of cold adapters in progress. Owned by one event loop; times are monotonic seconds."""

    def __init__(
        self,
        loader: Loader,
        *,
        limits: Limits,
        clock: Callable[[], float],
        tasks: Supervised,
        fleet: FleetView,
        own: OwnLoad,
        choice: ColdChoice = choose_cold,
        on_end: Callable[[ColdOutcome, float], None],
        is_overloaded: Callable[[PoolName], bool] = lambda _: False,
        gateways: Callable[[], int] = lambda: 1,
    ) -> None:
        """Set up without loads.

        `own` is the load of this gateway's requests, and `choice` chooses the replica. `on_end` receives the outcome
        and seconds of each load. `is_overloaded` returns True if the pool is on its overload ladder. `gateways`
        returns the number of gateways that load adapters there.
        """
        self._loader = loader
        self._limits = limits
        self._clock = clock
        self._tasks = tasks
        self._fleet = fleet
        self._own = own
        self._choice = choice
        self._on_end = on_end
        self._is_overloaded = is_overloaded
        self._gateways = gateways
        self._turns_s: dict[PoolName, float] = {}  # time before which other gateways may load
        self._loads: dict[tuple[PoolName, EngineName], _AdapterLoad] = {}
        self._refused: OrderedDict[EngineName, tuple[float, ColdFailed]] = OrderedDict()
        self.waiting = 0

    def wait(
        self,
        waiter: AdapterWaiter,
        request: RouteRequest,
        pool: PoolName,
        policy: RoutingEntry,
        excluded: frozenset[ReplicaId],
        *,
        lacking: frozenset[ReplicaId] = frozenset(),
    ) -> ColdFailed | None:
        """Wait for the adapter. Return the reason if that is impossible; None means that a method of the waiter will
        be called.

        Replicas in `excluded` are not used. Engines of replicas in `lacking` have reported that they lack the
        adapter, in contradiction to their heartbeats. They are used if no other replica can load it.
        """
        known = self._refused.get(request.engine_name)
        if known is not None and self._clock() < known[0]:
            return known[1]
        load = self._loads.get((pool, request.engine_name))
        if self._is_full(load, request.engine_name):
            return ColdFailed("too_many")
        if load is None:
            load = self._start_load(request, pool, policy, excluded)
        load.lacking |= lacking
        load.waiters[waiter] = None
        self.waiting += 1
        return None

    def leave(self, waiter: AdapterWaiter, pool: PoolName, engine_name: EngineName) -> None:
        """Stop waiting for the adapter; the load goes on. Does nothing if the waiter does not wait."""
        load = self._loads.get((pool, engine_name))
        if load is not None and waiter in load.waiters:
            del load.waiters[waiter]
            self.waiting -= 1

    def replica_lost(self, replica_id: ReplicaId) -> None:
        """Cancel a call to the agent of a lost replica, so that another replica is tried."""
        for load in self._loads.values():
            if load.asked == replica_id and load.call is not None and not load.call.expired():
                load.call.reschedule(asyncio.get_running_loop().time())

    # internals

    def _is_full(self, load: _AdapterLoad | None, name: EngineName) -> bool:
        """Return True if no further request may wait for this adapter, by the limits of all, the adapter or its tenant.

        `load` is its load in progress, if any.
        """
        limits = self._limits
        if self.waiting >= limits.cold_waiting or (load is None and len(self._loads) >= limits.cold_loads):
            return True
        if load is not None and len(load.waiters) >= limits.cold_waiting_per_adapter:
            return True
        theirs = [other for other in self._loads.values() if _owner(other.request.engine_name) == _owner(name)]
        waiting = sum(len(other.waiters) for other in theirs)
        return waiting >= _half(limits.cold_waiting) or (load is None and len(theirs) >= _half(limits.cold_loads))

    def _start_load(
        self, request: RouteRequest, pool: PoolName, policy: RoutingEntry, excluded: frozenset[ReplicaId]
    ) -> _AdapterLoad:
        now_s = self._clock()
        load = _AdapterLoad(request, pool, policy, excluded, now_s, now_s + self._limits.cold_wait_s)
        self._loads[pool, request.engine_name] = load
        self._tasks.once(f"cold load {request.engine_name}", self._run(load))
        return load

    async def _run(self, load: _AdapterLoad) -> None:
        found: ReplicaView | ColdFailed = ColdFailed("failed")
        try:
            found = await self._find(load)
        finally:
            del self._loads[load.pool, load.request.engine_name]
            self._notify_waiters(load, found)

    async def _find(self, load: _AdapterLoad) -> ReplicaView | ColdFailed:
        """Request the load from one agent after the other until one has it; return its replica.

        Return the last failure if further requests make no sense.
        """
        asked: set[ReplicaId] = set()
        last, pause_s = ColdFailed("no_replica"), self._limits.cold_pause_s
        for _ in range(MAX_CALLS):
            holder = self._holder(load)
            if holder is not None:
                return holder
            replica = self._choose(load, asked)
            if isinstance(replica, NoReplica):
                if not asked or self._left_s(load) <= pause_s:
                    return last
                await asyncio.sleep(pause_s)
                asked.clear()
                pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)
                continue
            is_held = not await self._wait_for_turn(load)
            if is_held or self._left_s(load) <= _LEAST_WAIT_S or not load.waiters:
                return ColdFailed("held_back") if is_held else last
            asked.add(replica.id)
            answer = await self._request_load(load, replica)
            if answer.state == "loaded":
                self._fleet.note_adapter(replica.id, load.request.engine_name, self._clock())
                return self._fleet.replica(replica.id) or replica
            last = _meaning(answer)
            if last.outcome in ("refused", "slow"):
                return last
        return last

    async def _wait_for_turn(self, load: _AdapterLoad) -> bool:
        """Wait until the load may run and return True; return False if that takes too long.

        Only loads in an overloaded pool wait: for the pool's other loads, in order of arrival, and for the turns of
        other gateways.
        """
        while self._is_overloaded(load.pool) and (self._is_others_turn(load.pool) or self._is_behind(load)):
            if self._left_s(load) <= _LEAST_WAIT_S:
                return False
            await asyncio.sleep(min(self._limits.cold_pause_s, self._left_s(load)))
        return True

    def _is_others_turn(self, pool: PoolName) -> bool:
        return self._clock() < self._turns_s.get(pool, 0.0)

    def _is_behind(self, load: _AdapterLoad) -> bool:
        """Return True if another adapter of the pool is being loaded, or is earlier in line."""
        for other in self._loads.values():
            if other is load:
                return any(each.asked is not None for each in self._loads.values() if each.pool == load.pool)
            if other.pool == load.pool and other.waiters:
                return True
        return False

    def _choose(self, load: _AdapterLoad, asked: set[ReplicaId]) -> ReplicaView | NoReplica:
        out = self._fleet.ejected(load.pool, self._clock()) | load.excluded | asked
        pool = self._fleet.pool(load.pool)
        chosen = self._choice(load.request, pool, load.policy, self._own, out | load.lacking)
        if load.lacking and isinstance(chosen, NoReplica):
            return self._choice(load.request, pool, load.policy, self._own, out)
        return chosen

    def _holder(self, load: _AdapterLoad) -> ReplicaView | None:
        """Return a ready, usable replica that has loaded the adapter meanwhile, for any reason, or None."""
        out = self._fleet.ejected(load.pool, self._clock()) | load.excluded | load.lacking
        for replica in self._fleet.pool(load.pool).replicas:
            if replica.phase == "ready" and replica.id not in out and load.request.engine_name in replica.adapters:
                return replica
        return None

    async def _request_load(self, load: _AdapterLoad, replica: ReplicaView) -> LoadAnswer:
        load.asked, began_s = replica.id, self._clock()
        self._fleet.reserve_adapter_slot(replica.id)
        try:
            async with asyncio.timeout(None) as load.call:  # `replica_lost` may end the call
                return await self._loader.load(replica, load.request.engine_name, self._left_s(load))
        except TimeoutError:
            return LoadAnswer("unreachable", "the replica was lost while it loaded")
        finally:
            load.asked = load.call = None
            ended_s = self._clock()
            self._turns_s[load.pool] = next_turn_s(ended_s, ended_s - began_s, self._gateways())

    def _left_s(self, load: _AdapterLoad) -> float:
        return max(0.0, load.ends_s - self._clock())

    def _notify_waiters(self, load: _AdapterLoad, found: ReplicaView | ColdFailed) -> None:
        self.waiting -= len(load.waiters)
        waiters, load.waiters = list(load.waiters), {}
        self._on_end("loaded" if isinstance(found, ReplicaView) else found.outcome, self._clock() - load.began_s)
        if isinstance(found, ColdFailed) and found.outcome == "refused":
            self._refused[load.request.engine_name] = (self._clock() + _REFUSED_FOR_S, found)
            self._refused.move_to_end(load.request.engine_name)
            while len(self._refused) > _MAX_REFUSED:
                self._refused.popitem(last=False)
        loop = asyncio.get_running_loop()
        for waiter in waiters:  # one call each: an exception in one must not affect the others
            if isinstance(found, ReplicaView):
                loop.call_soon(waiter.adapter_loaded, found)
            else:
                loop.call_soon(waiter.adapter_not_loaded, found)


def _owner(name: EngineName) -> str:
    """Return the tenant of the adapter, which is the first part of its name."""
    return name.partition("/")[0]


def _half(bound: int) -> int:
    return max(1, bound // 2)


def _meaning(answer: LoadAnswer) -> ColdFailed:
    outcomes: dict[str, ColdOutcome] = {"refused": "refused", "no_room": "no_room", "slow": "slow"}
    return ColdFailed(outcomes.get(answer.state, "no_replica"), answer.reason)
