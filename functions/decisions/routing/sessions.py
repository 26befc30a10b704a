"""Sessions as routing stores them: hashes, never ids, in a table in which tenants evict only their own entries.

Neighbours: `functions.gateway.routing.homes` and `pins` store homes and versions of sessions; `homes` assumes a home.
"""

import hashlib
import heapq
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache
from typing import Generic, TypeVar

from functions.api.ids import TenantId

# Bounded table of sessions. Clients choose session ids freely.
#
#     full: the tenant with most entries loses its least recently used ones, until a 64th is free
#
# So a tenant that invents thousands of sessions evicts its own, not those of other tenants. The first bytes of a
# session's hash identify the tenant, so this also holds for sessions reported by other gateways.
# Worked example (test_a_tenant_with_many_sessions_loses_its_own): with room for 4, acme's five sessions and globex's
# one leave globex's one and acme's last three.
#
# A session hash has eight bytes; the first two identify the tenant. The id itself is not stored.


HASH_BYTES = 8
MARK_BYTES = 2  # for the tenant; 50,000 sessions of one tenant and rollout collide with a probability of 4 in 10^6


def session_hash(tenant: TenantId, session: str) -> bytes:
    """Return the hash of a tenant's session; it begins with the tenant's mark. The separator is unambiguous: a tenant's
    name has no bar in it."""
    text = f"{tenant}|{session}".encode(errors="surrogatepass")
    rest = hashlib.blake2b(text, digest_size=HASH_BYTES - MARK_BYTES, person=b"shoal-session").digest()
    return tenant_mark(tenant) + rest


@lru_cache(4096)
def tenant_mark(tenant: TenantId) -> bytes:
    """Return the first bytes of all session hashes of a tenant."""
    return hashlib.blake2b(tenant.encode(), digest_size=MARK_BYTES, person=b"shoal-tenant").digest()


Value = TypeVar("Value")
Name = TypeVar("Name", bound=str)  # subject of the entry: a rollout, a version

_FREED = 64  # one in so many entries is evicted at a time, since finding the largest tenant is expensive
_LOOKED_AT = 500  # tenants checked per call of `expire`; the next call continues with the next ones


class SessionTable(Generic[Name, Value]):
    """Bounded table of sessions. Owned by one event loop. A key is (name, session's hash)."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._tenants: dict[bytes, OrderedDict[tuple[Name, bytes], Value]] = {}  # least recently used first
        self._count = 0
        self._to_look_at: list[bytes] = []

    def get(self, key: tuple[Name, bytes]) -> Value | None:
        sessions = self._tenants.get(key[1][:MARK_BYTES])
        return sessions.get(key) if sessions is not None else None

    def put(self, key: tuple[Name, bytes], value: Value) -> None:
        """Add or renew an entry. Of its tenant's entries it is then the last one to be evicted. A full table evicts
        some of the tenants with the most entries."""
        sessions = self._tenants.setdefault(key[1][:MARK_BYTES], OrderedDict())
        self._count += key not in sessions
        sessions[key] = value
        sessions.move_to_end(key)
        if self._count > self._max_sessions:
            self._make_room()

    def expire(self, is_over: Callable[[Value], bool]) -> None:
        """Remove expired entries of a few hundred tenants per call. Each tenant is checked from its least recently used
        entry up to the first that is not expired."""
        self._to_look_at = self._to_look_at or list(self._tenants)
        looked_at, self._to_look_at = self._to_look_at[-_LOOKED_AT:], self._to_look_at[:-_LOOKED_AT]
        for mark in looked_at:
            sessions = self._tenants[mark]
            while sessions and is_over(next(iter(sessions.values()))):
                sessions.popitem(last=False)
                self._count -= 1
            if not sessions:
                del self._tenants[mark]

    def drop(self, names: Collection[Name]) -> None:
        for sessions in self._tenants.values():
            for key in [key for key in sessions if key[0] in names]:
                del sessions[key]
                self._count -= 1

    def items(self) -> Iterator[tuple[tuple[Name, bytes], Value]]:
        """Yield all entries. The table must not change meanwhile."""
        for sessions in self._tenants.values():
            yield from sessions.items()

    def __len__(self) -> int:
        return self._count

    def _make_room(self) -> None:
        """Evict a 64th of the entries, each time the oldest of the tenant that has the most. Each call walks over all
        tenants once."""
        most = [(-len(sessions), mark) for mark, sessions in self._tenants.items()]
        heapq.heapify(most)
        while self._count > self._max_sessions - self._max_sessions // _FREED:
            size, mark = most[0]
            self._tenants[mark].popitem(last=False)
            self._count -= 1
            heapq.heapreplace(most, (size + 1, mark))
