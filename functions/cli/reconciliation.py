"""`shoal suspend`, `shoal resume`, `shoal reconcile`: whether the fleet follows its branch, and looking at once."""

import time

from functions.cli.controller_process import controller_status, order
from functions.cli.place import here
from functions.cli.refused import Refused
from functions.cli.status_revision import short
from functions.cli.terminal import TerminalReporter, make_console

POLL_S = 0.2
TIMEOUT_S = 60.0


def suspend(reason: str) -> None:
    order(here(clones=True), {"do": "suspend", "reason": reason})
    reporter = TerminalReporter(make_console())
    reporter.say("Suspended: what runs goes on, and nothing is changed until `shoal resume`. Pushes are still judged.")


def resume() -> None:
    order(here(clones=True), {"do": "resume"})
    _follow("Resuming")


def reconcile() -> None:
    order(here(clones=True), {"do": "reconcile"})
    _follow("Reconciling")


def _follow(title: str) -> None:
    """Until the branch's tip is applied, or refused."""
    place = here(clones=True)
    deadline_s = time.monotonic() + TIMEOUT_S
    with TerminalReporter(make_console()).step(title) as step:
        while True:
            status = controller_status(place)
            if status is None:
                raise Refused("the controller ended meanwhile; `shoal up` starts it again")
            revision = status["revision"]
            if revision["problem_count"]:
                first = revision["problems"][0]
                raise Refused(
                    f"{short(revision['tip'])} has {revision['problem_count']} problem(s); the first: {first}"
                )
            if revision["tip"] == revision["desired"] == revision["last_applied"] and status["settled"]:
                step.note(f"{short(revision['desired'])} is applied")
                return
            if time.monotonic() > deadline_s:
                raise Refused(f"not applied after {TIMEOUT_S:.0f} s, and goes on: `shoal status` shows how far it is")
            step.update(revision["message"])
            time.sleep(POLL_S)
