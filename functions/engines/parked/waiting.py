"""Parked process: imports an engine once, holds no accelerator, and forks an engine for each request.

    ENGINE_PYTHON waiting.py SOCKET MODULE [ALSO…]        imports what `python -m MODULE` imports, and ALSO

Each connection to the socket starts one engine. The request is a line of JSON (`argv`, `env`, `cwd`) with the
engine's log as a file descriptor. The answer is `{"refused": "why"}`, or the child's own `{"pid": …}`. The child
leads its own session and has the requested environment, directory and log. On `go` it runs `MODULE` as `python -m`
would. Without `go` it exits, because the caller has given up and starts the engine itself. This process continues to
wait.

It refuses a request if an engine started directly would differ: another interpreter or module, a file that changed
since it was imported, or a changed variable that imports may have read. The caller then starts the engine directly.
This process never holds an accelerator. If an import has opened one (a file of /dev/nvidia* or /dev/kfd is open, or
torch reports it) or has left a Python thread running, it exits with a message before it answers any request. The
reason is that an initialised driver does not survive a fork; vLLM forks its own processes under the same condition.

Runs under the engine's interpreter, where shoal is not installed, so it uses the standard library alone.
"""

import gc
import importlib
import importlib.util
import json
import os
import runpy
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

REQUEST_MAX_BYTES = 256 * 1024  # close to the limit of a command line
_REQUEST_S = 2.0  # for the whole request
_GO_S = 10.0  # from the child's answer until it receives `go`
_REAP_EVERY_S = 1.0
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri")
# Variables that differ per replica. Engines read them when they start to work, never at import (vLLM 0.32).
LATE = frozenset({"VLLM_CACHE_ROOT", "SHOAL_FLEET", "SHOAL_PROCESS", "SHOAL_SPEC_HASH"})
_PEER = struct.Struct("3i")  # SO_PEERCRED: pid, uid, gid


Stamp = tuple[int, int] | None  # modification time and size of a file
Request = dict[str, Any]


class Refused(Exception):
    """No engine can be started from here; the message gives the reason."""


def main(socket_path: str, module: str, also: list[str]) -> None:
    """Import the engine, then fork a child for each request, for ever. Only a child returns from here: its `sys.argv`
    and environment are then those of its engine."""
    Path(socket_path).unlink(missing_ok=True)
    began_s = time.monotonic()
    environ, forks = dict(os.environ), load_sibling("forks")
    files = import_modules(module, also)
    exit_unless_forkable()
    gc.collect()
    gc.freeze()  # the collector leaves these objects alone, so their pages stay shared with the children
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    making = Path(f"{socket_path}.new")
    making.unlink(missing_ok=True)
    listener.bind(str(making))
    listener.listen(8)
    making.rename(socket_path)  # the rename makes it visible, ready for connections
    threads = len(list(Path("/proc/self/task").iterdir()))
    took_s = time.monotonic() - began_s
    write_log(
        f"{module} imported in {took_s:.1f} s: {len(files)} files, {resident_mb()} MB, {threads} threads; waiting"
    )
    wait(listener, module, environ, files)
    forks.stand_by(environ)


def load_sibling(name: str) -> Any:
    """Load a module of this folder, which is not on the import path."""
    spec = importlib.util.spec_from_file_location(f"shoal_parked_{name}", Path(__file__).with_name(f"{name}.py"))
    if spec is None or spec.loader is None:
        sys.exit(f"{name}.py is not beside {__file__}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def import_modules(module: str, also: list[str]) -> dict[str, Stamp]:
    """Import `module` and, if installed, those in `also`. Return a stamp of the file of every module imported so
    far."""
    for name in (module, *also):
        try:
            importlib.import_module(name)
        except ImportError as error:
            if name == module:
                raise
            write_log(f"{name} is not installed, so each engine imports it if needed: {error}")
    return {file: stamp(file) for each in list(sys.modules.values()) if (file := getattr(each, "__file__", None))}


def stamp(file: str) -> Stamp:
    try:
        status = Path(file).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def exit_unless_forkable() -> None:
    """Exit if a fork of this process would not be safe: an accelerator is open, or other threads run."""
    held = {target for fd in Path("/proc/self/fd").iterdir() if (target := link(fd)).startswith(_DEVICES)}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        held.add("torch.cuda")
    if held:
        sys.exit(f"an import has opened an accelerator ({', '.join(sorted(held))}): engines start without this process")
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if others:
        sys.exit(f"an import has left threads running ({', '.join(others)}): engines start without this process")


def link(fd: Path) -> str:
    try:
        return str(fd.readlink())
    except OSError:
        return ""


def wait(listener: socket.socket, module: str, environ: dict[str, str], files: dict[str, Stamp]) -> None:
    """Accept requests for ever and fork a child for each that is not refused. Return only in a child, as an engine's
    process."""
    listener.settimeout(_REAP_EVERY_S)
    while True:
        reap()
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection:
            log = -1
            try:
                request, log = read(connection)
                check(request, module, environ, files)
            except Refused as refused:
                send_reply(connection, {"refused": str(refused)})
                write_log(f"refused: {refused}")
                close([log] if log >= 0 else [])
                continue
            pid = os.fork()
            if not pid:
                listener.close()
                enter_engine_process(request, log, connection)
                return
            os.close(log)
            write_log(f"process {pid} is {request['env'].get('SHOAL_PROCESS', 'an engine')}")


def read(connection: socket.socket) -> tuple[Request, int]:
    """Receive a request. Return it and its log's descriptor; raise Refused if it is invalid or another user's."""
    _, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if uid != os.getuid():
        raise Refused("the request is from another user")
    connection.settimeout(_REQUEST_S)
    text, fds = b"", list[int]()
    try:
        while not text.endswith(b"\n"):
            data, found, _, _ = socket.recv_fds(connection, 65536, 1)
            fds += found
            text += data
            if not data or len(text) > REQUEST_MAX_BYTES or len(fds) > 1:
                raise Refused("the request is incomplete or too long")
        request = json.loads(text)
        if not (isinstance(request, dict) and len(fds) == 1):
            raise Refused("the request is not an object with one log descriptor")
        argv, env, cwd = request.get("argv"), request.get("env"), request.get("cwd")
        if not (
            isinstance(argv, list)
            and is_texts(argv)
            and len(argv) >= 3
            and isinstance(env, dict)
            and isinstance(cwd, str)
        ):
            raise Refused("the request has no command line, environment or directory")
        if not (is_texts(list(env)) and is_texts(list(env.values())) and is_texts([cwd])):
            raise Refused("the environment or the directory is not text")
    except (OSError, ValueError, RecursionError) as error:
        close(fds)
        raise Refused(f"the request cannot be read: {error}") from error
    except Refused:
        close(fds)
        raise
    return request, fds[0]


def is_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(each, str) and "\0" not in each for each in values)


def close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def check(request: Request, module: str, environ: dict[str, str], files: dict[str, Stamp]) -> None:
    """Raise Refused if an engine started directly would differ from one forked here. Add this process's LC_CTYPE to the
    request's environment if it lacks one."""
    python, option, wanted = request["argv"][:3]
    if str(Path(python).absolute()) != sys.executable or (option, wanted) != ("-m", module):
        raise Refused(f"{python} {option} {wanted} is not the parked engine {sys.executable} -m {module}")
    env = request["env"]
    if "LC_CTYPE" in environ:  # Python sets it without a locale, and would do so in an engine started directly
        env.setdefault("LC_CTYPE", environ["LC_CTYPE"])
    differing = sorted(
        name for name in environ.keys() | env.keys() if name not in LATE and environ.get(name) != env.get(name)
    )
    if differing:
        raise Refused(f"the environment differs: {', '.join(differing)[:500]}")
    changed = [file for file, was in files.items() if stamp(file) != was]
    if changed:
        raise Refused(f"{len(changed)} files have changed since they were imported, such as {changed[0]}")


def enter_engine_process(request: Request, log: int, connection: socket.socket) -> None:
    """Set this child's directory, log, environment and `sys.argv` to the engine's. Exit if the caller no longer
    waits."""
    try:
        os.setsid()
        os.chdir(request["cwd"])
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        close([nothing, log])
        os.environ.clear()
        os.environ.update(request["env"])
        sys.argv = request["argv"][2:]
        connection.settimeout(_GO_S)
        send_reply(connection, {"pid": os.getpid()})
        if connection.recv(16) != b"go\n":
            raise OSError("the caller no longer waits for this start")
    except OSError as error:
        send_reply(connection, {"refused": str(error)})
        write_log(f"not started: {error}")
        os._exit(1)
    if "setproctitle" in sys.modules:
        sys.modules["setproctitle"].setproctitle(" ".join(request["argv"]))


def send_reply(connection: socket.socket, document: dict[str, object]) -> None:
    try:
        connection.sendall(json.dumps(document).encode() + b"\n")
    except OSError as error:
        write_log(f"the answer cannot be sent: {error}")


def reap() -> None:
    """Reap the forked engines that have ended, and log how; only their parent can read their exit status."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        code = os.waitstatus_to_exitcode(status)
        write_log(f"process {pid} ended: " + (f"exit status {code}" if code >= 0 else f"killed by signal {-code}"))


def resident_mb() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


def write_log(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} parked: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
