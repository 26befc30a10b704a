"""Processes of the fleet: one as the supervisor holds it, and the ledger of all on disk for the next controller.

The ledger is one JSON file, replaced by rename at each change. It survives the death of processes, not of the machine:
after a reboot there is nothing to adopt, and a file that cannot be read counts as empty (the mark in each process's
environment still finds what runs).
"""

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from functions.controller.local.children import Child
from functions.controller.local.lifecycle import ProcessState
from functions.controller.local.spec import ProcessSpec

LEDGER_MAX_BYTES = 4 * 1024 * 1024
_NS_PER_S = 1e9
_WAITED = 1  # of the three numbers: ran, waited, times it was given a processor


# Seconds that a process stood in line for a processor: on a machine that is too full, silence is no sign of a hang.
#
# A process that hangs waits for nothing, or computes; one that is ready to run and gets no processor cannot answer its
# probes either, and to kill it makes the machine fuller: whatever starts next imports half a minute of Python in the
# same queue. The kernel counts the wait of each thread (`/proc/PID/schedstat`, the second number, nanoseconds); the
# main one has the event loop, so it is the one that is asked. Where the kernel does not count, nothing is forgiven.
# `supervisor` asks between two probes; `step` takes what it says off a silence.


def stood_in_line_s(pid: int, proc: Path = Path("/proc")) -> float | None:
    """Since the process began; None where that is not known."""
    try:
        return int((proc / str(pid) / "schedstat").read_text().split()[_WAITED]) / _NS_PER_S
    except (OSError, ValueError, IndexError):
        return None


class Starvation:
    """Of one process in its run: how long it waited between two times of asking."""

    __slots__ = ("_pid", "_total_s")

    def __init__(self) -> None:
        self._pid: int | None = None
        self._total_s: float | None = None

    def since_last_s(self, pid: int) -> float:
        """Seconds in line since the last call for the same process; 0 at the first."""
        total_s = stood_in_line_s(pid)
        before_s = self._total_s if pid == self._pid else None
        self._pid, self._total_s = pid, total_s
        if total_s is None or before_s is None:
            return 0.0
        return max(0.0, total_s - before_s)


class LedgerEntry(msgspec.Struct, frozen=True):
    """One process. `pid` and `started_at` together name a process: pids are used again, with a later start."""

    name: str
    role: str
    spec_hash: str
    phase: str
    generation: int = 1
    pid: int | None = None
    started_at: float | None = None  # wall seconds, as the kernel has it
    restarts: int = 0
    last_exit: str = ""
    reason: str = ""
    log: str = ""
    slot: int | None = None
    replica_id: str | None = None


class Ledger(msgspec.Struct, frozen=True):
    controller_pid: int = 0
    processes: tuple[LedgerEntry, ...] = ()


def read_ledger(path: Path) -> Ledger:
    try:
        document = path.read_bytes()[: LEDGER_MAX_BYTES + 1]
        return msgspec.json.decode(document, type=Ledger)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return Ledger()


def slots_in(ledger: Ledger) -> dict[str, int]:
    """Which replica has which slot."""
    found = ((entry.replica_id, entry.slot) for entry in ledger.processes)
    return {replica_id: slot for replica_id, slot in found if replica_id is not None and slot is not None}


def encode_ledger(ledger: Ledger) -> bytes:
    """For people too: one field a line."""
    return msgspec.json.format(msgspec.json.encode(ledger), indent=1)


@dataclass(slots=True)
class Instance:
    """One running (or waiting) process: its spec, its state, its child. Owned by one event loop."""

    spec: ProcessSpec
    generation: int = 1
    state: ProcessState = field(default_factory=ProcessState)
    child: Child | None = None
    probing: bool = False  # one question at a time
    next_probe_s: float = 0.0
    starvation: Starvation = field(default_factory=Starvation)

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
