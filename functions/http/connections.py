"""Connections of clients, from their accept to their end: how many there may be, and which one gives way to another.

    stranger    has shown nothing that is valid: every connection at first, a TLS handshake included
    known       has had a request with a valid credential

At the bound a new connection takes the place of the stranger that has been idle for longest, else of the longest idle
known one; only where all have a request under way is the new one turned away. So whoever opens connections and says
little takes its own places and nobody else's: a client that comes sends its head at once, and is the last to give way
(worked example: test_strangers_who_say_little_keep_nobody_out).

An address may have a bound of its own (0: none). It is none by default, since behind an ingress, a load balancer or NAT
all clients come from a few addresses, and a bound would be one for them all together. Of IPv6 a /64 counts as one: that
is what one subscriber has.
"""

import ipaddress
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any, Literal, Protocol

_STILL_S = 1.0  # a known client that was answered just now may be sending its next request

Closed = Literal["crowded", "address", "no_room", "slow_reader"]


class Connection(Protocol):
    """One client's."""

    due_s: float  # before this, monotonic, `check` would do nothing

    @property
    def idle_since_s(self) -> float | None:
        """None: a request is under way."""

    def check(self, now_s: float) -> None:
        """Is anything taking too long?"""

    def give_way(self) -> None:
        """Close at once; what was not read of it is lost."""


class Connections:
    """Owned by one event loop."""

    def __init__(
        self,
        most: int,
        most_per_address: int = 0,
        on_closed: Callable[[Closed], None] = lambda reason: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_closed` is told of each connection that was closed or turned away for want of room."""
        self._most, self._most_per_address = most, most_per_address
        self.closed = on_closed
        self._clock = clock
        self._addresses: dict[Connection, str] = {}  # of every connection
        self._strangers: OrderedDict[Connection, None] = OrderedDict()  # those that said something last stand last
        self._per_address: Counter[str] = Counter()
        self._idle: deque[Connection] = deque()  # known ones, as they were when last looked for: longest idle first
        self._may_look = True

    def add(self, connection: Connection, address: str = "") -> bool:
        """Whether there is room for it, or was made."""
        if self._most_per_address and self._per_address[address] >= self._most_per_address:
            self.closed("address")
            return False
        if len(self._addresses) >= self._most and not self._make_room():
            self.closed("no_room")
            return False
        self._addresses[connection] = address
        self._strangers[connection] = None
        if self._most_per_address:
            self._per_address[address] += 1
        return True

    def discard(self, connection: Connection) -> None:
        """It has ended, or gives way. Does nothing where that is known."""
        address = self._addresses.pop(connection, None)
        if address is None:
            return
        self._strangers.pop(connection, None)
        if self._most_per_address:
            self._per_address[address] -= 1
            if not self._per_address[address]:
                del self._per_address[address]

    def replace(self, old: Connection, new: Connection) -> None:
        """Another object stands for the same connection: behind a handshake, or on another lane."""
        is_stranger = old in self._strangers
        address = self._addresses.pop(old)
        self._strangers.pop(old, None)
        self._addresses[new] = address
        if is_stranger:
            self._strangers[new] = None

    def is_known(self, connection: Connection) -> bool:
        return connection not in self._strangers

    def known(self, connection: Connection) -> None:
        """It has shown a valid credential."""
        self._strangers.pop(connection, None)

    def spoke(self, connection: Connection) -> None:
        """A request of it begins or has been answered: of the strangers it is the last to give way."""
        if connection in self._strangers:
            self._strangers.move_to_end(connection)

    def sweep(self, now_s: float) -> None:
        """A few times a second, and not where that comes late (`own_stalls`): a connection that is closed with a
        request unread is reset."""
        self._may_look = True
        for connection in [each for each in self._addresses if now_s >= each.due_s]:
            connection.check(now_s)

    def _make_room(self) -> bool:
        victim = next((each for each in self._strangers if each.idle_since_s is not None), None) or self._longest_idle()
        if victim is None:
            return False
        self.discard(victim)
        self.closed("crowded")
        victim.give_way()
        return True

    def _longest_idle(self) -> Connection | None:
        """Of the known ones. All are looked at, which takes a millisecond of 10,000, so once a sweep at most."""
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
    """By what a socket says of its peer: its address, of IPv6 the network; empty where there is none."""
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
