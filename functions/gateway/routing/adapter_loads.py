"""Loading of adapters that no replica has: requested of an agent, once for all requests that wait for the same one.

    wait -> (choose a replica -> ask its agent)* -> loaded: the requests are routed there at once
                  ^ no room, not yet known, draining, gone |-> refused, or the time is over: they are told why

One load an adapter and gateway is under way at a time, however many wait; agents join those of several gateways. A
replica that cannot is followed by the next one; when all have said so they are asked again, after a pause that doubles,
until the time is over. Requests leave when their client does, or at their own deadline; the load goes on, for the next.

Bounded: requests that wait for one adapter and in all, loads (whose clients may all have left), calls a load, seconds.
One tenant's adapters get at most half of the waiting and of the loads, so that a flood of them leaves room for others'.
While a pool is on its overload ladder, its adapters are loaded one at a time: a load takes steps from those who are
being answered. With several gateways each has its part of the time (`next_turn_s`). It is not none at all: who needs
one would be shut out for as long as others ask for too much.
An artifact that an agent refused is not asked for again for a moment, so that a flood of requests for it costs nothing.
Worked example (test_fifty_at_once_are_one_call): 50 requests for one cold adapter make one call and 50 answers.
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

MAX_CALLS = 16  # a load: a few replicas, asked a few times
_LONGEST_PAUSE_S = 2.0
_REFUSED_FOR_S = 2.0
_MAX_REFUSED = 1024
_LEAST_WAIT_S = 0.05  # a call with less time than this is not worth making


@dataclass(frozen=True, slots=True)
class ColdFailed:
    """Why the adapter is not there; `reason` is for people, in an agent's words where it gave some."""

    outcome: ColdOutcome
    reason: str = ""


class Waiter(Protocol):
    """A request that waits."""

    def adapter_loaded(self, replica: ReplicaView) -> None: ...

    def adapter_not_loaded(self, failed: ColdFailed) -> None: ...


@dataclass(slots=True, eq=False)
class _AdapterLoad:
    """One adapter on its way."""

    request: RouteRequest  # the first one's: the others ask for the same adapter
    pool: PoolName
    policy: RoutingEntry
    excluded: frozenset[ReplicaId]
    began_s: float
    ends_s: float
    lacking: frozenset[ReplicaId] = frozenset()  # those of all
    waiters: dict[Waiter, None] = field(default_factory=dict)
    asked: ReplicaId | None = None
    call: asyncio.Timeout | None = None


class ColdLoads:
    """Owned by one event loop. Times are monotonic seconds."""

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
        """`own` is what is under way, `choice` says who is asked; `on_end` hears each load's outcome and seconds;
        `is_overloaded`: the pool is on its overload ladder; `gateways`: how many load adapters there."""
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
        self._turns_s: dict[PoolName, float] = {}  # before then it is the other gateways' turn
        self._loads: dict[tuple[PoolName, EngineName], _AdapterLoad] = {}
        self._refused: OrderedDict[EngineName, tuple[float, ColdFailed]] = OrderedDict()
        self.waiting = 0

    def wait(
        self,
        waiter: Waiter,
        request: RouteRequest,
        pool: PoolName,
        policy: RoutingEntry,
        excluded: frozenset[ReplicaId],
        *,
        lacking: frozenset[ReplicaId] = frozenset(),
    ) -> ColdFailed | None:
        """Wait for the adapter, or be told at once why not. None: one of the waiter's two methods will be called.

        `excluded` are not asked. The engines of those `lacking` have said that they do not have it, whatever their
        heartbeats say: those are asked when nobody else can load it.
        """
        known = self._refused.get(request.engine_name)
        if known is not None and self._clock() < known[0]:
            return known[1]
        load = self._loads.get((pool, request.engine_name))
        if self._is_full(load, request.engine_name):
            return ColdFailed("too_many")
        if load is None:
            load = self._begin(request, pool, policy, excluded)
        load.lacking |= lacking
        load.waiters[waiter] = None
        self.waiting += 1
        return None

    def leave(self, waiter: Waiter, pool: PoolName, engine_name: EngineName) -> None:
        """It waits no more; does nothing where it did not."""
        load = self._loads.get((pool, engine_name))
        if load is not None and waiter in load.waiters:
            del load.waiters[waiter]
            self.waiting -= 1

    def replica_lost(self, replica_id: ReplicaId) -> None:
        """The fleet says that it is gone: a call to its agent is given up for another replica's."""
        for load in self._loads.values():
            if load.asked == replica_id and load.call is not None and not load.call.expired():
                load.call.reschedule(asyncio.get_running_loop().time())

    # inside

    def _is_full(self, load: _AdapterLoad | None, name: EngineName) -> bool:
        """Whether one more may not wait for this adapter, whose `load` is under way already or not."""
        limits = self._limits
        if self.waiting >= limits.cold_waiting or (load is None and len(self._loads) >= limits.cold_loads):
            return True
        if load is not None and len(load.waiters) >= limits.cold_waiting_per_adapter:
            return True
        theirs = [other for other in self._loads.values() if _owner(other.request.engine_name) == _owner(name)]
        waiting = sum(len(other.waiters) for other in theirs)
        return waiting >= _half(limits.cold_waiting) or (load is None and len(theirs) >= _half(limits.cold_loads))

    def _begin(
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
            self._tell(load, found)

    async def _find(self, load: _AdapterLoad) -> ReplicaView | ColdFailed:
        """Ask one agent after the other, until one has it or there is no sense in asking on."""
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
            is_held = not await self._its_turn(load)
            if is_held or self._left_s(load) <= _LEAST_WAIT_S or not load.waiters:
                return ColdFailed("held_back") if is_held else last
            asked.add(replica.id)
            answer = await self._ask(load, replica)
            if answer.state == "loaded":
                self._fleet.note_adapter(replica.id, load.request.engine_name, self._clock())
                return self._fleet.replica(replica.id) or replica
            last = _meaning(answer)
            if last.outcome in ("refused", "slow"):
                return last
        return last

    async def _its_turn(self, load: _AdapterLoad) -> bool:
        """At once, but for a pool that is overloaded: when no other adapter is loaded there, and the other gateways
        have had their turns. Those that came before go first. False: it was not in time."""
        while self._is_overloaded(load.pool) and (self._is_others_turn(load.pool) or self._is_behind(load)):
            if self._left_s(load) <= _LEAST_WAIT_S:
                return False
            await asyncio.sleep(min(self._limits.cold_pause_s, self._left_s(load)))
        return True

    def _is_others_turn(self, pool: PoolName) -> bool:
        return self._clock() < self._turns_s.get(pool, 0.0)

    def _is_behind(self, load: _AdapterLoad) -> bool:
        """Whether another one is being loaded, or is the first to wait for that."""
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
        """Whoever has loaded it meanwhile, by itself or at somebody else's request."""
        out = self._fleet.ejected(load.pool, self._clock()) | load.excluded | load.lacking
        for replica in self._fleet.pool(load.pool).replicas:
            if replica.phase == "ready" and replica.id not in out and load.request.engine_name in replica.adapters:
                return replica
        return None

    async def _ask(self, load: _AdapterLoad, replica: ReplicaView) -> LoadAnswer:
        load.asked, began_s = replica.id, self._clock()
        self._fleet.take_adapter_slot(replica.id)
        try:
            async with asyncio.timeout(None) as load.call:  # `replica_lost` may end it
                return await self._loader.load(replica, load.request.engine_name, self._left_s(load))
        except TimeoutError:
            return LoadAnswer("unreachable", "the replica was lost while it loaded")
        finally:
            load.asked = load.call = None
            ended_s = self._clock()
            self._turns_s[load.pool] = next_turn_s(ended_s, ended_s - began_s, self._gateways())

    def _left_s(self, load: _AdapterLoad) -> float:
        return max(0.0, load.ends_s - self._clock())

    def _tell(self, load: _AdapterLoad, found: ReplicaView | ColdFailed) -> None:
        self.waiting -= len(load.waiters)
        waiters, load.waiters = list(load.waiters), {}
        self._on_end("loaded" if isinstance(found, ReplicaView) else found.outcome, self._clock() - load.began_s)
        if isinstance(found, ColdFailed) and found.outcome == "refused":
            self._refused[load.request.engine_name] = (self._clock() + _REFUSED_FOR_S, found)
            self._refused.move_to_end(load.request.engine_name)
            while len(self._refused) > _MAX_REFUSED:
                self._refused.popitem(last=False)
        loop = asyncio.get_running_loop()
        for waiter in waiters:  # each by itself: one that fails must not keep the word from the others
            if isinstance(found, ReplicaView):
                loop.call_soon(waiter.adapter_loaded, found)
            else:
                loop.call_soon(waiter.adapter_not_loaded, found)


def _owner(name: EngineName) -> str:
    """The tenant whose adapter it is: the first part of its name."""
    return name.partition("/")[0]


def _half(bound: int) -> int:
    return max(1, bound // 2)


def _meaning(answer: LoadAnswer) -> ColdFailed:
    outcomes: dict[str, ColdOutcome] = {"refused": "refused", "no_room": "no_room", "slow": "slow"}
    return ColdFailed(outcomes.get(answer.state, "no_replica"), answer.reason)
