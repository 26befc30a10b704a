"""Sessions as routing keeps them: a hash each, never the id, in a table that each tenant fills at its own cost.

Neighbours: `functions.gateway.routing.homes` and `pins` keep where sessions belong; `homes` is where they would.
"""

import hashlib
import heapq
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache
from typing import Generic, TypeVar

from functions.api.ids import TenantId

# Bounded table of sessions, which clients name as they like: a tenant evicts only its own.
#
#     full: whoever has most entries loses the longest silent of them, until a 64th is free
#
# So a tenant that invents sessions by the thousand drives out its own, never another's. Whose a session is, the first
# bytes of its hash say (`sessions`), so that this holds for what other gateways tell too.
# Worked example (test_a_tenant_with_many_sessions_loses_its_own): with room for 4, acme's five sessions and globex's
# one leave globex's one and acme's last three.


# Session hash: eight bytes, the first two of them the tenant's, never the id itself.
#
# So what is kept by sessions can be bounded for each tenant apart.


HASH_BYTES = 8
MARK_BYTES = 2  # of them, the tenant's. 50,000 sessions of one tenant and rollout collide with a chance of 4 in 10^6


def session_hash(tenant: TenantId, session: str) -> bytes:
    """A tenant's name has no bar in it."""
    text = f"{tenant}|{session}".encode(errors="surrogatepass")
    rest = hashlib.blake2b(text, digest_size=HASH_BYTES - MARK_BYTES, person=b"shoal-session").digest()
    return tenant_mark(tenant) + rest


@lru_cache(4096)
def tenant_mark(tenant: TenantId) -> bytes:
    """The first bytes of each of its hashes."""
    return hashlib.blake2b(tenant.encode(), digest_size=MARK_BYTES, person=b"shoal-tenant").digest()


Value = TypeVar("Value")
Name = TypeVar("Name", bound=str)  # what the entry is about: a rollout, a version

_FREED = 64  # of so many entries, one is freed at a time: looking for who has most is not done for each
_LOOKED_AT = 500  # tenants, each time that what is over is looked for: the next ones the next time


class SessionTable(Generic[Name, Value]):
    """Owned by one event loop. A key is (name, session's hash)."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._tenants: dict[bytes, OrderedDict[tuple[Name, bytes], Value]] = {}  # each with the longest silent first
        self._count = 0
        self._to_look_at: list[bytes] = []

    def get(self, key: tuple[Name, bytes]) -> Value | None:
        sessions = self._tenants.get(key[1][:MARK_BYTES])
        return sessions.get(key) if sessions is not None else None

    def put(self, key: tuple[Name, bytes], value: Value) -> None:
        """New or renewed: it is the last that may go."""
        sessions = self._tenants.setdefault(key[1][:MARK_BYTES], OrderedDict())
        self._count += key not in sessions
        sessions[key] = value
        sessions.move_to_end(key)
        if self._count > self._max_sessions:
            self._make_room()

    def expire(self, is_over: Callable[[Value], bool]) -> None:
        """Forget what is over, a few hundred tenants a call; each from the longest silent to the first that is not."""
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
        """Forget all that is about these."""
        for sessions in self._tenants.values():
            for key in [key for key in sessions if key[0] in names]:
                del sessions[key]
                self._count -= 1

    def items(self) -> Iterator[tuple[tuple[Name, bytes], Value]]:
        """All of them; nothing may be put meanwhile."""
        for sessions in self._tenants.values():
            yield from sessions.items()

    def __len__(self) -> int:
        return self._count

    def _make_room(self) -> None:
        """Costs a look at every tenant, once for each 64th of the entries."""
        most = [(-len(sessions), mark) for mark, sessions in self._tenants.items()]
        heapq.heapify(most)
        while self._count > self._max_sessions - self._max_sessions // _FREED:
            size, mark = most[0]
            self._tenants[mark].popitem(last=False)
            self._count -= 1
            heapq.heapreplace(most, (size + 1, mark))
