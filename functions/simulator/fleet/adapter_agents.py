"""Adapter loads at the replicas' simulated agents: each request for a load gets exactly one answer.

A load takes the time of its tiers; further requests for the same adapter wait for the same load. Related modules:
`adapter_tiers` plans, `functions.gateway.routing` requests loads, `lifecycle` calls `tick` once a second.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from functions.api.ids import EngineName, ReplicaId
from functions.gateway.routing.load_client import LoadAnswer, LoadState
from functions.simulator.events import Events
from functions.simulator.fleet.adapter_tiers import Loading, ReplicaAdapterTiers
from functions.simulator.fleet.replica import Life, Replica

_ROUND_TRIP_S = 0.001
_CONNECT_S = 2.0  # timeout for connecting to an agent (`functions.gateway.routing.load_client`)

Done = Callable[[LoadAnswer], None]
_ANSWERS: Mapping[str, LoadState] = {
    "loaded": "loaded", "unknown": "unknown", "full": "no_room", "refused": "refused", "failed": "not_ready",
}  # fmt: skip


class AdapterAgents:
    def __init__(self, events: Events, replicas: Mapping[ReplicaId, Replica]) -> None:
        self._events = events
        self._replicas = replicas
        self._waiting: dict[ReplicaId, dict[EngineName, list[_Once]]] = {}

    def load(self, replica_id: ReplicaId, name: EngineName, wait_s: float, done: Done) -> None:
        once = _Once(done)
        replica, events = self._replicas.get(replica_id), self._events
        if replica is None or replica.adapters is None or not _listens(replica):
            is_dark = replica is not None and (replica.is_unreachable or replica.engine.is_frozen)
            events.after(_CONNECT_S if is_dark else _ROUND_TRIP_S, partial(once, "unreachable"))
            return
        answer, begun = replica.adapters.request_load(name, events.now_s + wait_s, events.now_s)
        if answer != "accepted":
            events.after(_ROUND_TRIP_S, partial(once, _ANSWERS[answer]))
            return
        self._waiting.setdefault(replica_id, {}).setdefault(name, []).append(once)
        events.after(wait_s, partial(once, "slow"))
        self._schedule_loads(replica, replica.adapters, begun)
        self._refuse(replica, replica.adapters)

    def tick(self, replica: Replica) -> None:
        """Carry out the agent's plan unless its engine is frozen, and refuse requests for which there is no room.
        Called once a second."""
        adapters = replica.adapters
        if adapters is not None and not replica.engine.is_frozen:
            self._schedule_loads(replica, adapters, adapters.tick(self._events.now_s))
            self._refuse(replica, adapters)

    def _schedule_loads(self, replica: Replica, adapters: ReplicaAdapterTiers, begun: Iterable[Loading]) -> None:
        for name, ready_s in begun:
            self._events.at(ready_s, partial(self._loaded, replica, replica.incarnation, adapters, name))

    def _loaded(self, replica: Replica, incarnation: int, adapters: ReplicaAdapterTiers, name: EngineName) -> None:
        if replica.incarnation != incarnation:
            return
        self._schedule_loads(replica, adapters, adapters.loaded(name, self._events.now_s))
        for done in self._waiting.get(replica.id, {}).pop(name, ()):
            done("loaded" if replica.answers else "unreachable")

    def _refuse(self, replica: Replica, adapters: ReplicaAdapterTiers) -> None:
        """Answer `no_room` to the waiting requests of adapters that the agent no longer wants to load."""
        waiting = self._waiting.get(replica.id)
        if waiting is None:
            return
        for name in [name for name in waiting if not adapters.is_wanted(name)]:
            for done in waiting.pop(name):
                self._events.after(_ROUND_TRIP_S, partial(done, "no_room"))
        if not waiting:
            del self._waiting[replica.id]


def _listens(replica: Replica) -> bool:
    return replica.answers and replica.life is Life.READY and not replica.engine.is_frozen


class _Once:
    """Callback that passes on the first answer and ignores later ones."""

    __slots__ = ("_done",)

    def __init__(self, done: Done) -> None:
        self._done: Done | None = done

    def __call__(self, state: LoadState) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(LoadAnswer(state))
