"""Faults around the trace store, each with 1,000 rows a second: compare the offered rows with the stored ones.

    lost  <=  rows that were in no file when their gateway was killed  +  rows dropped and counted
    doubled = 0, in the table and in the hourly totals

An hour without the store is compressed to a minute: 100 requests a second for an hour are 6,000 a second for a minute.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from functions.telemetry.store.client import TraceStore
from loadtests.traces.gateway_process import DELIVERY_S, ROWS
from loadtests.traces.small_disk import SmallDisk, small_disk
from loadtests.traces.store_process import StoreProcess, store_process

_SECONDS = 8
_SPOOL_BYTES = 512 * 1024 * 1024  # as in the overlays
_ROWS_PER_S = 1000
_HOUR_ROWS = 100 * 3600
_DISK_MIB = {"store": 192, "gateway": 48}
_STOPPED_OF_A_SECOND = 0.9


class Gateways:
    """Gateway processes that run one after the other on one folder of traces."""

    def __init__(self, folder: Path, port: int, case: "Case") -> None:
        self._folder, self._port, self._case = folder, port, case
        folder.mkdir(exist_ok=True)
        self.count = self.unspooled = 0
        self.start_gateway()

    def start_gateway(self) -> None:
        case = self._case
        arguments = [self._folder, self._port, self.count, case.seconds, case.spool_bytes, case.rows_per_s]
        command = [sys.executable, "-m", "loadtests.traces.gateway_process", *map(str, arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.count += 1
        while not self._counted(self.count - 1).exists():
            if self.process.poll() is not None:
                raise SystemExit(f"a gateway ended with {self.process.returncode}")
            time.sleep(0.02)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
        offered, spooled = ROWS.unpack(self._counted(self.count - 1).read_bytes())
        self.unspooled += offered - spooled

    def end(self) -> dict[str, int]:
        """Wait for the last gateway and return the rows that it dropped, by receiver and reason."""
        dropped: dict[str, int] = json.loads(
            self.process.communicate(timeout=self._case.seconds + DELIVERY_S + 60)[0] or "{}"
        )
        return dropped

    def offered(self) -> int:
        return sum(ROWS.unpack(self._counted(number).read_bytes())[0] for number in range(self.count))

    def _counted(self, number: int) -> Path:
        return self._folder / f"rows-{number}"


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
    disk_of: Literal["store", "gateway"] | None = None  # this process gets a small disk
    seconds: float = _SECONDS
    rows_per_s: int = _ROWS_PER_S


def killed_store(scene: Scene) -> None:
    time.sleep(2)
    scene.store.kill()
    time.sleep(4)
    scene.store.start()


def stopped_store(scene: Scene) -> None:
    """Stop the store, so that it accepts connections but does not answer."""
    time.sleep(2)
    os.kill(scene.store.process.pid, signal.SIGSTOP)
    time.sleep(4)
    os.kill(scene.store.process.pid, signal.SIGCONT)


def slow_store(scene: Scene) -> None:
    """Stop the store for nine tenths of every second."""
    for _ in range(2 * _SECONDS):
        os.kill(scene.store.process.pid, signal.SIGSTOP)
        time.sleep(_STOPPED_OF_A_SECOND)
        os.kill(scene.store.process.pid, signal.SIGCONT)
        time.sleep(1.0 - _STOPPED_OF_A_SECOND)


def killed_gateways(scene: Scene) -> None:
    for _ in range(4):
        time.sleep(random.uniform(0.6, 2.0))
        scene.gateways.kill()
        scene.gateways.start_gateway()


def both_killed(scene: Scene) -> None:
    time.sleep(2)
    scene.store.kill()
    killed_gateways(scene)
    scene.store.start()


def full_spool(scene: Scene) -> None:
    """Kill the store for longer than the spool can hold rows: 8 MiB here, or 8 s."""
    scene.store.kill()
    time.sleep(4 * _SECONDS)
    scene.store.start()


def hour_without(scene: Scene) -> None:
    scene.store.kill()
    while scene.gateways.offered() < _HOUR_ROWS:
        time.sleep(0.5)
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
    Case("store away for an hour of 100/s", hour_without, seconds=60, rows_per_s=_HOUR_ROWS // 60),
)


def faults(folder: Path) -> bool:
    """Run all cases and return True if each is right."""
    wrong = [case.name for number, case in enumerate(CASES) if not _played(folder, number, case)]
    return not wrong


def _played(folder: Path, number: int, case: Case) -> bool:
    with ExitStack() as stack:
        folders = {who: folder / f"{who}-{number}" for who in _DISK_MIB}
        disk = None
        if case.disk_of is not None:
            disk = stack.enter_context(small_disk(folders[case.disk_of], _DISK_MIB[case.disk_of]))
        store = stack.enter_context(store_process(folders["store"], 19_880 + number))
        gateways = Gateways(folders["gateway"], store.port, case)
        case.fault(Scene(store, gateways, disk))
        healed_s = time.monotonic()
        dropped = gateways.end()
        through_s = time.monotonic() - healed_s
        client = store.client()
        there, in_table, in_totals = _found(client)
        client.close()
        offered = gateways.offered()  # before the gateway's disk is unmounted
    lost = offered - there
    is_right = in_table == in_totals == there and lost <= gateways.unspooled + sum(dropped.values())
    print(
        f"{case.name:36} offered {offered:6} there {there:6} lost {lost:5} (in no file when killed "
        f"{gateways.unspooled}, dropped {dropped}) doubled {in_table - there} in the table, {in_totals - there} in the "
        f"totals; through {through_s:.1f} s after the fault{'' if is_right else ': WRONG'}",
        flush=True,
    )
    return is_right


def _found(store: TraceStore) -> tuple[int, int, int]:
    """Return the distinct requests and the rows in the table, and the requests in the hourly totals."""
    rows = store.select("SELECT count() AS n, uniqExact(request_id) AS u FROM shoal.requests")[0]
    rolled = store.select("SELECT sum(requests) AS n FROM shoal.requests_hourly")[0]["n"]
    return rows["u"], rows["n"], rolled
