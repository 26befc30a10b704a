"""Start and end operating-system processes, each in a session of its own and with a mark in its environment.

Every process of the fleet has `SHOAL_FLEET=<state directory>` and `SHOAL_PROCESS=<name>` in its environment, and so
does every process that it starts; `found` searches for this mark.
Invariant: a signal goes only to a process whose pid AND start time match the recorded ones, or to a member of its
session.
"""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from functions.controller.local.files import open_log
from functions.controller.local.spec import ProcessSpec

FLEET_VARIABLE = "SHOAL_FLEET"
NAME_VARIABLE = "SHOAL_PROCESS"
HASH_VARIABLE = "SHOAL_SPEC_HASH"

# Variables that every process inherits; a spec's `inherits` adds prefixes. No other variable of the controller is
# passed on.
INHERITED = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
START_TIME_SLACK_S = 0.05
PROC = Path("/proc")
_STAT_START_TIME = 19  # field 22 of /proc/<pid>/stat, counted after the command's closing parenthesis


@dataclass(slots=True)
class Child:
    """Session leader that this controller started or adopted."""

    pid: int
    started_at: float
    process: subprocess.Popen[bytes] | None = None  # None if adopted: the exit status is then unknown

    def exited(self) -> str | None:
        """Return how the process ended, as text, or None while it runs."""
        if self.process is not None:
            code = self.process.poll()
            return None if code is None else _exit_text(code)
        return None if is_alive(self.pid, self.started_at) else "exited"

    def terminate(self) -> None:
        """Send SIGTERM to the leader only, which ends its own children; do nothing if it has ended."""
        if self.exited() is None:
            send_signal(self.pid, signal.SIGTERM)

    def kill_group(self) -> None:
        """Send SIGKILL to every live process of the session, the leader last."""
        for pid in session_members(self.pid):
            send_signal(pid, signal.SIGKILL)


def spawn(spec: ProcessSpec, *, instance: str, fleet: Path, log: Path, environ: dict[str, str]) -> Child:
    """Start the process in a new session, with its output appended to `log`, and return it. Raises OSError on
    failure."""
    with open_log(log) as output:
        process = subprocess.Popen(
            spec.argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=child_environment(spec, instance=instance, fleet=fleet, environ=environ),
            cwd=fleet,
            start_new_session=True,
        )
    # The child is not reaped before `poll`, so its /proc entry exists even if it has ended already.
    return Child(pid=process.pid, started_at=start_time(process.pid) or 0.0, process=process)


def child_environment(spec: ProcessSpec, *, instance: str, fleet: Path, environ: dict[str, str]) -> dict[str, str]:
    kept = {
        name: value
        for name, value in environ.items()
        if name in INHERITED or any(name.startswith(prefix) for prefix in spec.inherits)
    }
    mark = {FLEET_VARIABLE: str(fleet), NAME_VARIABLE: instance, HASH_VARIABLE: spec.spec_hash}
    return {**kept, **dict(spec.env), **mark, "PYTHONUNBUFFERED": "1"}


def start_time(pid: int) -> float | None:
    """Return the start time of a process, or None if there is no such process. On Linux this is seconds after boot,
    read from the kernel; elsewhere it is psutil's wall-clock time. That changes when the clock is set, and the next
    controller would then recognise no running process."""
    if PROC.is_dir():
        return _start_time_after_boot(pid)
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def _start_time_after_boot(pid: int) -> float | None:
    try:
        stat = (PROC / str(pid) / "stat").read_text()
        return int(stat.rpartition(")")[2].split()[_STAT_START_TIME]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None


def is_alive(pid: int, started_at: float) -> bool:
    """Return True if the process with this pid and start time runs; a zombie does not count."""
    found = start_time(pid)
    return found is not None and abs(found - started_at) <= START_TIME_SLACK_S and not is_zombie(pid)


def session_members(session: int) -> list[int]:
    """Return the live processes of the session, the leader last, so that it cannot start others unnoticed."""
    members = [pid for pid in psutil.pids() if session_of(pid) == session and not is_zombie(pid)]
    return sorted(members, key=lambda pid: pid == session)


def send_signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def session_of(pid: int) -> int | None:
    """Return the pid of the process's session leader, or None if the process is gone or it cannot be read."""
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


# Fork of an engine from a parked process: the requesting side (`functions/engines/parked/waiting.py` is the other
# side).
#
# The forked child waits for `go` before it starts. A controller that gives up on the answer can therefore start the
# engine directly, and there are never two engines. The call blocks for at most a few times ASK_S. A fork of an
# imported vLLM takes about 0.1 s.


ASK_S = 2.0
_ANSWER_MAX_BYTES = 64 * 1024


class NotForked(Exception):
    """The engine was not forked and must be started directly; the message says why."""


def fork_parked(
    door: Path, spec: ProcessSpec, *, instance: str, fleet: Path, log: Path, environ: Mapping[str, str]
) -> Child:
    """Fork an engine from the parked process that listens on `door`, and return it running. Raises NotForked."""
    env = child_environment(spec, instance=instance, fleet=fleet, environ=dict(environ))
    request = json.dumps({"argv": spec.argv, "env": env, "cwd": str(fleet)}).encode() + b"\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, open_log(log) as output:
        connection.settimeout(ASK_S)
        try:
            connection.connect(str(door))
            sent = socket.send_fds(connection, [request], [output.fileno()])
            connection.sendall(request[sent:])
            pid = _parse_pid(_read_line(connection))
            started_at = start_time(pid)
            if started_at is None:
                raise NotForked(f"process {pid} has ended")
            connection.sendall(b"go\n")
        except OSError as error:
            raise NotForked(f"{error}") from error
    return Child(pid=pid, started_at=started_at)


def _read_line(connection: socket.socket) -> bytes:
    text = b""
    while not text.endswith(b"\n") and len(text) < _ANSWER_MAX_BYTES:
        data = connection.recv(4096)
        if not data:
            break
        text += data
    return text


def _parse_pid(answer: bytes) -> int:
    try:
        told = json.loads(answer)
    except ValueError:
        raise NotForked("no answer") from None
    pid = told.get("pid") if isinstance(told, dict) else None
    if type(pid) is int and pid > 1:
        return pid
    raise NotForked(str(told.get("refused") if isinstance(told, dict) else told)[:500])
