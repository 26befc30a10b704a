"""Listening sockets: `::` accepts both address families, independent of the kernel's default."""

import socket

import pytest

from functions.http.binding import bind_socket

_SEND_BYTES = 64 * 1024


def reached(listener: socket.socket, address: str) -> str:
    """Return the peer address that the listener sees for a client that connects to `address`, or "" if it cannot."""
    listener.listen()
    try:
        with socket.create_connection((address, listener.getsockname()[1]), timeout=5.0):
            accepted, peer = listener.accept()
            accepted.close()
            return str(peer[0])
    except OSError:
        return ""


@pytest.mark.parametrize(
    ("host", "by_four", "by_six"),
    [
        ("127.0.0.1", "127.0.0.1", ""),
        ("0.0.0.0", "127.0.0.1", ""),
        ("localhost", "127.0.0.1", ""),
        ("::1", "", "::1"),
        ("::", "::ffff:127.0.0.1", "::1"),
    ],
)
def test_host_accepts_its_address_families(host: str, by_four: str, by_six: str) -> None:
    with bind_socket(host, 0) as listener:
        assert (reached(listener, "127.0.0.1"), reached(listener, "::1")) == (by_four, by_six)


def test_a_kernel_without_ipv6_listens_to_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with bind_socket("::", 0) as listener:
        assert reached(listener, "127.0.0.1") == "127.0.0.1"


def test_socket_options_are_set_before_bind() -> None:
    with bind_socket("::", 0, (socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)) as listener:
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * _SEND_BYTES  # Linux doubles the value


@pytest.mark.parametrize("host", ["::", "127.0.0.1"])
def test_port_in_use_raises(host: str) -> None:
    with bind_socket(host, 0) as first, pytest.raises(OSError, match="in use"):
        first.listen()
        bind_socket(host, first.getsockname()[1])
