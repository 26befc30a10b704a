"""Find the fleet's processes on this machine, including those that this controller did not start.

Each of three signs can be missing: the ledger's pid and start time (if the controller was killed between start and
write), the mark in the environment (overwritten by programs that set their title, as Valkey and vLLM do; a forked
engine has the mark of its origin), and standard output, which goes to one of the fleet's logs.
"""

import signal
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from functions.controller.local.children import (
    FLEET_VARIABLE,
    HASH_VARIABLE,
    NAME_VARIABLE,
    PROC,
    START_TIME_SLACK_S,
    is_alive,
    is_zombie,
    send_signal,
    session_of,
    start_time,
)
from functions.controller.local.instances import LedgerEntry, ProcessLedger
from functions.controller.local.layout import StateLayout


@dataclass(frozen=True, slots=True)
class Found:
    """A live process of this fleet. Its name or hash is empty if no sign reveals it."""

    pid: int
    started_at: float
    name: str
    spec_hash: str
    leads: bool  # leads its session, so a controller started it


def find_fleet(layout: StateLayout, ledger: ProcessLedger) -> Iterator[Found]:
    """Yield every live process, of any session, that is in the ledger, has the fleet's mark in its environment, or
    writes to its logs."""
    recorded = {entry.pid: entry for entry in ledger.processes if entry.pid is not None}
    for pid in psutil.pids():
        started_at = start_time(pid)
        if started_at is None or is_zombie(pid):
            continue
        known = _by_ledger(recorded.get(pid), started_at) or _by_mark(pid, layout) or _by_output(pid, layout)
        if known is not None:
            yield Found(pid, started_at, *known, leads=session_of(pid) == pid)


def kill_found(found: Found) -> None:
    if is_alive(found.pid, found.started_at):
        send_signal(found.pid, signal.SIGKILL)


def terminate_found(found: Found) -> None:
    if is_alive(found.pid, found.started_at):
        send_signal(found.pid, signal.SIGTERM)


def _by_mark(pid: int, layout: StateLayout) -> tuple[str, str] | None:
    try:
        environ = psutil.Process(pid).environ()
    except (psutil.Error, OSError):
        return None  # the process has ended, or this user may not read it
    if environ.get(FLEET_VARIABLE) != str(layout.root):
        return None
    return environ.get(NAME_VARIABLE, ""), environ.get(HASH_VARIABLE, "")


def _by_ledger(entry: LedgerEntry | None, started_at: float) -> tuple[str, str] | None:
    if entry is None or entry.started_at is None or abs(entry.started_at - started_at) > START_TIME_SLACK_S:
        return None
    return entry.name, entry.spec_hash


def _by_output(pid: int, layout: StateLayout) -> tuple[str, str] | None:
    try:
        output = (PROC / str(pid) / "fd" / "1").readlink()
    except OSError:
        return None
    return (output.name.split(".log")[0], "") if output.parent == layout.logs_dir else None


# Serving gateway: the process that listens on the handover socket, as the kernel reports it (SO_PEERCRED).
#
# A gateway opens that socket, in place of its predecessor's, only when it accepts connections. A request to the shared
# port would prove nothing, because either process may answer it.


_TIMEOUT_S = 1.0
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def serving_pid(door: Path) -> int | None:
    """Return the pid of the process that listens on the socket, or None if none accepts."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_TIMEOUT_S)
        try:
            probe.connect(str(door))
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:
            return None
    return int(_CREDENTIALS.unpack(credentials)[0])
