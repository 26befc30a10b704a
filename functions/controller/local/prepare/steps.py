"""Steps of a preparation: reported to the operator, and run as long commands with a log, progress and a lock.

The command line decides how a report looks (spinner or plain lines). The command inherits the lock's descriptor. If
`shoal up` is killed and leaves its pip running, the next `shoal up` waits for that pip instead of starting a second
one in the same directory.
"""

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from functions.controller.local.files import LockTaken, last_lines, lock_held, open_log


class ReportedStep(Protocol):
    def update(self, what: str) -> None:
        """Report what the step is doing now; may be called often."""

    def note(self, result: str) -> None:
        """Set the result that is shown when the step ends."""


class Reporter(Protocol):
    def step(self, title: str) -> AbstractContextManager[ReportedStep]:
        """Report one step, which ends with a tick, or with a cross if it raises."""

    def print_line(self, line: str) -> None:
        """Print one line outside any step."""


class CannotPrepare(Exception):
    """A step cannot be done; the message says what to do about it."""


LOCK_POLL_S = 0.5
SHOWN_LOG_LINES = 20


@contextmanager
def exclusive(path: Path, waiting: Callable[[str], None], timeout_s: float = 1800.0) -> Iterator[int]:
    """Wait up to `timeout_s` for the lock and hold it while the body runs; raise CannotPrepare if it stays taken.
    `waiting` is called with a text at each try. The descriptor is yielded so that commands can inherit it."""
    with ExitStack() as stack:
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                descriptor = stack.enter_context(lock_held(path))
                break
            except LockTaken as error:
                if time.monotonic() > deadline_s:
                    raise CannotPrepare(f"{error} after {timeout_s:.0f} s; end that process, then try again") from error
            waiting("waiting for another preparation to end")
            time.sleep(LOCK_POLL_S)
        yield descriptor


def run_logged(
    argv: Sequence[str],
    *,
    log: Path,
    lock: int,
    on_line: Callable[[str], None],
    env: Mapping[str, str] | None = None,
) -> None:
    """Run the command to its end, append its output to `log`, and call `on_line` with each non-empty line. Raises
    CannotPrepare with the end of its output if it fails."""
    with open_log(log) as output:
        output.write(f"\n$ {' '.join(argv)}\n".encode())
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(env) if env is not None else None,
            pass_fds=(lock,),
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                output.write(line)
                text = line.decode(errors="replace").strip()
                if text:
                    on_line(text)
        except BaseException:
            process.kill()
            raise
        finally:
            process.stdout.close()
            code = process.wait()
    if code != 0:
        raise CannotPrepare(failed(argv[0], code, log))


def failed(program: str, code: int, log: Path) -> str:
    tail = "\n".join("    " + line for line in last_lines(log, SHOWN_LOG_LINES))
    hint = "\nThe disk is full." if "No space left on device" in tail else ""
    return f"{Path(program).name} ended with status {code}; the end of {log}:\n{tail}{hint}"
