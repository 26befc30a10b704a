"""Processes of the benches, and what the kernel says of them."""

import os
import resource
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path

import psutil

_CPUS = tuple(sorted(os.sched_getaffinity(0)))  # as the bench found them, before it pinned itself to one
_SPARE_DESCRIPTORS = 1000  # of a process that holds streams: for all else that it has open


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def free_ports(count: int) -> list[int]:
    """So many at once, so that none is given twice."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def cpu_us(pid: int) -> float:
    """CPU time of all of a process's threads so far, from the scheduler's own count."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total_ns += int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread that has just ended
    return total_ns / 1000


def family(pid: int) -> list[int]:
    """A process and all that it started."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def cpu_of_all_us(pids: Iterable[int]) -> float:
    """With all that they started."""
    return sum(cpu_us(member) for pid in pids for member in family(pid))


def resident_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError(f"process {pid} has no memory figure")


def resident_of_all_kib(pids: Iterable[int]) -> int:
    return sum(resident_kib(member) for pid in pids for member in family(pid))


def raise_descriptor_limit() -> int:
    """To what the machine allows; returns how many streams one process can then hold both ends of."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return (hard - _SPARE_DESCRIPTORS) // 2


def spawn(
    argv: list[str],
    log: object,
    cpu: int,
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
    without: tuple[str, ...] = (),
) -> subprocess.Popen[bytes]:
    """A process on one CPU (the last where there are fewer); `without` names variables that it must not inherit."""
    inherited = {name: value for name, value in os.environ.items() if name not in without}
    child = subprocess.Popen(
        argv,
        stdout=log,  # type: ignore[call-overload]
        stderr=subprocess.STDOUT,
        env=inherited | (environment or {}),
        cwd=folder,
    )
    pin(child.pid, cpu)  # its threads come later and inherit it
    return child


def pin(pid: int, cpu: int) -> None:
    """To the CPU of that number, or to the last where there are fewer."""
    os.sched_setaffinity(pid, {_CPUS[min(cpu, len(_CPUS) - 1)]})


def kill(child: subprocess.Popen[bytes]) -> None:
    """With all that it started."""
    for pid in reversed(family(child.pid)) if child.poll() is None else []:
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue
    child.wait()
