"""Faults around the trace store, each with 1,000 rows a second: what was offered against what is there."""

import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from functions.telemetry.store.client import TraceStore
from loadtests.traces.gateway_process import DELIVERY_S
from loadtests.traces.store_process import StoreProcess, store_process

_SECONDS = 8
_SPOOL_BYTES = 256 * 1024 * 1024
Fault = Callable[[StoreProcess, "Gateways"], None]


class Gateways:
    """One after the other, over one folder of traces."""

    def __init__(self, folder: Path, port: int, max_bytes: int) -> None:
        self._folder, self._port, self._max_bytes = folder, port, max_bytes
        folder.mkdir()
        self.count = 0
        self.begin()

    def begin(self, seconds: float = _SECONDS) -> None:
        arguments = [self._folder, self._port, self.count, seconds, self._max_bytes]
        command = [sys.executable, "-m", "loadtests.traces.gateway_process", *map(str, arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.count += 1
        while not (self._folder / f"offered-{self.count - 1}").exists():
            time.sleep(0.02)

    def end(self) -> str:
        return self.process.communicate(timeout=_SECONDS + DELIVERY_S + 60)[0].strip()

    def offered(self) -> int:
        files = [self._folder / f"offered-{number}" for number in range(self.count)]
        return sum(struct.unpack("q", file.read_bytes()[:8])[0] for file in files)


def killed_store(store: StoreProcess, gateways: Gateways) -> None:
    time.sleep(2)
    store.kill()
    time.sleep(4)
    store.start()


def slow_store(store: StoreProcess, gateways: Gateways) -> None:
    """It takes connections and answers nobody."""
    time.sleep(2)
    os.kill(store.process.pid, signal.SIGSTOP)
    time.sleep(4)
    os.kill(store.process.pid, signal.SIGCONT)


def killed_gateways(store: StoreProcess, gateways: Gateways) -> None:
    for _ in range(4):
        time.sleep(random.uniform(0.6, 2.0))
        gateways.process.kill()
        gateways.process.communicate()
        gateways.begin()


def both_killed(store: StoreProcess, gateways: Gateways) -> None:
    time.sleep(2)
    store.kill()
    killed_gateways(store, gateways)
    store.start()


def full_spool(store: StoreProcess, gateways: Gateways) -> None:
    """Away for longer than the spool holds, which is 8 MiB here: 8 s of rows."""
    store.kill()
    time.sleep(2 * _SECONDS)
    store.start()


def faults(folder: Path) -> None:
    some: dict[str, tuple[Fault, int]] = {
        "store killed for 4 s": (killed_store, _SPOOL_BYTES),
        "store stopped for 4 s": (slow_store, _SPOOL_BYTES),
        "gateway killed 4 times": (killed_gateways, _SPOOL_BYTES),
        "store away, gateway killed 4 times": (both_killed, _SPOOL_BYTES),
        "spool of 8 MiB full": (full_spool, 8 * 1024 * 1024),
    }
    for number, (name, (fault, max_bytes)) in enumerate(some.items()):
        with store_process(folder / f"store-{number}", 19_880 + number) as store:
            gateways = Gateways(folder / f"gateway-{number}", store.port, max_bytes)
            fault(store, gateways)
            dropped = gateways.end()
            client = store.client()
            print(
                f"{name:36} {_outcome(client, gateways.offered())} dropped as counted by the last gateway {dropped}",
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
