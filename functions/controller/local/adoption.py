"""Decide which processes of an earlier controller are adopted, and end the others.

A process is adopted if it leads its session and its spec is desired now or was desired a moment ago: the earlier
controller may have been killed while it changed the fleet from one to the other. Processes that serve are then
changed in order, not ended. Several generations of one process are all adopted, so that the new controller finishes
the takeover. Every other process is ended unless it belongs to the session of an adopted leader.

The plan is pure. Ending blocks, so it is used only where nothing else must run: in a controller's first second and in
`shoal down`.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from functions.controller.local.children import is_alive, session_of
from functions.controller.local.found import Found, find_fleet, kill_found, terminate_found
from functions.controller.local.instances import ProcessLedger, parse_instance_name
from functions.controller.local.layout import StateLayout
from functions.controller.local.spec import STOP_ORDER, ProcessSpec, Role


@dataclass(frozen=True, slots=True)
class Adoption:
    spec: ProcessSpec
    generation: int
    pid: int
    started_at: float
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class AdoptionPlan:
    keep: tuple[Adoption, ...]
    end: tuple[Found, ...]


def plan_adoption(
    found: Iterable[Found],
    sessions: Mapping[int, int],
    ledger: ProcessLedger,
    candidates: Iterable[Mapping[str, ProcessSpec]],
) -> AdoptionPlan:
    """Return which of the `found` processes to adopt (session leaders with the name and the hash of a candidate, the
    oldest of each name) and which to end. `sessions` has the session leader of each pid. `candidates` are specs by
    name; the specs that are wanted now come first."""
    known = {(name, spec.spec_hash): spec for specs in reversed(list(candidates)) for name, spec in specs.items()}
    everyone = list(found)
    restarts = {entry.name: entry.restarts for entry in ledger.processes}
    keep: list[Adoption] = []
    taken: set[str] = set()
    for process in sorted(everyone, key=lambda process: process.started_at):
        name, generation = parse_instance_name(process.name)
        spec = known.get((name, process.spec_hash))
        if not process.leads or process.name in taken or spec is None:
            continue
        taken.add(process.name)
        keep.append(Adoption(spec, generation, process.pid, process.started_at, restarts.get(process.name, 0)))
    kept_sessions = {adoption.pid for adoption in keep}
    end = tuple(process for process in everyone if sessions.get(process.pid) not in kept_sessions)
    return AdoptionPlan(keep=tuple(keep), end=end)


POLL_S = 0.1
KILL_WAIT_S = 10.0


def sessions_of(found: Iterable[Found]) -> dict[int, int]:
    return {process.pid: session_of(process.pid) or 0 for process in found}


def end_now(found: Iterable[Found]) -> list[Found]:
    """Send SIGKILL repeatedly until all processes are gone, for at most KILL_WAIT_S. Return those that still exist (in
    uninterruptible sleep)."""
    left = list(found)
    deadline_s = time.monotonic() + KILL_WAIT_S
    while left and time.monotonic() < deadline_s:
        for process in left:
            kill_found(process)
        time.sleep(POLL_S)
        left = [process for process in left if is_alive(process.pid, process.started_at)]
    return left


def drain_all(layout: StateLayout, ledger: ProcessLedger, drain_s: float, tell: Callable[[str], None]) -> list[Found]:
    """Stop the whole fleet without a controller, role by role: SIGTERM, then SIGKILL after `drain_s` (roles that do not
    drain: KILL_WAIT_S at most). Report each role to `tell`. Return the processes that could not be ended."""
    roles: dict[str, str] = {parse_instance_name(entry.name)[0]: entry.role for entry in ledger.processes}
    for role in STOP_ORDER:
        leaders = [found for found in fleet_processes(layout, ledger) if found.leads and _role(found, roles) == role]
        if not leaders:
            continue
        tell(f"stopping {', '.join(sorted(found.name for found in leaders))}")
        for found in leaders:
            terminate_found(found)
        _wait(leaders, drain_s if role in ("gateway", "agent") else min(drain_s, KILL_WAIT_S))
        ended = {found.pid for found in leaders}
        end_now(found for found in fleet_processes(layout, ledger) if sessions_of([found])[found.pid] in ended)
    return end_now(fleet_processes(layout, ledger))


def fleet_processes(layout: StateLayout, ledger: ProcessLedger) -> list[Found]:
    """Return every running process of the fleet except the calling process."""
    return [found for found in find_fleet(layout, ledger) if found.pid != os.getpid()]


def _wait(found: list[Found], timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while any(is_alive(process.pid, process.started_at) for process in found) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)


def _role(found: Found, roles: dict[str, str]) -> str:
    name = parse_instance_name(found.name)[0]
    known: tuple[Role, ...] = STOP_ORDER
    return roles.get(name) or next((role for role in known if name == role or name.startswith(role + "-")), "s3")
