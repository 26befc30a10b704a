"""shoal's roles as processes for tests, forked from a process that has them loaded (tests/fork_server.py).

`start` replaces `subprocess.Popen([sys.executable, "-m", module, *arguments], …)`, and `run` replaces `subprocess.run`
with captured text. Both offer only what the tests use.
"""

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[1]
_PRELOAD_S = 120.0


class RoleProcess:
    """A forked process, with the parts of `Popen` that tests use."""

    def __init__(self, pid: int, arguments: list[str], ended: int) -> None:
        self.pid = pid
        self.args = arguments
        self.returncode: int | None = None
        self._ended = ended

    def poll(self) -> int | None:
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        status = self._look(timeout)
        if status is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            told = os.read(self._ended, 32)
            os.close(self._ended)
            assert told, "the fork server is gone"
            self.returncode = int(told)
        return self.returncode


def start(
    module: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    stdin: int | IO[Any] = subprocess.DEVNULL,
    stdout: IO[Any] | None = None,
    stderr: IO[Any] | None = None,
    cwd: Path | None = None,
    start_new_session: bool = False,
) -> RoleProcess:
    """Start `python -m module` with these arguments. The environment defaults to this process's own."""
    request = {
        "module": module,
        "arguments": arguments,
        "environment": dict(os.environ if env is None else env),
        "folder": str(cwd or Path.cwd()),
        "new_session": start_new_session,
    }
    ended, told = os.pipe()
    with Path(os.devnull).open("rb") as nothing:
        given = nothing if isinstance(stdin, int) else stdin
        descriptors = [
            given.fileno(),
            *(each.fileno() if each else at for each, at in ((stdout, 1), (stderr, 2))),
            told,
        ]
        server = _server()
        socket.send_fds(server, [json.dumps(request).encode()], descriptors)
        pid = int(server.recv(32))
    os.close(told)
    return RoleProcess(pid, [module, *arguments], ended)


def run(
    module: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 300.0,
    input: str = "",  # noqa: A002 - subprocess.run's name for it
) -> "subprocess.CompletedProcess[str]":
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(input.encode())
        given.seek(0)
        process = start(module, *arguments, env=env, cwd=cwd, stdin=given, stdout=out, stderr=err)
        try:
            status = process.wait(timeout)
        finally:
            process.kill()
        for each in (out, err):
            each.seek(0)
        return subprocess.CompletedProcess(process.args, status, out.read().decode(), err.read().decode())


@functools.cache
def _server() -> socket.socket:
    """Start the fork server on the first call; it ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "tests.fork_server", str(theirs.fileno())]
    process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    theirs.close()
    ours.settimeout(_PRELOAD_S)

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours
