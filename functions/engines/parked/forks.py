"""Processes that an engine starts in its turn, forked from what was parked.

vLLM spawns its engine core and its workers: fresh interpreters, each of which imports everything again. In an engine
that was forked from a parked process they are forked as well, by a fork server (Python's own, multiprocessing's) that
was forked off before the engine's code began: nothing has run in it, so no accelerator, thread or lock is inherited.
Each gets the environment that its starter has at that moment, as a spawned process would.

Spawned after all: where a variable that is read before or by imports is another than it was for the parked process (a
preloaded library, as vLLM has on CPUs; which cores threads run on), where another executable is to be run (vLLM's NUMA
binding), and where the fork server is gone. A number of threads that vLLM chooses for its processes by itself, as it
does on accelerators, is set in the forked one before its code begins; that is sound because nobody has run anything in
parallel before.

Runs under the engine's interpreter: the standard library alone. Relies on what CPython 3.10 to 3.13 have inside
multiprocessing; with another Python nothing is changed.
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

# By how names begin: read by the loader, by the interpreter, and by the libraries that count threads.
BEFORE_IMPORTS = ("LD_", "PYTHON", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "NUMEXPR_NUM", "GLIBC_", "MALLOC_")
_THREADS, _THREADS_BY_VLLM = "OMP_NUM_THREADS", "VLLM_OMP_NUM_THREADS_SET_BY_VLLM"
_ENVIRON = "shoal_environ"  # in what multiprocessing tells a process of its own of the one that started it


class Forked(forkserver.ForkServer):
    """One that is there already."""

    def ensure_running(self) -> None:
        resource_tracker.ensure_running()


def stand_by(parked_environ: dict[str, str]) -> None:
    """In an engine's process, before its code: processes that it, or one of those, spawns are forked."""
    if not (3, 10) <= sys.version_info[:2] <= (3, 13):
        return
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = tempfile.mkdtemp(prefix="shoal-forks-")
    try:
        listener.bind(str(Path(folder) / "s"))  # the folder is its owner's alone
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
                sys.stderr.write(f"{process.name} imports for itself: the fork server is gone ({error})\n")
        return popen_spawn_posix.Popen(process)

    vars(spawn).update(get_preparation_data=telling, prepare=preparing)
    type.__setattr__(context.SpawnProcess, "_Popen", staticmethod(popen))


def _set_threads(parked_environ: dict[str, str]) -> None:
    """As torch would have read it."""
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
    """The fork server, until nobody is left who could ask it."""
    try:
        forkserver.main(listener_fd, alive_r, [])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)
