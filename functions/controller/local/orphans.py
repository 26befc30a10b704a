"""End of processes without a controller: those nobody wants any more, or all of them.

Blocking, for use where nothing else has to go on meanwhile (a controller's first second, `shoal down`).
"""

import os
import time
from collections.abc import Callable, Iterable

from functions.controller.local.children import is_alive, session_of
from functions.controller.local.found import Found, find_fleet, kill_found, terminate_found
from functions.controller.local.instances import parse_instance_name
from functions.controller.local.layout import StateLayout
from functions.controller.local.ledger import Ledger
from functions.controller.local.spec import STOP_ORDER, Role

POLL_S = 0.1
KILL_WAIT_S = 10.0


def sessions_of(found: Iterable[Found]) -> dict[int, int]:
    """Session leader by pid."""
    return {process.pid: session_of(process.pid) or 0 for process in found}


def end_now(found: Iterable[Found]) -> list[Found]:
    """SIGKILL and wait; returns those that are still there (in uninterruptible sleep)."""
    left = list(found)
    deadline_s = time.monotonic() + KILL_WAIT_S
    while left and time.monotonic() < deadline_s:
        for process in left:
            kill_found(process)
        time.sleep(POLL_S)
        left = [process for process in left if is_alive(process.pid, process.started_at)]
    return left


def drain_all(layout: StateLayout, ledger: Ledger, drain_s: float, tell: Callable[[str], None]) -> list[Found]:
    """Stop the whole fleet without a controller; returns what could not be ended."""
    roles: dict[str, str] = {parse_instance_name(entry.name)[0]: entry.role for entry in ledger.processes}
    for role in STOP_ORDER:
        leaders = [found for found in left_over(layout, ledger) if found.leads and _role(found, roles) == role]
        if not leaders:
            continue
        tell(f"stopping {', '.join(sorted(found.name for found in leaders))}")
        for found in leaders:
            terminate_found(found)
        _wait(leaders, drain_s if role in ("gateway", "agent") else min(drain_s, KILL_WAIT_S))
        ended = {found.pid for found in leaders}
        end_now(found for found in left_over(layout, ledger) if sessions_of([found])[found.pid] in ended)
    return end_now(left_over(layout, ledger))


def left_over(layout: StateLayout, ledger: Ledger) -> list[Found]:
    """Every process of the fleet that runs, save the one who asks."""
    return [found for found in find_fleet(layout, ledger) if found.pid != os.getpid()]


def _wait(found: list[Found], timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while any(is_alive(process.pid, process.started_at) for process in found) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)


def _role(found: Found, roles: dict[str, str]) -> str:
    """From the ledger, else from the name, which begins with the role."""
    name = parse_instance_name(found.name)[0]
    known: tuple[Role, ...] = STOP_ORDER
    return roles.get(name) or next((role for role in known if name == role or name.startswith(role + "-")), "s3")
