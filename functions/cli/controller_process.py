"""The controller as the command line sees it: started in the background, asked, waited for."""

import subprocess
import time
from pathlib import Path
from typing import Any

from functions.cli.place import Place
from functions.cli.refused import Refused
from functions.controller.local.control import ControllerGone, OrderRefused, ask_controller
from functions.controller.local.files import last_lines, open_log
from functions.controller.local.pools import Target, write_target

START_TIMEOUT_S = 120.0  # on a busy machine its imports alone take tens of seconds; one that ends is noticed at once
SHOWN_LOG_LINES = 20


def controller_status(place: Place) -> dict[str, Any] | None:
    """What the controller says; None where none runs."""
    try:
        status: dict[str, Any] = ask_controller(place.layout.control_socket, {"do": "status"})
    except ControllerGone:
        return None
    return status


def order(place: Place, what: dict[str, Any]) -> Any:
    """Refused where no controller runs, or it will not."""
    try:
        return ask_controller(place.layout.control_socket, what)
    except ControllerGone as error:
        raise Refused(f"no fleet runs in {place.layout.root}: start one with `shoal up`") from error
    except OrderRefused as error:
        raise Refused(str(error)) from error


def ensure_controller(place: Place, target: Target) -> str:
    """Start it, or tell the one that runs what is wanted; what was done, in words."""
    if controller_status(place) is not None:
        order(place, {"do": "configure", "engine": target.engine, "replicas": target.replicas})
        return "already running"
    write_target(place.layout.target_file, target)
    log = place.layout.log_file("controller")
    with open_log(log) as output:
        began_at = output.tell()
        process = subprocess.Popen(
            [str(place.settings.python), "-m", "functions.controller"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=place.environment(),
            cwd=place.layout.root,
            start_new_session=True,
        )
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while controller_status(place) is None:
        if process.poll() is not None:
            raise Refused(_said_since(place, began_at))
        if time.monotonic() > deadline_s:
            raise Refused(f"the controller does not answer after {START_TIMEOUT_S:.0f} s; see {log}")
        time.sleep(0.1)
    return f"process {process.pid}"


def log_tail(path: str) -> str:
    lines = last_lines(Path(path), SHOWN_LOG_LINES)
    return "\n".join(["", f"the end of {path}:", *("    " + line for line in lines)])


def _said_since(place: Place, began_at: int) -> str:
    """The controller's last words: what it wrote in this run."""
    log = place.layout.log_file("controller")
    said = log.read_bytes()[began_at:].decode(errors="replace").strip()
    words = [line.removeprefix("controller: ") for line in said.splitlines()[-SHOWN_LOG_LINES:]]
    return "\n".join(words) if words else f"the controller ended at once; see {log}"
