"""Adoption of an earlier controller's processes: which to keep, and which to end. Pure.

Kept: a session leader that was started with a spec which is wanted, or was until a moment ago: the controller may have
been killed while it changed the fleet from one to the other, and what serves is then changed in order, not ended. Of
several generations of one process all are kept: a takeover was under way and is finished by the new controller.
Everything else of the fleet that belongs to no kept leader's session is ended.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from functions.controller.local.found import Found
from functions.controller.local.instances import parse_instance_name
from functions.controller.local.ledger import Ledger
from functions.controller.local.spec import ProcessSpec


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
    ledger: Ledger,
    candidates: Iterable[Mapping[str, ProcessSpec]],
) -> AdoptionPlan:
    """`sessions` gives each found pid's session leader; `candidates` are specs by name, what is wanted now first."""
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
