"""Control of the controller process: start it in the background, send orders, wait for the fleet.

While the fleet starts, the output shows what is still missing, and the end of the log of a process that died.
"""

import subprocess
import time
from pathlib import Path
from typing import Any

from functions.cli.context import CliContext
from functions.cli.refused import CommandRefused
from functions.controller.local.control import ControllerGone, OrderRefused, ask_controller
from functions.controller.local.files import last_lines, open_log
from functions.controller.local.pools import Target, write_target
from functions.controller.local.prepare.steps import Reporter

START_TIMEOUT_S = 120.0  # imports alone take tens of seconds on a busy machine; an exit is noticed immediately
SHOWN_LOG_LINES = 20


def controller_status(context: CliContext) -> dict[str, Any] | None:
    """Return the controller's status, or None if no controller runs."""
    try:
        status: dict[str, Any] = ask_controller(context.layout.control_socket, {"do": "status"})
    except ControllerGone:
        return None
    return status


def send_order(context: CliContext, what: dict[str, Any]) -> Any:
    """Send an order to the controller. Fail if no controller runs or if it refuses the order."""
    try:
        return ask_controller(context.layout.control_socket, what)
    except ControllerGone as error:
        raise CommandRefused(f"no fleet runs in {context.layout.root}: start one with `shoal up`") from error
    except OrderRefused as error:
        raise CommandRefused(str(error)) from error


def ensure_controller(context: CliContext, target: Target) -> str:
    """Start the controller with the target, or send the target to the running one. Return what was done, in words; fail
    if a started controller exits or does not answer."""
    if controller_status(context) is not None:
        send_order(context, {"do": "configure", "engine": target.engine, "replicas": target.replicas})
        return "already running"
    write_target(context.layout.target_file, target)
    log = context.layout.log_file("controller")
    with open_log(log) as output:
        began_at = output.tell()
        process = subprocess.Popen(
            [str(context.settings.python), "-m", "functions.controller"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=context.environment(),
            cwd=context.layout.root,
            start_new_session=True,
        )
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while controller_status(context) is None:
        if process.poll() is not None:
            raise CommandRefused(_log_since(context, began_at))
        if time.monotonic() > deadline_s:
            raise CommandRefused(f"the controller does not answer after {START_TIMEOUT_S:.0f} s; see {log}")
        time.sleep(0.1)
    return f"process {process.pid}"


def log_tail(path: str) -> str:
    lines = last_lines(Path(path), SHOWN_LOG_LINES)
    return "\n".join(["", f"the end of {path}:", *("    " + line for line in lines)])


def _log_since(context: CliContext, began_at: int) -> str:
    """Return the last lines that the controller logged since byte `began_at`, or words if there are none."""
    log = context.layout.log_file("controller")
    said = log.read_bytes()[began_at:].decode(errors="replace").strip()
    words = [line.removeprefix("controller: ") for line in said.splitlines()[-SHOWN_LOG_LINES:]]
    return "\n".join(words) if words else f"the controller exited immediately; see {log}"


POLL_S = 0.25
# Two vLLM replicas on two cores take about a minute; slow disks and cold caches several.
TIMEOUT_S = {"vllm": 900.0, "sim": 120.0}
GIVE_UP_AFTER_FAILURES = 3
INCOMPLETE_S = 30.0  # limit for an incomplete snapshot once every process is ready: waiting longer does not help


def wait_for_fleet(context: CliContext, target: Target, reporter: Reporter) -> None:
    """Wait until every process is ready and the gateway uses the complete snapshot. Fail if that does not happen."""
    deadline_s = time.monotonic() + TIMEOUT_S[target.engine]
    told: set[tuple[str, int]] = set()
    incomplete_since_s: float | None = None
    with reporter.step(f"Fleet ({'vLLM on CPU' if target.engine == 'vllm' else 'simulated engines'})") as step:
        while True:
            status = controller_status(context)
            if status is None:
                raise CommandRefused("the controller exited" + log_tail(str(context.layout.log_file("controller"))))
            if _matches(status, target) and status["ready"] and in_force(status["snapshot"]):
                step.note(f"{len(status['processes'])} processes, snapshot epoch {status['snapshot']['epoch']}")
                return
            _report_failures(status, told, reporter)
            if _matches(status, target) and status["settled"] and status["stalled"]:
                raise CommandRefused(f"the fleet could not be changed to these options: {status['config']['stalled']}")
            is_short = status["ready"] and not status["snapshot"]["complete"]
            incomplete_since_s = (incomplete_since_s or time.monotonic()) if is_short else None
            if incomplete_since_s is not None and time.monotonic() - incomplete_since_s > INCOMPLETE_S:
                raise CommandRefused(_incomplete(status))
            missing = missing_words(status)
            step.update(missing)
            if time.monotonic() > deadline_s:
                raise CommandRefused(_late(context, status, missing, TIMEOUT_S[target.engine]))
            time.sleep(POLL_S)


def _matches(status: dict[str, Any], target: Target) -> bool:
    return bool(status["target"] == {"engine": target.engine, "replicas": target.replicas})


def in_force(snapshot: dict[str, Any]) -> bool:
    """Return True if the snapshot is complete and the gateway uses it or a later one.

    Just after a publication the gateway may still use the previous snapshot, in which models or keys are missing.
    """
    return bool(snapshot["complete"] and (snapshot["gateway_epoch"] or 0) >= snapshot["epoch"])


def missing_words(status: dict[str, Any]) -> str:
    """Return what the fleet lacks, such as `engine 1/2, agent 0/2, gateway 0/1` (ready processes of all, by role), and
    what its snapshot lacks; `settling` if that is nothing."""
    parts = []
    for role in dict.fromkeys(process["role"] for process in status["processes"]):
        phases = [process["phase"] for process in status["processes"] if process["role"] == role]
        if phases.count("ready") < len(phases):
            parts.append(f"{role} {phases.count('ready')}/{len(phases)}")
    if not status["snapshot"]["complete"]:
        parts.append("snapshot: " + status["snapshot"]["message"])
    elif not in_force(status["snapshot"]):
        parts.append(f"snapshot: epoch {status['snapshot']['epoch']} on its way to the gateway")
    if status["stalled"]:
        parts.append(status["stalled"])
    return ", ".join(parts) or "settling"


def _report_failures(status: dict[str, Any], told: set[tuple[str, int]], reporter: Reporter) -> None:
    for process in status["processes"]:
        name, failures = process["name"], process["failures"]
        if not failures or process["ever_ready"]:
            continue
        if failures >= GIVE_UP_AFTER_FAILURES:
            words = f"{name} died {failures} times while starting ({process['reason'] or process['last_exit']})"
            raise CommandRefused(
                words + log_tail(process["log"]) + "\nThe other processes keep running; `shoal down` stops them."
            )
        if (name, failures) not in told:
            told.add((name, failures))
            reporter.print_line(f"  {name} died while starting ({process['last_exit']}); trying again")


def _incomplete(status: dict[str, Any]) -> str:
    snapshot = status["snapshot"]
    lines = "\n".join(f"  {problem}" for problem in snapshot["problems"])
    return f"the fleet runs, but not everything can be served: {snapshot['message']}\n{lines}"


def _late(context: CliContext, status: dict[str, Any], missing: str, timeout_s: float) -> str:
    words = f"the fleet is not ready after {timeout_s:.0f} s: {missing}."
    for process in status["processes"]:
        if process["phase"] != "ready":
            why = f"\n{process['name']} is {process['phase']}: {process['reason'] or 'no reason given'}"
            return words + why + log_tail(process["log"]) + "\nThe controller keeps trying; `shoal down` stops it."
    return f"{words} See {context.layout.log_file('controller')}; `shoal down` stops it."
