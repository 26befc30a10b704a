"""Unheard replicas: those that are asked before their silence is believed.

Where most are silent at once it is the bus more likely than all of them (`functions.decisions.health.expiry`). So each
is dialled, and every ASKED_AGAIN_S again: one that takes connections stays in use, one that does not is out. Requests
say the rest: an engine that takes a connection and answers nothing is ejected by them, as ever.

Owned by one event loop. Neighbours: `gateway` sweeps it.
"""

from collections.abc import Callable

from functions.api.ids import ReplicaId
from functions.decisions.routing.replicas import ReplicaView
from functions.gateway.services import Services

ASKED_AGAIN_S = 5.0
ASKED_AT_ONCE = 64  # a fleet of thousands is asked over some seconds


class UnheardReplicas:
    def __init__(self, is_out: Callable[[ReplicaId], None]) -> None:
        """`is_out`: takes it out, and what waits for it elsewhere."""
        self._is_out = is_out
        self._again_s: dict[ReplicaId, float] = {}  # of those that took the connection
        self._asking: set[ReplicaId] = set()

    def sweep(self, services: Services, now_s: float) -> None:
        """A few times a second: asks those that are doubted now."""
        doubted = services.fleet.expiry.doubted
        if self._again_s:
            self._again_s = {each: again_s for each, again_s in self._again_s.items() if each in doubted}
        for replica_id in doubted:
            if len(self._asking) >= ASKED_AT_ONCE:
                return
            if replica_id in self._asking or now_s < self._again_s.get(replica_id, now_s):
                continue
            replica = services.fleet.replica(replica_id)
            if replica is not None:
                self._asking.add(replica_id)
                services.tasks.once("ask an unheard replica", self._ask(services, replica))

    async def _ask(self, services: Services, replica: ReplicaView) -> None:
        connect_s = services.limits.connect_s
        try:
            connection = await services.upstreams.dial(replica.id, replica.host, replica.port, connect_s)
        except (OSError, ValueError):  # ValueError: a host name that cannot be one
            if replica.id in services.fleet.expiry.doubted:  # nothing of it was heard meanwhile
                self._is_out(replica.id)
        else:
            services.upstreams.give_back(connection)
            self._again_s[replica.id] = services.clock() + ASKED_AGAIN_S
        finally:
            self._asking.discard(replica.id)
