"""`shoal restart`: order it, then follow it to its end."""

import time

from functions.cli.controller_process import controller_status, order
from functions.cli.place import here
from functions.cli.refused import Refused
from functions.cli.terminal import TerminalReporter, make_console

POLL_S = 0.25


def restart(name: str) -> None:
    place = here()
    order(place, {"do": "restart", "name": name})
    with TerminalReporter(make_console()).step(f"Restarting {name}") as step:
        while True:
            status = controller_status(place)
            if status is None:
                raise Refused("the controller ended meanwhile; `shoal up` starts it again")
            doing = status["controller"]["operation"]
            if not doing.startswith("restarting"):
                break
            step.update(doing)
            time.sleep(POLL_S)
        if doing.startswith("failed"):
            raise Refused(doing)
        step.note(doing)
