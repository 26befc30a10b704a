"""One running (or waiting) process as the supervisor holds it: its spec, its state, its child."""

from dataclasses import dataclass, field

from functions.controller.local.children import Child
from functions.controller.local.ledger import LedgerEntry
from functions.controller.local.lifecycle import ProcessState
from functions.controller.local.spec import ProcessSpec


@dataclass(slots=True)
class Instance:
    """Owned by one event loop."""

    spec: ProcessSpec
    generation: int = 1
    state: ProcessState = field(default_factory=ProcessState)
    child: Child | None = None
    probing: bool = False  # one question at a time
    next_probe_s: float = 0.0

    @property
    def name(self) -> str:
        return instance_name(self.spec.name, self.generation)

    def entry(self, log: str) -> LedgerEntry:
        return LedgerEntry(
            name=self.name,
            role=self.spec.role,
            spec_hash=self.spec.spec_hash,
            phase=self.state.phase,
            generation=self.generation,
            pid=self.state.pid,
            started_at=self.child.started_at if self.child is not None else None,
            restarts=self.state.restarts,
            last_exit=self.state.last_exit,
            reason=self.state.reason,
            log=log,
            slot=self.spec.slot,
            replica_id=self.spec.replica_id,
        )


def instance_name(name: str, generation: int) -> str:
    """`gateway`, then `gateway.g2`, `gateway.g3` for those that took over."""
    return name if generation == 1 else f"{name}.g{generation}"


def parse_instance_name(text: str) -> tuple[str, int]:
    name, separator, generation = text.rpartition(".g")
    return (name, int(generation)) if separator and generation.isdecimal() else (text, 1)
