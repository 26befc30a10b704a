"""Client disconnects: within a second the engine runs nothing for the client, in any phase."""

import contextlib
import socket
import ssl
import time

import orjson
import pytest

from tests.fleets import Fleet, running_at, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.drill, pytest.mark.timeout(400)]

WORDS = 200
CLIENTS = 8
PROMISED_S = 1.0
PHASES = ["before the first byte", "mid-stream", "not streamed"]
# Both lanes share the mechanism; tests/gateway/test_live_clients.py covers each phase on each lane.
LANES = [pytest.param("", id="fast-lane"), pytest.param("/healthz", id="plain-asgi", marks=pytest.mark.soak)]


@pytest.fixture
def slow_fleet(sim_fleet: Fleet):  # type: ignore[no-untyped-def]
    """Return a fleet whose engines are so slow that a request surely runs when its client leaves."""
    sim_fleet.pace(20.0)
    yield sim_fleet
    sim_fleet.pace(1.0)


def open_request(fleet: Fleet, stream: bool, first_path: str = "") -> ssl.SSLSocket:
    body = orjson.dumps(
        {"model": "smollm2-135m", "messages": [{"role": "user", "content": "word " * WORDS}], "stream": stream}
    )
    raw = socket.create_connection(("localhost", fleet.port_base + 3), timeout=120)
    connection = fleet.tls.wrap_socket(raw, server_hostname="localhost")
    if first_path:  # moves the connection off the fast lane
        connection.sendall(b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % first_path.encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\n" % fleet.key("acme").encode()
    connection.sendall(head + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    return connection


def busy(ports: list[int]) -> float:
    """Count running requests at the engines only, so that a sample is fast: the measurement ends with one."""
    return sum(running_at(port) for port in ports)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("first_path", LANES)
def test_disconnect_frees_the_engine_within_a_second(slow_fleet: Fleet, phase: str, first_path: str) -> None:
    """Each agent may have one probe running, so several clients leave, and that many probes may stay."""
    ports = [int(replica["port"]) for replica in slow_fleet.replicas()]
    probes = len(ports)
    wait_until("the engines are idle", lambda: busy(ports) <= probes, 120)
    if phase == "before the first byte":
        slow_fleet.pace(200.0)
    with contextlib.ExitStack() as opened:
        connections = [
            opened.enter_context(open_request(slow_fleet, phase != "not streamed", first_path)) for _ in range(CLIENTS)
        ]
        wait_until("the requests run", lambda: busy(ports) >= CLIENTS, 120)
        if phase == "mid-stream":
            for connection in connections:
                received = b""
                while received.count(b"data: ") < 3:
                    more = connection.recv(4096)
                    assert more, f"the stream ended too soon: {received[-200:]!r}"
                    received += more
        left_s = time.monotonic()
    wait_until("nothing but probes runs", lambda: busy(ports) <= probes, 60, every_s=0.02)
    seconds = time.monotonic() - left_s
    print(f"left {phase} ({first_path or 'fast lane'}): engines free after {seconds:.2f} s")
    assert seconds < 5 * PROMISED_S, "so much slower may the machine be that this runs on"
