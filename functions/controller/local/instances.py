"""Instances of the fleet's processes in the supervisor, and the ledger of all processes on disk for the next
controller.

The ledger is one JSON file, replaced by rename at each change. It survives the death of processes, but after a reboot
there is nothing to adopt. An unreadable file counts as empty; running processes are still found by the mark in their
environment.
"""

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from functions.controller.local.children import Child
from functions.controller.local.lifecycle import ProcessState
from functions.controller.local.spec import ProcessSpec

LEDGER_MAX_BYTES = 4 * 1024 * 1024
_NS_PER_S = 1e9
_WAITED = 1  # index in schedstat: time run, time waited, number of time slices


# Time that a process waited for a processor. On an overloaded machine, a missing answer is no sign of a hang.
#
# A hung process waits for nothing, or computes. A process that is ready to run but gets no processor cannot answer its
# probes either. Killing it adds to the load, because its successor imports Python for half a minute in the same queue.
# The kernel counts the wait of each thread (`/proc/PID/schedstat`, the second number, in nanoseconds). The main thread
# runs the event loop, so its count is used. If the kernel does not count, nothing is deducted. `supervisor` reads the
# count between two probes; `step` deducts it from the time without an answer.


def processor_wait_s(pid: int, proc: Path = Path("/proc")) -> float | None:
    """Return the seconds that the process has waited for a processor since it started, or None if that is unknown."""
    try:
        return int((proc / str(pid) / "schedstat").read_text().split()[_WAITED]) / _NS_PER_S
    except (OSError, ValueError, IndexError):
        return None


class Starvation:
    """Time that one process waited for a processor between two calls."""

    __slots__ = ("_pid", "_total_s")

    def __init__(self) -> None:
        self._pid: int | None = None
        self._total_s: float | None = None

    def since_last_s(self, pid: int) -> float:
        """Return the seconds that the process waited for a processor since the last call; 0 at the first call for a
        process, or if the time is unknown."""
        total_s = processor_wait_s(pid)
        before_s = self._total_s if pid == self._pid else None
        self._pid, self._total_s = pid, total_s
        if total_s is None or before_s is None:
            return 0.0
        return max(0.0, total_s - before_s)


class LedgerEntry(msgspec.Struct, frozen=True):
    """One process. `pid` and `started_at` together identify it, because a pid is reused with a later start time."""

    name: str
    role: str
    spec_hash: str
    phase: str
    generation: int = 1
    pid: int | None = None
    started_at: float | None = None  # see `children.start_time`
    restarts: int = 0
    last_exit: str = ""
    reason: str = ""
    log: str = ""
    slot: int | None = None
    replica_id: str | None = None


class ProcessLedger(msgspec.Struct, frozen=True):
    controller_pid: int = 0
    processes: tuple[LedgerEntry, ...] = ()


def read_ledger(path: Path) -> ProcessLedger:
    try:
        document = path.read_bytes()[: LEDGER_MAX_BYTES + 1]
        return msgspec.json.decode(document, type=ProcessLedger)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return ProcessLedger()


def slots_in(ledger: ProcessLedger) -> dict[str, int]:
    found = ((entry.replica_id, entry.slot) for entry in ledger.processes)
    return {replica_id: slot for replica_id, slot in found if replica_id is not None and slot is not None}


def encode_ledger(ledger: ProcessLedger) -> bytes:
    """Return the ledger as JSON with one field per line, readable for people too."""
    return msgspec.json.format(msgspec.json.encode(ledger), indent=1)


@dataclass(slots=True)
class Instance:
    """One process that runs or waits: its spec, state and child. Owned by one event loop."""

    spec: ProcessSpec
    generation: int = 1
    state: ProcessState = field(default_factory=ProcessState)
    child: Child | None = None
    probing: bool = False  # a probe is under way
    next_probe_s: float = 0.0
    starvation: Starvation = field(default_factory=Starvation)

    @property
    def name(self) -> str:
        return instance_name(self.spec.name, self.generation)

    def ledger_entry(self, log: str) -> LedgerEntry:
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
    """Return the name of a process's generation: `gateway` for the first, then `gateway.g2`, `gateway.g3` after
    takeovers."""
    return name if generation == 1 else f"{name}.g{generation}"


def parse_instance_name(text: str) -> tuple[str, int]:
    name, separator, generation = text.rpartition(".g")
    return (name, int(generation)) if separator and generation.isdecimal() else (text, 1)
