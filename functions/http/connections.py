"""Client connections of a server: the limit on their number, and which one is closed to make room.

    stranger    no valid credential yet: every new connection, including one in its TLS handshake
    known       has sent a request with a valid credential

At the limit, a new connection replaces the stranger that has been idle longest, else the known connection that has
been idle longest. If every connection has a request under way, the new one is rejected. A client that opens many
connections and sends little therefore loses only its own. A normal client sends its head immediately and is closed
last (worked example: test_unknown_connections_at_the_limit_never_exclude_new_ones).

`most_per_address` limits one address (0: no limit, the default). Behind an ingress, a load balancer or NAT all
clients share a few addresses, and such a limit would apply to all of them together. An IPv6 /64 counts as one
address, because one subscriber has a /64.
"""

import ipaddress
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any, Literal, Protocol

_STILL_S = 1.0  # a known client that got its answer less than this ago may be sending its next request

Closed = Literal["crowded", "address", "no_room", "slow_reader"]


class Connection(Protocol):
    """One client connection as `Connections` sees it."""

    due_s: float  # monotonic time before which `check` would do nothing

    @property
    def idle_since_s(self) -> float | None:
        """Monotonic time since which the connection is idle; None while a request is under way."""

    def check(self, now_s: float) -> None:
        """Act on limits that the connection has exceeded."""

    def give_way(self) -> None:
        """Close immediately and drop unread data."""


class Connections:
    """Count the connections of a server and choose which one to close. Owned by one event loop."""

    def __init__(
        self,
        most: int,
        most_per_address: int = 0,
        on_closed: Callable[[Closed], None] = lambda reason: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Call `on_closed` with the reason for each connection that was closed or rejected for lack of room.
        `most_per_address`: 0 means no limit per address."""
        self._most, self._most_per_address = most, most_per_address
        self.closed = on_closed
        self._clock = clock
        self._addresses: dict[Connection, str] = {}  # address of every connection
        self._strangers: OrderedDict[Connection, None] = OrderedDict()  # in order of activity, most recent last
        self._per_address: Counter[str] = Counter()
        self._idle: deque[Connection] = deque()  # known connections that were idle at the last scan, longest idle first
        self._may_look = True

    def add(self, connection: Connection, address: str = "") -> bool:
        """Register a connection, closing an idle one if needed. Return False if there is no room, in all or for its
        address."""
        if self._most_per_address and self._per_address[address] >= self._most_per_address:
            self.closed("address")
            return False
        if len(self._addresses) >= self._most and not self._close_idle_connection():
            self.closed("no_room")
            return False
        self._addresses[connection] = address
        self._strangers[connection] = None
        if self._most_per_address:
            self._per_address[address] += 1
        return True

    def discard(self, connection: Connection) -> None:
        """Remove a connection that has ended or is being closed. An unknown connection is ignored."""
        address = self._addresses.pop(connection, None)
        if address is None:
            return
        self._strangers.pop(connection, None)
        if self._most_per_address:
            self._per_address[address] -= 1
            if not self._per_address[address]:
                del self._per_address[address]

    def replace(self, old: Connection, new: Connection) -> None:
        """Transfer a connection's entry to a new object: after its handshake, or when it changes its protocol class."""
        is_stranger = old in self._strangers
        address = self._addresses.pop(old)
        self._strangers.pop(old, None)
        self._addresses[new] = address
        if is_stranger:
            self._strangers[new] = None

    def is_known(self, connection: Connection) -> bool:
        return connection not in self._strangers

    def mark_known(self, connection: Connection) -> None:
        """Mark a connection that has sent a valid credential; it is then no longer among the strangers, which are
        closed first."""
        self._strangers.pop(connection, None)

    def mark_active(self, connection: Connection) -> None:
        """Record that a request of the connection begins or was answered. Among strangers it is now the last to be
        closed."""
        if connection in self._strangers:
            self._strangers.move_to_end(connection)

    def sweep(self, now_s: float) -> None:
        """Check all connections that are due, and allow the next scan for idle ones. Call a few times a second, but
        skip late rounds (`own_stalls`). Closing a connection that has an unread request resets it."""
        self._may_look = True
        for connection in [each for each in self._addresses if now_s >= each.due_s]:
            connection.check(now_s)

    def _close_idle_connection(self) -> bool:
        victim = next((each for each in self._strangers if each.idle_since_s is not None), None) or self._longest_idle()
        if victim is None:
            return False
        self.discard(victim)
        self.closed("crowded")
        victim.give_way()
        return True

    def _longest_idle(self) -> Connection | None:
        """Return the known connection that is idle longest; None if none is idle for _STILL_S. A full scan of 10,000
        takes a millisecond, so at most once a sweep."""
        if not self._idle and self._may_look:
            self._may_look = False
            idle = [(since_s, each) for each in self._addresses if (since_s := each.idle_since_s) is not None]
            idle.sort(key=lambda found: found[0])
            still_s = self._clock() - _STILL_S
            self._idle.extend(each for since_s, each in idle if since_s <= still_s)
        while self._idle:
            found = self._idle.popleft()
            if found in self._addresses and found.idle_since_s is not None:
                return found
        return None

    def __len__(self) -> int:
        return len(self._addresses)

    def __iter__(self) -> Iterator[Connection]:
        return iter(tuple(self._addresses))

    def __contains__(self, connection: object) -> bool:
        return connection in self._addresses


def address_of(peer: Any) -> str:
    """Return the address of a socket's peer: for IPv6 its /64 network, for an IPv4 address mapped to IPv6 the IPv4
    address, and an empty string if there is none."""
    if not isinstance(peer, tuple) or not peer:
        return ""
    host = str(peer[0])
    if ":" not in host:
        return host
    try:
        found = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    return str(found.ipv4_mapped or ipaddress.IPv6Network((found, 64), strict=False))
