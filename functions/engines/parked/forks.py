"""Fork the processes that an engine starts, instead of spawning them.

vLLM spawns its engine core and its workers: fresh interpreters that import everything again. An engine that was
forked from a parked process forks them instead, by Python's own fork server (multiprocessing). The fork server is
forked off before the engine's code begins, so no accelerator, thread or lock is inherited. Each process gets the
environment that its parent has at that moment, as a spawned process would.

A process is still spawned if a variable that imports may read differs from the parked process's (such as a preloaded
library, which vLLM sets on CPUs, or the cores that threads use), if another executable is to run (vLLM's NUMA
binding), or if the fork server is gone. On accelerators vLLM sets the number of threads of its processes; the forked
process applies it before its code begins, which is safe because nothing has run in parallel before.

Runs under the engine's interpreter with the standard library alone. It relies on internals of multiprocessing in
CPython 3.10 to 3.13; with another Python it changes nothing.
"""

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing import context, forkserver, popen_forkserver, popen_spawn_posix, resource_tracker, spawn
from pathlib import Path
from typing import Any

# Prefixes of variables that the loader, the interpreter or a library that counts threads reads at import.
BEFORE_IMPORTS = ("LD_", "PYTHON", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "NUMEXPR_NUM", "GLIBC_", "MALLOC_")
_THREADS, _THREADS_BY_VLLM = "OMP_NUM_THREADS", "VLLM_OMP_NUM_THREADS_SET_BY_VLLM"
_ENVIRON = "shoal_environ"  # key in multiprocessing's preparation data that carries the parent's environment


class Forked(forkserver.ForkServer):
    """A fork server that is already running."""

    def ensure_running(self) -> None:
        resource_tracker.ensure_running()


def stand_by(parked_environ: dict[str, str]) -> None:
    """Make this process and its children fork what they spawn, if Python is 3.10 to 3.13. Call before the engine's code
    runs."""
    if not (3, 10) <= sys.version_info[:2] <= (3, 13):
        return
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = tempfile.mkdtemp(prefix="shoal-forks-")
    try:
        listener.bind(str(Path(folder) / "s"))  # only the owner can enter the folder
        listener.listen()
        alive_r, alive_w = os.pipe()
        _replace(listener.getsockname(), alive_w, parked_environ)
        resource_tracker.ensure_running()
        if not os.fork():
            os.close(alive_w)
            _serve(listener.detach(), alive_r, folder)
        os.close(alive_r)
    finally:
        listener.close()


def _replace(address: str, alive_w: int, parked_environ: dict[str, str]) -> None:
    server = Forked()
    vars(server).update(_forkserver_address=address, _forkserver_alive_fd=alive_w, _inherited_fds=[])
    forkserver._forkserver = server
    forkserver.connect_to_new_process = server.connect_to_new_process
    forkserver.get_inherited_fds = server.get_inherited_fds
    tell, prepare = spawn.get_preparation_data, spawn.prepare

    def telling(name: str) -> dict[str, Any]:
        return {**tell(name), _ENVIRON: dict(os.environ)}

    def preparing(data: Mapping[str, Any]) -> None:
        environ = data.get(_ENVIRON)
        if environ is not None:
            os.environ.clear()
            os.environ.update(environ)
            _set_threads(parked_environ)
        prepare(data)

    def popen(process: Any) -> Any:
        if not _must_spawn(parked_environ):
            try:
                return popen_forkserver.Popen(process)
            except OSError as error:
                sys.stderr.write(f"{process.name} is spawned, not forked: the fork server is gone ({error})\n")
        return popen_spawn_posix.Popen(process)

    vars(spawn).update(get_preparation_data=telling, prepare=preparing)
    type.__setattr__(context.SpawnProcess, "_Popen", staticmethod(popen))


def _set_threads(parked_environ: dict[str, str]) -> None:
    """Set torch's thread count from the environment, as torch would at import, if it differs from the parked
    process's."""
    told = os.environ.get(_THREADS, "")
    if told != parked_environ.get(_THREADS, "") and told.isdecimal() and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(max(1, int(told)))


def _must_spawn(parked_environ: dict[str, str]) -> bool:
    if os.fsdecode(spawn.get_executable()) != sys.executable:
        return True
    names = {name for name in parked_environ.keys() | os.environ.keys() if name.startswith(BEFORE_IMPORTS)}
    if os.environ.get(_THREADS_BY_VLLM) == "1":
        names.discard(_THREADS)
    return any(parked_environ.get(name) != os.environ.get(name) for name in names)


def _serve(listener_fd: int, alive_r: int, folder: str) -> None:
    """Run the fork server until all processes that could use it are gone. Then remove `folder` and exit; never
    return."""
    try:
        forkserver.main(listener_fd, alive_r, [])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)
