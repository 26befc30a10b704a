"""`kill -9` at every step of a piece of work, on the file system and towards a server.

Python announces each file operation and each HTTP message to audit hooks before it happens. A forked child does the
work with a hook that sends it SIGKILL at its n-th operation; n grows until the work completes. So no step can be
forgotten, and the code under test needs no hooks of its own. Kernel calls that are not announced (pwrite, fsync) come
between two that are.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

# By path below the folder; the second group by itself, since rmtree and flock name descriptors.
_BY_PATH = frozenset({"open", "os.rename", "os.mkdir", "os.chmod", "os.truncate", "os.utime", "shutil.rmtree"})
_ALWAYS = frozenset(
    {"os.remove", "os.rmdir", "os.scandir", "fcntl.flock", "http.client.connect", "http.client.send", "sqlite3.connect"}
)
_MOST_STEPS = 1000


def killed_at_each_step(
    folder: Path,
    *,
    prepare: Callable[[], object],
    work: Callable[[], object],
    check: Callable[[], object],
    every: int = 1,
) -> list[str]:
    """Run `prepare`, kill `work` at step n and `check` what is left, for each n or each `every`-th, until `work` ends.

    Return the names of the steps at which it was killed.
    """
    steps: list[str] = []
    for step in range(1, _MOST_STEPS, every):
        prepare()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            _work_until(step, str(folder), writer, work)
        os.close(writer)
        with os.fdopen(reader, "rb") as told:
            name = told.read().decode()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            check()
            return steps
        if status != -signal.SIGKILL:
            raise AssertionError(f"not killed before step {step}, and yet it failed: {name}")
        steps.append(name)
        check()
    raise AssertionError(f"the work takes more than {_MOST_STEPS} steps")


def _work_until(step: int, folder: str, writer: int, work: Callable[[], object]) -> None:
    """Run `work` in the forked child and kill the child at `step`; never returns."""
    seen = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        subjects = [str(one).removeprefix(folder) for one in arguments if str(one).startswith(folder)]
        if event in _ALWAYS or (event in _BY_PATH and subjects):
            seen += 1
            if seen == step:
                os.write(writer, " ".join((event, *subjects)).encode())
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        sys.addaudithook(hook)
        work()
    except BaseException as error:
        os.write(writer, repr(error).encode())
        os._exit(1)
    os._exit(0)
