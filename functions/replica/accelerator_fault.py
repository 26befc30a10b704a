"""Fault of the accelerator: an error that takes the replica out, stored in a file until an operator deletes the file.

    the driver reports a fatal error  ─► the file is written ─► the replica drains, and its heartbeat says why
    the file exists at the start      ─────────────────────────► the same: a restart repairs no device
    the file is deleted               ─► earlier errors are ignored, and the replica accepts requests again

The file is the source of truth: an operator can take a replica out by writing it, and a restart of the agent loses
nothing. Without a file (on Kubernetes the pod is replaced on another node) the fault lasts as long as the agent.

Neighbours: `functions.decisions.health.accelerator_errors` decides; `accelerators` reads the driver's errors. The
supervisor does not start the engine while the file exists (`functions.controller.local.supervisor`).
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from functions.decisions.health.accelerator_errors import DeviceErrors, describe_fatal
from functions.replica.status import AgentStatus

LOOK_EVERY_S = 1.0
_MAX_CHARS = 400

_log = logging.getLogger(__name__)


class ErrorSource(Protocol):
    def errors(self) -> Iterable[DeviceErrors]: ...

    def forget_errors(self) -> None: ...


class AcceleratorFault:
    """Accelerator fault of this replica, stored in the fault file. Owned by one event loop."""

    def __init__(
        self, status: AgentStatus, source: ErrorSource, file: Path | None, on_change: Callable[[], None]
    ) -> None:
        """`on_change` notifies the fleet immediately."""
        self._status = status
        self._source = source
        self._file = file
        self._on_change = on_change

    async def run(self) -> None:
        while True:
            self.check_fault()
            await asyncio.sleep(LOOK_EVERY_S)

    def check_fault(self) -> None:
        """Update the fault once: clear it if its file was deleted; otherwise, if there is none, take it from the file
        or from the driver's fatal errors, and store these in the file. This takes a few microseconds."""
        before, kept = self._status.accelerator_fault, self._read_fault_file()
        if before and self._file is not None and not kept:
            self._source.forget_errors()
            self._change("")
            _log.warning("the accelerator's error was cleared: %s", before)
        elif not before:
            found = kept or describe_fatal(self._source.errors())
            if found:
                _log.error("the replica is out until this accelerator error is cleared: %s", found)
                self._write_fault_file(found)
                self._change(found)

    def _change(self, fault: str) -> None:
        self._status.accelerator_fault = fault
        self._on_change()

    def _read_fault_file(self) -> str:
        if self._file is None:
            return ""
        try:
            with self._file.open(encoding="utf-8", errors="replace") as file:
                said = " ".join(file.read(_MAX_CHARS).split())
        except FileNotFoundError:
            return ""
        except OSError as error:  # the file exists but its content is unknown
            return f"{self._file} cannot be read: {error.strerror}"
        return said or "taken out by an operator"

    def _write_fault_file(self, fault: str) -> None:
        if self._file is None or self._file.exists():
            return
        with contextlib.suppress(OSError):  # without the file, the fault lasts as long as the agent
            self._file.parent.mkdir(parents=True, exist_ok=True)
            draft = self._file.with_suffix(".draft")
            draft.write_text(f"{fault}\n", encoding="utf-8")
            draft.replace(self._file)
