"""Faults around the trace store, each with 1,000 rows a second: what was offered against what is there."""

import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from functions.telemetry.store.client import TraceStore
from loadtests.traces.gateway_process import DELIVERY_S
from loadtests.traces.small_disk import SmallDisk, small_disk
from loadtests.traces.store_process import StoreProcess, store_process

_SECONDS = 8
_SPOOL_BYTES = 256 * 1024 * 1024
_DISK_MIB = {"store": 192, "gateway": 48}
_STOPPED_OF_A_SECOND = 0.9


class Gateways:
    """One after the other, over one folder of traces."""

    def __init__(self, folder: Path, port: int, case: "Case") -> None:
        self._folder, self._port, self._case = folder, port, case
        folder.mkdir(exist_ok=True)
        self.count = 0
        self.begin()

    def begin(self) -> None:
        arguments = [self._folder, self._port, self.count, self._case.seconds, self._case.spool_bytes]
        command = [sys.executable, "-m", "loadtests.traces.gateway_process", *map(str, arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.count += 1
        while not (self._folder / f"offered-{self.count - 1}").exists():
            if self.process.poll() is not None:
                raise SystemExit(f"a gateway ended with {self.process.returncode}")
            time.sleep(0.02)

    def end(self) -> str:
        return self.process.communicate(timeout=self._case.seconds + DELIVERY_S + 60)[0].strip()

    def offered(self) -> int:
        files = [self._folder / f"offered-{number}" for number in range(self.count)]
        return sum(struct.unpack("q", file.read_bytes()[:8])[0] for file in files)


@dataclass(frozen=True, slots=True)
class Scene:
    store: StoreProcess
    gateways: Gateways
    disk: SmallDisk | None


Fault = Callable[[Scene], None]


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    fault: Fault
    spool_bytes: int = _SPOOL_BYTES
    disk_of: Literal["store", "gateway"] | None = None  # has a small disk of its own
    seconds: float = _SECONDS


def killed_store(scene: Scene) -> None:
    time.sleep(2)
    scene.store.kill()
    time.sleep(4)
    scene.store.start()


def stopped_store(scene: Scene) -> None:
    """It takes connections and answers nobody."""
    time.sleep(2)
    os.kill(scene.store.process.pid, signal.SIGSTOP)
    time.sleep(4)
    os.kill(scene.store.process.pid, signal.SIGCONT)


def slow_store(scene: Scene) -> None:
    """It has a tenth of its time."""
    for _ in range(2 * _SECONDS):
        os.kill(scene.store.process.pid, signal.SIGSTOP)
        time.sleep(_STOPPED_OF_A_SECOND)
        os.kill(scene.store.process.pid, signal.SIGCONT)
        time.sleep(1.0 - _STOPPED_OF_A_SECOND)


def killed_gateways(scene: Scene) -> None:
    for _ in range(4):
        time.sleep(random.uniform(0.6, 2.0))
        scene.gateways.process.kill()
        scene.gateways.process.communicate()
        scene.gateways.begin()


def both_killed(scene: Scene) -> None:
    time.sleep(2)
    scene.store.kill()
    killed_gateways(scene)
    scene.store.start()


def full_spool(scene: Scene) -> None:
    """Away for longer than the spool holds, which is 8 MiB here: 8 s of rows."""
    scene.store.kill()
    time.sleep(4 * _SECONDS)
    scene.store.start()


def full_disk(scene: Scene) -> None:
    assert scene.disk is not None
    time.sleep(2)
    scene.disk.fill()
    time.sleep(4)
    scene.disk.free()


CASES = (
    Case("store killed for 4 s", killed_store),
    Case("store stopped for 4 s", stopped_store),
    Case("store at a tenth of its speed", slow_store),
    Case("store's disk full for 4 s", full_disk, disk_of="store"),
    Case("gateway's disk full for 4 s", full_disk, disk_of="gateway"),
    Case("gateway killed 4 times", killed_gateways),
    Case("store away, gateway killed 4 times", both_killed),
    Case("spool of 8 MiB full", full_spool, 8 * 1024 * 1024, seconds=3 * _SECONDS),
)


def faults(folder: Path) -> None:
    for number, case in enumerate(CASES):
        with ExitStack() as stack:
            folders = {who: folder / f"{who}-{number}" for who in _DISK_MIB}
            disk = None
            if case.disk_of is not None:
                disk = stack.enter_context(small_disk(folders[case.disk_of], _DISK_MIB[case.disk_of]))
            store = stack.enter_context(store_process(folders["store"], 19_880 + number))
            gateways = Gateways(folders["gateway"], store.port, case)
            case.fault(Scene(store, gateways, disk))
            dropped = gateways.end()
            client = store.client()
            print(
                f"{case.name:36} {_outcome(client, gateways.offered())} dropped as counted by the last gateway "
                f"{dropped}",
                flush=True,
            )
            client.close()


def _outcome(store: TraceStore, offered: int) -> str:
    there = store.ask("SELECT count() AS n, uniqExact(request_id) AS u FROM shoal.requests")[0]
    rolled = store.ask("SELECT sum(requests) AS n FROM shoal.requests_hourly")[0]["n"]
    return (
        f"offered {offered:6} there {there['u']:6} lost {offered - there['u']:5} "
        f"doubled {there['n'] - there['u']} in the table, {rolled - there['u']} in the totals;"
    )
