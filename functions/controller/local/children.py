"""Processes of the operating system: started in a session of their own, known by a mark, ended with all they started.

Every process of the fleet carries `SHOAL_FLEET=<state directory>` and `SHOAL_PROCESS=<name>` in its environment, and so
does everything that it starts; `found` looks for that mark.
Law: a signal goes only to a process whose pid AND start time are the ones we knew, or to a member of its session.
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

# What a process needs to find its way on this machine; the rest of the controller's environment stays away from it.
INHERITED = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
START_TIME_SLACK_S = 0.05
PROC = Path("/proc")
_STAT_START_TIME = 19  # field 22 of /proc/<pid>/stat, counted after the command's closing parenthesis


@dataclass(slots=True)
class Child:
    """A leader, started here or adopted."""

    pid: int
    started_at: float
    process: subprocess.Popen[bytes] | None = None  # None when adopted: the exit status is then not ours to know

    def exited(self) -> str | None:
        """How it ended, in words; None while it runs."""
        if self.process is not None:
            code = self.process.poll()
            return None if code is None else _how(code)
        return None if is_alive(self.pid, self.started_at) else "exited"

    def terminate(self) -> None:
        """SIGTERM to the leader alone: it knows best how to end those below it."""
        if self.exited() is None:
            send_signal(self.pid, signal.SIGTERM)

    def kill_group(self) -> None:
        """SIGKILL to every process of its session."""
        for pid in session_members(self.pid):
            send_signal(pid, signal.SIGKILL)


def spawn(spec: ProcessSpec, *, instance: str, fleet: Path, log: Path, environ: dict[str, str]) -> Child:
    """Start it in a new session; OSError where that fails."""
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
    # Not reaped before we poll it, so its entry is there even if it has ended already.
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
    """When the kernel started it; None when it is gone.

    On Linux seconds after boot, straight from the kernel: psutil's wall time moves when the clock is set, and a moved
    start time would make every running process a stranger to the next controller.
    """
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
    """Whether that very process runs; a zombie does not."""
    found = start_time(pid)
    return found is not None and abs(found - started_at) <= START_TIME_SLACK_S and not is_zombie(pid)


def session_members(session: int) -> list[int]:
    """Live processes of the session, the leader last, so that it cannot start others meanwhile unnoticed."""
    members = [pid for pid in psutil.pids() if session_of(pid) == session and not is_zombie(pid)]
    return sorted(members, key=lambda pid: pid == session)


def send_signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def session_of(pid: int) -> int | None:
    """The pid that leads its session; None when it is gone."""
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def _how(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


# An engine forked from a parked process: the asking side (`functions/engines/parked/waiting.py` is the other).
#
# The child waits until it is told to go. So whoever gives up on an answer can start the engine by itself, and there are
# never two. Blocks, for a few times ASK_S at most; a fork of an imported vLLM takes some 0.1 s.


ASK_S = 2.0
_ANSWER_MAX_BYTES = 64 * 1024


class NotForked(Exception):
    """The engine has to be started by itself; the message says why."""


def fork_parked(
    door: Path, spec: ProcessSpec, *, instance: str, fleet: Path, log: Path, environ: Mapping[str, str]
) -> Child:
    """The engine, running."""
    env = child_environment(spec, instance=instance, fleet=fleet, environ=dict(environ))
    request = json.dumps({"argv": spec.argv, "env": env, "cwd": str(fleet)}).encode() + b"\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, open_log(log) as output:
        connection.settimeout(ASK_S)
        try:
            connection.connect(str(door))
            sent = socket.send_fds(connection, [request], [output.fileno()])
            connection.sendall(request[sent:])
            pid = _pid_in(_line(connection))
            started_at = start_time(pid)
            if started_at is None:
                raise NotForked(f"process {pid} is gone")
            connection.sendall(b"go\n")
        except OSError as error:
            raise NotForked(f"{error}") from error
    return Child(pid=pid, started_at=started_at)


def _line(connection: socket.socket) -> bytes:
    text = b""
    while not text.endswith(b"\n") and len(text) < _ANSWER_MAX_BYTES:
        data = connection.recv(4096)
        if not data:
            break
        text += data
    return text


def _pid_in(answer: bytes) -> int:
    try:
        told = json.loads(answer)
    except ValueError:
        raise NotForked("no answer") from None
    pid = told.get("pid") if isinstance(told, dict) else None
    if type(pid) is int and pid > 1:
        return pid
    raise NotForked(str(told.get("refused") if isinstance(told, dict) else told)[:500])
