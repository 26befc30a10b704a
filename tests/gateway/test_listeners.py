"""The gateway's ports: occupied ones are reported clearly, shared ones are shared."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from functions.gateway.configured import own_name
from functions.gateway.listeners import StartFailed, bind_all
from functions.gateway.settings import GatewaySettings

NOWHERE = Path("nowhere")


def settings(**given: Any) -> GatewaySettings:
    files = {"internal_token_file": NOWHERE, "pepper_file": NOWHERE, "snapshot_cache_file": NOWHERE}
    return GatewaySettings(**files, **given)


@contextlib.contextmanager
def occupied_port(*, shared: bool) -> Iterator[int]:
    with socket.socket() as other:
        if shared:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield int(other.getsockname()[1])


def test_two_processes_may_share_the_ports_of_clients() -> None:
    with occupied_port(shared=True) as port, occupied_port(shared=True) as plain_port:
        listeners = bind_all(settings(port=port, plain_port=plain_port, metrics_port=0, reuse_port=True))
        assert [listener.getsockname()[1] for listener in listeners] == [port, plain_port]
        for listener in listeners:
            listener.close()


@pytest.mark.parametrize("given", [{"reuse_port": False}, {}])
def test_ports_are_not_shared_without_reuse_port(given: dict[str, bool]) -> None:
    with occupied_port(shared=True) as port, pytest.raises(StartFailed, match=f"{port}.*SHOAL_GATEWAY_PORT"):
        bind_all(settings(port=port, metrics_port=0, **given))


def test_metrics_port_is_never_shared() -> None:
    with (
        occupied_port(shared=True) as port,
        occupied_port(shared=True) as metrics_port,
        pytest.raises(StartFailed, match="SHOAL_GATEWAY_METRICS_PORT"),
    ):
        bind_all(settings(port=port, metrics_port=metrics_port, reuse_port=True))


def test_gateways_that_share_a_port_have_different_names() -> None:
    alone, shared = own_name(settings(port=8443)), own_name(settings(port=8443, reuse_port=True))
    assert alone.endswith("-8443")
    assert shared.startswith(f"{alone}-") and shared.removeprefix(f"{alone}-").isdigit()


def test_kernel_send_buffer_is_bounded() -> None:
    """Linux buffers 4 MiB by default for each client that does not read."""
    with occupied_port(shared=True) as port:
        (listener,) = bind_all(settings(port=port, metrics_port=0, reuse_port=True))
    with listener, socket.create_connection(listener.getsockname()), _accepted(listener) as served:
        assert 0 < served.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 2 * 256 * 1024  # Linux doubles it


def _accepted(listener: socket.socket) -> socket.socket:
    listener.setblocking(True)
    listener.settimeout(30)
    return listener.accept()[0]
