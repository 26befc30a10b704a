"""Processes of the benches: start, CPU pinning, and CPU time and memory from the kernel."""

import os
import resource
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path

import psutil

_CPUS = tuple(sorted(os.sched_getaffinity(0)))  # read before the bench pins itself to one CPU
_SPARE_DESCRIPTORS = 1000  # reserved for everything but the streams that a process holds


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def free_ports(count: int) -> list[int]:
    """Return `count` distinct free ports; all are held until the last is found."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def cpu_us(pid: int) -> float:
    """Return the CPU time of all threads of a process so far, from the scheduler's statistics."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total_ns += int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread that has just ended
    return total_ns / 1000


def family(pid: int) -> list[int]:
    """Return the pids of a process and of its descendants."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def cpu_of_all_us(pids: Iterable[int]) -> float:
    """Return the CPU time of the processes and of their descendants."""
    return sum(cpu_us(member) for pid in pids for member in family(pid))


def resident_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError(f"process {pid} has no memory figure")


def resident_of_all_kib(pids: Iterable[int]) -> int:
    return sum(resident_kib(member) for pid in pids for member in family(pid))


def raise_descriptor_limit() -> int:
    """Raise the limit to the hard limit. Return the number of streams of which one process can hold both ends."""
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
    """Start a process pinned to one CPU (see `pin`). `without` names variables that it must not inherit."""
    inherited = {name: value for name, value in os.environ.items() if name not in without}
    child = subprocess.Popen(
        argv,
        stdout=log,  # type: ignore[call-overload]
        stderr=subprocess.STDOUT,
        env=inherited | (environment or {}),
        cwd=folder,
    )
    pin(child.pid, cpu)  # threads that start later inherit it
    return child


def pin(pid: int, cpu: int) -> None:
    """Pin the process to the CPU of that number, or to the last CPU if there are fewer."""
    os.sched_setaffinity(pid, {_CPUS[min(cpu, len(_CPUS) - 1)]})


def kill(child: subprocess.Popen[bytes]) -> None:
    """Kill the process and its descendants."""
    for pid in reversed(family(child.pid)) if child.poll() is None else []:
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue
    child.wait()
