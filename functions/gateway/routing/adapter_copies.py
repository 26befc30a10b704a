"""Second copies of hot adapters, loaded in the background without any request waiting.

Routing decides where a copy would pay (`functions.decisions.routing.choice`), and this module requests it from the
replica's agent. At most MAX_AT_ONCE requests run at a time. An adapter is requested at most once per PAUSE_S,
independent of the result. By then heartbeats report the copy and the load has had time to move.

`router` reports the demand; `adapter_loads` sends the loads that requests wait for.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable

from functions.api.ids import EngineName, ReplicaId
from functions.fleet.tasks import Supervised
from functions.fleet.view import FleetView
from functions.gateway.routing.load_client import Loader

_log = logging.getLogger(__name__)
MAX_AT_ONCE = 8
PAUSE_S = 10.0
_WAIT_S = 30.0
_MAX_REMEMBERED = 4096


class AdapterCopies:
    """Background copies of adapters. Owned by one event loop; does nothing without a loader."""

    def __init__(self, loader: Loader | None, fleet: FleetView, tasks: Supervised, clock: Callable[[], float]) -> None:
        self._loader = loader
        self._fleet = fleet
        self._tasks = tasks
        self._clock = clock
        self._asked_s: OrderedDict[EngineName, float] = OrderedDict()
        self.under_way = 0

    def request_copy(self, name: EngineName, replica_id: ReplicaId) -> None:
        """Start, in the background, a load of the adapter on a replica that could have answered sooner with it.

        Do nothing without a loader, with MAX_AT_ONCE under way, or within PAUSE_S of the adapter's last copy.
        """
        now_s = self._clock()
        if self._loader is None or self.under_way >= MAX_AT_ONCE:
            return
        if now_s - self._asked_s.get(name, -PAUSE_S) < PAUSE_S:
            return
        self._asked_s[name] = now_s
        self._asked_s.move_to_end(name)
        if len(self._asked_s) > _MAX_REMEMBERED:
            self._asked_s.popitem(last=False)
        self.under_way += 1
        self._tasks.once(f"copy of {name}", self._load(self._loader, name, replica_id))

    async def _load(self, loader: Loader, name: EngineName, replica_id: ReplicaId) -> None:
        try:
            replica = self._fleet.replica(replica_id)
            if replica is None:
                return
            self._fleet.reserve_adapter_slot(replica_id)
            answer = await loader.load(replica, name, _WAIT_S)
            if answer.state == "loaded":
                self._fleet.note_adapter(replica_id, name, self._clock())
                _log.info("adapter %s also loaded on %s: its other replicas were busy", name, replica_id)
            else:
                _log.info("adapter %s not copied to %s: %s %s", name, replica_id, answer.state, answer.reason)
        finally:
            self.under_way -= 1
