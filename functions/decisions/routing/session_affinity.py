"""Where each session's last request went, so that the next one may find its conversation in a cache.

Held for the pool's session time (`session.ttl` of its RoutingPolicy) after the last request. Each gateway remembers by
itself: a session usually stays with its connection; where it does not, equal replicas are told apart by a hash of the
session (`routing`), so that gateways agree, and the prefix sources know of caches in any case.
Whether the session goes back is routing's affair: a replica that is gone or has its share is not waited for.
Worked example (test_a_session_is_remembered_for_its_time): with 300 s, a session sent to A at 0 s and at 200 s is A's
until 500 s.

Bounded, each tenant at its own cost (`session_table`); what is kept of a session is a hash.
"""

from collections.abc import Callable
from dataclasses import dataclass

from functions.api.ids import PoolName, ReplicaId, TenantId
from functions.decisions.routing.session_hash import session_hash
from functions.decisions.routing.session_table import SessionTable

MAX_SESSIONS = 100_000  # about 30 MB


@dataclass(slots=True)
class _Home:
    replica_id: ReplicaId
    until_s: float


class SessionAffinity:
    """Owned by one event loop."""

    def __init__(self, clock: Callable[[], float], max_sessions: int = MAX_SESSIONS) -> None:
        self._clock = clock
        self._homes: SessionTable[PoolName, _Home] = SessionTable(max_sessions)

    def replica_of(self, pool: PoolName, tenant: TenantId, session: str) -> ReplicaId | None:
        home = self._homes.get((pool, session_hash(tenant, session)))
        return home.replica_id if home is not None and self._clock() < home.until_s else None

    def sent(self, pool: PoolName, tenant: TenantId, session: str, replica_id: ReplicaId, ttl_s: float) -> None:
        """Its request goes there."""
        if ttl_s > 0.0:
            self._homes.put((pool, session_hash(tenant, session)), _Home(replica_id, self._clock() + ttl_s))

    def expire(self) -> None:
        """Forget what has run out; called a few times a second."""
        now_s = self._clock()
        self._homes.expire(lambda home: home.until_s <= now_s)

    def __len__(self) -> int:
        return len(self._homes)
