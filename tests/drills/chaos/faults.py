"""Faults: each is started, held for its duration and undone.

Packets are dropped by rules on loopback: those to and from a server's port, or those that processes of one group send
to a port. A disk is a small file system of its own, filled by one file.
"""

import os
import random
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

from tests.drills.chaos.rig import GROUPS, REPLICAS, Rig
from tests.drills.chaos.schedule import Fault

_SLOW_ON_S, _SLOW_OFF_S = 0.02, 0.08
_LOSS = 0.2
_OF_ENGINES, _OF_AGENTS = 20, 40  # offsets of their first ports


def strike(rig: Rig, fault: Fault) -> bool:
    """Apply the fault, block until it is over, and return whether there was a process to apply it to."""
    match fault.kind:
        case "kill":
            return _signal(rig, fault, signal.SIGKILL)
        case "stop":
            return _stopped(rig, fault)
        case "slow":
            return _slowed(rig, fault)
        case "full":
            return _filled(rig.disk(fault.target), fault.seconds)
        case _:
            return _parted(rig, fault)


def _signal(rig: Rig, fault: Fault, number: signal.Signals) -> bool:
    return _to_all(rig.members(fault.target, fault.draw), number)


def _to_all(pids: list[int], number: signal.Signals) -> bool:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    return bool(pids)


def _stopped(rig: Rig, fault: Fault) -> bool:
    pids = rig.members(fault.target, fault.draw)
    _to_all(pids, signal.SIGSTOP)
    try:
        time.sleep(fault.seconds)
    finally:
        _to_all(pids, signal.SIGCONT)
    return bool(pids)


def _slowed(rig: Rig, fault: Fault) -> bool:
    until_s = time.monotonic() + fault.seconds
    pids = rig.members(fault.target, fault.draw)
    while time.monotonic() < until_s:
        _to_all(pids, signal.SIGSTOP)
        time.sleep(_SLOW_OFF_S)
        _to_all(pids, signal.SIGCONT)
        time.sleep(_SLOW_ON_S)
    return bool(pids)


def _filled(disk: Path, seconds: float) -> bool:
    """Keep the disk full for that time: space that its owner frees is filled again."""
    filler, until_s = disk / "filler", time.monotonic() + seconds
    try:
        with filler.open("ab", buffering=0) as file:
            while time.monotonic() < until_s:
                _take_all(file.fileno(), disk)
                time.sleep(0.1)
    finally:
        filler.unlink(missing_ok=True)
    return True


def _take_all(descriptor: int, disk: Path) -> None:
    for piece in (1 << 20, 1 << 12):
        with suppress(OSError):
            while os.statvfs(disk).f_bavail:
                os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, piece)


def _parted(rig: Rig, fault: Fault) -> bool:
    rules = rules_of(rig, fault)
    for rule in rules:
        _iptables("-I", rule)
    try:
        time.sleep(fault.seconds)
    finally:
        for rule in rules:
            _iptables("-D", rule)
    return True


def rules_of(rig: Rig, fault: Fault) -> list[list[str]]:
    lost = ["-m", "statistic", "--mode", "random", "--probability", str(_LOSS)] if fault.kind == "lossy" else []
    sender, _, receiver = fault.target.rpartition("-")
    if sender in GROUPS:
        ports = _ports_of(rig, {"registry": "registry-1", "engines": "engines"}.get(receiver, receiver), fault.draw)
        owner = ["-m", "owner", "--gid-owner", str(GROUPS[sender])]
        return [["OUTPUT", "-p", "tcp", *owner, "--dport", port, "-j", "DROP"] for port in ports]
    ports = _ports_of(rig, fault.target, fault.draw)
    return [
        ["INPUT", "-p", "tcp", side, port, *lost, "-j", "DROP"] for port in ports for side in ("--dport", "--sport")
    ]


def _ports_of(rig: Rig, target: str, draw: float) -> list[str]:
    base = rig.fleet.port_base
    match target:
        case "engine":
            return [str(base + _OF_ENGINES + rig.replica(draw))]
        case "agent":
            return [str(base + _OF_AGENTS + rig.replica(draw))]
        case "engines":  # half of them
            return [f"{base + _OF_ENGINES}:{base + _OF_ENGINES + REPLICAS // 2 - 1}"]
        case _:
            return [str(rig.port(target))]


def _iptables(action: str, rule: list[str]) -> None:
    subprocess.run(["iptables", "-w", "10", action, *rule], check=True, capture_output=True)


class Striker:
    """Applies the faults of one round together."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    def round(self, faults: tuple[Fault, ...]) -> list[bool]:
        struck = [False] * len(faults)

        def one(number: int) -> None:
            time.sleep(random.Random(faults[number].draw).uniform(0.0, 2.0) if number else 0.0)
            struck[number] = strike(self._rig, faults[number])

        threads = [threading.Thread(target=one, args=(number,)) for number in range(len(faults))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return struck
