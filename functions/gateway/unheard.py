"""Connection checks of silent replicas, before their silence is believed.

If most replicas are silent at the same time, the bus has more likely failed than all of them
(`functions.decisions.health.expiry`). So the gateway connects to each one, and again every ASKED_AGAIN_S. A replica
that accepts the connection stays in use; another one is removed. An engine that accepts connections but answers
nothing is ejected by its failing requests, as always.

Owned by one event loop. Neighbours: `gateway` sweeps it.
"""

from collections.abc import Callable

from functions.api.ids import ReplicaId
from functions.decisions.routing.replicas import ReplicaView
from functions.gateway.services import Services

ASKED_AGAIN_S = 5.0
ASKED_AT_ONCE = 64  # connections at the same time: a fleet of thousands is checked over some seconds


class UnheardReplicas:
    def __init__(self, is_out: Callable[[ReplicaId], None]) -> None:
        """`is_out`: callback that removes a replica and moves its requests elsewhere."""
        self._is_out = is_out
        self._again_s: dict[ReplicaId, float] = {}  # next check of replicas that accepted the connection
        self._asking: set[ReplicaId] = set()

    def sweep(self, services: Services, now_s: float) -> None:
        """Start the due connection checks of doubted replicas, ASKED_AT_ONCE at a time; called a few times a second."""
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
                services.tasks.once("ask an unheard replica", self._connect(services, replica))

    async def _connect(self, services: Services, replica: ReplicaView) -> None:
        connect_s = services.limits.connect_s
        try:
            connection = await services.upstreams.dial(replica.id, replica.host, replica.port, connect_s)
        except (OSError, ValueError):  # ValueError: a malformed host name
            if replica.id in services.fleet.expiry.doubted:  # no heartbeat came in the meantime
                self._is_out(replica.id)
        else:
            services.upstreams.release(connection)
            self._again_s[replica.id] = services.clock() + ASKED_AGAIN_S
        finally:
            self._asking.discard(replica.id)
