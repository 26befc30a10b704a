"""A process with the roles' modules loaded, which forks when a test needs a role as a separate process.

    python -m tests.fork_server DESCRIPTOR      (tests/roles.py starts it, one for each pytest process)

Importing a role takes about a second of CPU, and the tests start hundreds. A fork is a real process with its own
environment, descriptors and working directory. It runs `__main__` as `python -m` does, and tests kill and await it like
any other process. One difference: its interpreter did not read the environment, so PYTHON* variables have no effect.

A request is one packet of JSON, with the descriptors of stdin, stdout and stderr and of a pipe that receives the exit
status. If the requesting process ends, the server kills its processes.
"""

import atexit
import contextlib
import faulthandler
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
from typing import Any

ROLES = (
    "functions.cli.main",
    "functions.controller.kubernetes.__main__",
    "functions.engines.sim.__main__",
    "functions.gateway.__main__",
    "functions.registry.__main__",
    "functions.replica.__main__",
    "functions.replica.node_fetch",
)
LATE = (
    "alembic.command",
    "boto3",
    "psycopg",
    "sqlalchemy.dialects.postgresql",
    "uvicorn",
)
MOST_BYTES = 1 << 18


def preload() -> None:
    """Import everything that the roles import, except `__main__`, which each process runs itself."""
    for name in (*ROLES, *LATE):
        importlib.import_module(name)
    for name in ROLES:
        del sys.modules[name]
    assert threading.active_count() == 1, "only a process of one thread can be forked"
    gc.freeze()


def serve(descriptor: int) -> None:
    asked = socket.socket(fileno=descriptor)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is pytest's
    running: dict[int, int] = {}  # pipe for the exit status, by pid
    own = [descriptor, woken, wake]
    while True:
        ready, _, _ = select.select([asked, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _reap(running)
        if asked in ready:
            message, descriptors, _, _ = socket.recv_fds(asked, MOST_BYTES, 4)
            if not message:
                for pid in running:
                    os.kill(pid, signal.SIGKILL)
                return
            pid = _forked(json.loads(message), descriptors, [*own, *running.values()])
            for each in descriptors[:3]:
                os.close(each)
            running[pid] = descriptors[3]
            asked.send(str(pid).encode())


def _reap(running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        told = running.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(told, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(told)


def _forked(request: dict[str, Any], descriptors: list[int], not_its_own: list[int]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for target, each in enumerate(descriptors[:3]):
            os.dup2(each, target)
        for each in (*descriptors, *not_its_own):
            os.close(each)
        if request["new_session"]:
            os.setsid()
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.stdin = os.fdopen(0)
        sys.stdout, sys.stderr = (os.fdopen(each, "w", buffering=1) for each in (1, 2))
        faulthandler.enable()  # print the stacks of all threads on SIGABRT
        sys.argv = [request["module"], *request["arguments"]]
        status = _run(request["module"])
        threading._shutdown()  # type: ignore[attr-defined]  # wait for threads, as at the interpreter's end
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
    except BaseException:
        traceback.print_exc()
        os._exit(70)
    os._exit(status)


def _run(module: str) -> int:
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    preload()
    serve(int(sys.argv[1]))
