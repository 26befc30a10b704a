"""The bus with the command, configuration and users of an overlay; tests start, kill and stop it."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from functions.controller.local.context import valkey_server
from functions.fleet.bus_users import server_users
from tests.manifests.checks.mounts import mounted, moved
from tests.manifests.rendering import Rendering
from tests.manifests.workloads import workloads
from tests.ports import free_port

BUS_PASSWORD = "0123456789abcdef"


@dataclass
class ShippedBus:
    command: list[str]
    folders: dict[str, Path]  # ours, by where the pod has them
    port: int = field(default_factory=free_port)
    _process: "subprocess.Popen[bytes] | None" = None

    @classmethod
    def of(cls, rendering: Rendering, folder: Path) -> "ShippedBus":
        (workload,) = [each for each in workloads(rendering) if each.name == "StatefulSet shoal/bus"]
        (container,) = workload.containers
        folders = mounted(workload, container, rendering, folder)
        bus = cls([*container["command"], moved(container["args"][0], folders)], folders)
        (folders["/run/secrets/shoal/bus-password"] / "bus-password").write_text(BUS_PASSWORD)
        (folders["/run/secrets/shoal/bus-users"] / "users.acl").write_text("\n".join(server_users(BUS_PASSWORD)))
        configuration = folders["/etc/valkey"] / "valkey.conf"
        text = moved(configuration.read_text(), folders).replace("port 6379", f"port {bus.port}")
        configuration.write_text(text.replace("bind * -::*", "bind 127.0.0.1"))
        return bus

    @property
    def url(self) -> str:
        return f"valkey://127.0.0.1:{self.port}/0"

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None
        return self._process

    def start(self) -> None:
        path = f"{valkey_server().parent}:{os.environ['PATH']}"
        self._process = subprocess.Popen(self.command, env={"PATH": path}, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @contextlib.contextmanager
    def running(self) -> Iterator["ShippedBus"]:
        self.start()
        try:
            yield self
        finally:
            self.kill()

    @contextlib.contextmanager
    def away(self, *, hung: bool = False) -> Iterator[None]:
        """Kill the bus and restart it empty afterwards; with `hung`, stop it with every connection left open."""
        if hung:
            self.process.send_signal(signal.SIGSTOP)
        else:
            self.kill()
        try:
            yield
        finally:
            if hung:
                self.process.send_signal(signal.SIGCONT)
            else:
                self.start()
