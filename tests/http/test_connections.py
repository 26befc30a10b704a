"""Order in which connections are closed at the limit, and limits per address."""

from dataclasses import dataclass, field

import pytest

from functions.http.connections import Closed, Connections, address_of


@dataclass(eq=False)
class Client:
    """A fake connection; it is busy while `idle_since_s` is None."""

    name: str
    idle_since_s: float | None = 0.0
    due_s: float = float("inf")
    gone: bool = False
    checked: list[float] = field(default_factory=list)

    def check(self, now_s: float) -> None:
        self.checked.append(now_s)

    def give_way(self) -> None:
        self.gone = True


class Listener:
    def __init__(self, most: int = 3, most_per_address: int = 0) -> None:
        self.now_s = 100.0
        self.closed: list[Closed] = []
        self.connections = Connections(most, most_per_address, self.closed.append, lambda: self.now_s)

    def comes(self, name: str, address: str = "192.0.2.1") -> Client | None:
        client = Client(name, self.now_s)
        return client if self.connections.add(client, address) else None

    def known(self, name: str) -> Client:
        client = self.comes(name)
        assert client is not None
        self.connections.mark_known(client)
        return client


def test_unknown_connections_at_the_limit_never_exclude_new_ones() -> None:
    """At the limit of 9,500 unknown connections, of which 4,000 were active, each new connection stays open."""
    listener = Listener(9500)
    strangers = [listener.comes(f"s{number}") for number in range(9500)]
    for stranger in strangers[:4000]:
        assert stranger is not None
        listener.connections.mark_active(stranger)
    newcomers = [listener.comes(f"n{number}") for number in range(2000)]
    assert all(client is not None and not client.gone for client in newcomers)
    gone = [number for number, client in enumerate(strangers) if client is not None and client.gone]
    assert gone == list(range(4000, 6000)), "those that were silent for longest"
    assert len(listener.connections) == 9500
    assert listener.closed == ["crowded"] * 2000


def test_known_connection_is_closed_after_unknown_ones_and_busy_one_never() -> None:
    listener = Listener(3)
    long_idle, busy = listener.known("long idle"), listener.known("busy")
    busy.idle_since_s = None
    stranger = listener.comes("stranger")
    listener.now_s += 50.0
    assert listener.comes("a") is not None and stranger is not None and stranger.gone
    listener.connections.mark_known(next(each for each in listener.connections if getattr(each, "name", "") == "a"))
    listener.connections.sweep(listener.now_s)
    assert listener.comes("b") is not None and long_idle.gone
    assert not busy.gone


def test_new_connection_is_refused_when_all_are_busy() -> None:
    listener = Listener(2)
    for name in "ab":
        listener.known(name).idle_since_s = None
    assert listener.comes("c") is None
    assert listener.closed == ["no_room"] and len(listener.connections) == 2


def test_known_connection_answered_just_now_is_not_closed() -> None:
    listener = Listener(1)
    just_now = listener.known("just now")
    assert listener.comes("newcomer") is None and not just_now.gone
    listener.now_s += 1.0
    listener.connections.sweep(listener.now_s)
    assert listener.comes("newcomer") is not None and just_now.gone


def test_address_limit_applies_if_set() -> None:
    listener = Listener(100, most_per_address=2)
    first = listener.comes("a", "192.0.2.1")
    assert first is not None and listener.comes("b", "192.0.2.1") is not None
    assert listener.comes("c", "192.0.2.1") is None and listener.closed == ["address"]
    assert listener.comes("d", "192.0.2.2") is not None
    listener.connections.discard(first)
    listener.connections.discard(first)
    assert listener.comes("e", "192.0.2.1") is not None
    assert listener.comes("f", "192.0.2.1") is None


def test_without_address_limit_one_address_may_have_all() -> None:
    """Behind an ingress all clients have one address."""
    listener = Listener(1000)
    assert all(listener.comes(str(number), "10.0.0.1") is not None for number in range(1000))
    assert listener.closed == []


def test_replaced_connection_keeps_its_place() -> None:
    listener = Listener(2, most_per_address=2)
    handshake = listener.comes("handshake")
    assert handshake is not None
    lane = Client("lane")
    listener.connections.replace(handshake, lane)
    assert len(listener.connections) == 1 and not listener.connections.is_known(lane)
    listener.connections.mark_known(lane)
    plain = Client("plain")
    listener.connections.replace(lane, plain)
    assert listener.connections.is_known(plain) and list(listener.connections) == [plain]
    listener.connections.discard(plain)
    assert len(listener.connections) == 0
    assert listener.comes("a") is not None and listener.comes("b") is not None


def test_sweep_checks_due_connections() -> None:
    listener = Listener(3)
    due, not_due = Client("due", due_s=5.0), Client("not due", due_s=7.0)
    for client in (due, not_due):
        listener.connections.add(client)
    listener.connections.sweep(6.0)
    assert due.checked == [6.0] and not_due.checked == []


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (("192.0.2.7", 4711), "192.0.2.7"),
        (("2001:db8:1:2:3:4:5:6", 4711, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2::9%eth0", 4711, 0, 0), "2001:db8:1:2::/64"),
        (("::ffff:192.0.2.7", 4711, 0, 0), "192.0.2.7"),
        (("not an address:", 1), "not an address:"),
        (None, ""),
        ("", ""),
        (b"", ""),
    ],
)
def test_addresses(peer: object, address: str) -> None:
    assert address_of(peer) == address
