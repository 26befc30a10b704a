"""`shoal down`: with a controller, ask it to drain everything; without one, find what runs and end it.

Either way it looks again afterwards, and says so when something is left.
"""

import time

from functions.cli.controller_process import controller_status
from functions.cli.place import Place, here
from functions.cli.refused import Refused
from functions.cli.terminal import TerminalReporter, make_console
from functions.controller.local import kept_ports
from functions.controller.local import ledger as ledgers
from functions.controller.local.control import ControllerGone, OrderRefused, ask_controller
from functions.controller.local.found import Found
from functions.controller.local.orphans import drain_all, end_now, left_over
from functions.controller.local.prepare.reporting import Step

POLL_S = 0.2
# Beyond the drain limits of gateway and agents, one after the other: SIGKILL and sweeping for each role.
SLACK_S = 60.0


def down() -> None:
    place = here()
    reporter = TerminalReporter(make_console())
    if not place.layout.run_dir.is_dir():
        reporter.say(f"nothing runs: there is no fleet in {place.layout.root}")
        return
    with reporter.step("Stopping the fleet") as step:
        stopped_by_controller = _ask_controller(place, step)
        left = _stop_rest(place, step)
        if left:
            who = ", ".join(f"{found.name} ({found.pid})" for found in left)
            raise Refused(f"still there after SIGKILL, in uninterruptible sleep: {who}")
        kept_ports.forget(place.layout)
        step.note("nothing is left" if stopped_by_controller else "nothing is left; there was no controller")


def _ask_controller(place: Place, step: Step) -> bool:
    try:
        ask_controller(place.layout.control_socket, {"do": "stop"})
    except (ControllerGone, OrderRefused):
        return False
    deadline_s = time.monotonic() + 2 * place.settings.drain_timeout_s + SLACK_S
    while time.monotonic() < deadline_s:
        status = controller_status(place)
        if status is None:
            return True
        going = [process["name"] for process in status["processes"]]
        step.update(f"{len(going)} left: {', '.join(going)}")
        time.sleep(POLL_S)
    return False


def _stop_rest(place: Place, step: Step) -> list[Found]:
    """What no controller stopped. A controller that does not answer goes first: it would start things again."""
    ledger = ledgers.read(place.layout.ledger_file)
    end_now(found for found in left_over(place.layout, ledger) if found.name == "controller")
    return drain_all(place.layout, ledger, place.settings.drain_timeout_s, step.update)
