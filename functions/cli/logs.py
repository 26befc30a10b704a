"""`shoal logs`: the end of one process's log, and what is added to it."""

import sys
import time
from pathlib import Path

from functions.cli.place import here
from functions.cli.refused import Refused
from functions.controller.local.log_files import last_lines

POLL_S = 0.3
READ_BYTES = 64 * 1024


def logs(name: str, *, follow: bool, lines: int) -> None:
    directory = here().layout.logs_dir
    known = sorted(path.name.removesuffix(".log") for path in directory.glob("*.log"))
    if name not in known:
        raise Refused(f"no log is called {name!r}; there are: {', '.join(known) or 'none'}")
    path = directory / f"{name}.log"
    end = path.stat().st_size
    for line in last_lines(path, lines):
        sys.stdout.write(line + "\n")
    if follow:
        _follow(path, end)


def _follow(path: Path, position: int) -> None:
    """Until interrupted; a log that was turned over is read from its new beginning."""
    while True:
        if path.exists():
            size = path.stat().st_size
            position = position if position <= size else 0
            with path.open("rb") as file:
                file.seek(position)
                while block := file.read(READ_BYTES):
                    position += len(block)
                    sys.stdout.write(block.decode(errors="replace"))
            sys.stdout.flush()
        time.sleep(POLL_S)
