"""Changes that a drill may make to the fleet: processes, simulated engines' faults, branch, keys, files, alert windows.

Rule: the undo entry of a change is in the journal before the change is made. All functions block. `undoing` executes
the journal's entries; `commits` changes the branch.
"""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from functions.cli.context import CliContext
from functions.cli.drill.commits import push_change
from functions.cli.drill.journal import (
    Continue,
    PutBack,
    Remove,
    RestoreWindows,
    Revert,
    RevokeKey,
    SetFaults,
    StartController,
    UndoJournal,
)
from functions.cli.fleet_wait import controller_status
from functions.cli.refused import CommandRefused
from functions.cli.registry_client import Registry
from functions.controller.local.children import is_alive, send_signal, session_members, start_time
from functions.controller.local.files import replace_file
from functions.controller.local.instances import LedgerEntry, read_ledger
from functions.controller.local.monitoring import ensure_monitoring

ENGINE_S = 5.0
POLL_S = 0.5
KEY_LASTS = timedelta(hours=6)  # the key expires even if it is not revoked
CONTROLLER = "controller"


class DrillStage:
    def __init__(self, context: CliContext, journal: UndoJournal, tenant: str) -> None:
        self.context = context
        self.journal = journal
        self.tenant = tenant

    # -- state of the fleet -------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the controller's status. Fail if no controller answers."""
        found = controller_status(self.context)
        if found is None:
            raise CommandRefused(f"no fleet runs in {self.context.layout.root}: start one with `shoal up --engine sim`")
        return found

    def entries(self, role: str | None = None) -> list[LedgerEntry]:
        """Return the processes that have a pid; of one name, the newest generation first."""
        found = read_ledger(self.context.layout.ledger_file).processes
        chosen = [entry for entry in found if entry.pid is not None and role in (None, entry.role)]
        return sorted(chosen, key=lambda entry: (entry.name.partition(".")[0], -entry.generation))

    def entry(self, name: str) -> LedgerEntry:
        found = next((each for each in self.entries() if each.name.partition(".")[0] == name), None)
        if found is None:
            raise CommandRefused(f"no process {name} runs; `shoal status` shows those that do")
        return found

    def replicas(self) -> list[str]:
        """Return the sorted ids of the replicas whose engines have a pid."""
        return sorted(entry.replica_id for entry in self.entries("engine") if entry.replica_id is not None)

    # -- processes ----------------------------------------------------------------------------------------------------

    def kill(self, *names: str) -> None:
        """Send SIGKILL to each process and its session. The controller starts them again."""
        for name in names:
            for pid in self._members(*self._found(name)):
                send_signal(pid, signal.SIGKILL)

    def kill_controller(self) -> None:
        pid, started_at = self._controller()
        self.journal.add(StartController())
        if is_alive(pid, started_at):
            os.kill(pid, signal.SIGKILL)

    def stop(self, *names: str) -> None:
        """Send SIGSTOP: the processes hang with open ports, until the journal continues them. A stopped `controller`
        restarts nothing."""
        for name in names:
            pid, started_at = self._controller() if name == CONTROLLER else self._found(name)
            self.journal.add(Continue(name, pid, started_at))
            for member in self._members(pid, started_at):
                send_signal(member, signal.SIGSTOP)

    def _controller(self) -> tuple[int, float]:
        pid = int(self.status()["controller"]["pid"])
        return pid, start_time(pid) or 0.0

    def _found(self, name: str) -> tuple[int, float]:
        entry = self.entry(name)
        if entry.pid is None or entry.started_at is None or not is_alive(entry.pid, entry.started_at):
            raise CommandRefused(f"{name} does not run")
        return entry.pid, entry.started_at

    @staticmethod
    def _members(pid: int, started_at: float) -> list[int]:
        return session_members(pid) if is_alive(pid, started_at) else []

    # -- engines ------------------------------------------------------------------------------------------------------

    def set_faults(self, replica: str, **faults: bool | float | str | None) -> None:
        """Set fault switches of a simulated engine; the journal restores their former values. Other switches stay as
        they are."""
        slot = self.entry(f"engine-{replica}").slot
        port = self.context.ports.engine(slot if slot is not None else 0)
        url = f"http://127.0.0.1:{port}/sim/faults"
        before: dict[str, Any] = httpx.get(url, timeout=ENGINE_S).raise_for_status().json()
        self.journal.add(SetFaults(port, {name: before[name] for name in faults}))
        httpx.post(url, json=faults, timeout=ENGINE_S).raise_for_status()

    # -- branch, keys, files, windows ---------------------------------------------------------------------------------

    def push(self, change: Callable[[Path], None], message: str) -> None:
        """Change files of the branch and push; the journal reverts the commit. Fail with git's message if the push is
        refused."""
        push_change(self.context.layout.gitops_dir, change, message, lambda commit: self.journal.add(Revert(commit)))

    def mint_key(self, key_id: str, limits: Mapping[str, int], scopes: Sequence[str] = ("inference",)) -> str:
        """Create and return a key of the drill's tenant that expires after KEY_LASTS; the journal revokes it."""
        expires = (datetime.now(UTC) + KEY_LASTS).isoformat(timespec="seconds")
        body = {"id": key_id, "scopes": list(scopes), "expires": expires, "limits": dict(limits) or None}
        self.journal.add(RevokeKey(self.tenant, key_id))
        with Registry(self.context) as registry:
            made = registry.send("POST", f"/v1/tenants/{self.tenant}/keys", body)
        return str(made["key"])

    def replace(self, path: Path, content: bytes) -> None:
        """Replace the content of a file, and keep the old content in a copy next to it, from which the journal restores
        it."""
        aside = path.with_name(f"{path.name}.before-drill")
        self.journal.add(PutBack(str(path), str(aside)))
        replace_file(aside, path.read_bytes())
        replace_file(path, content)

    def write(self, path: Path, content: bytes) -> None:
        """Write a file that did not exist before; the journal removes it."""
        self.register_expected_file(path)
        replace_file(path, content)

    def register_expected_file(self, path: Path) -> None:
        """Register for removal a file that the platform will create because of the fault."""
        self.journal.add(Remove(str(path)))

    @staticmethod
    def wait_until(what: str, holds: Callable[[], bool], limit_s: float) -> None:
        """Wait until `holds` returns True. Fail after `limit_s`, with `what` in the message."""
        deadline_s = time.monotonic() + limit_s
        while not holds():
            if time.monotonic() > deadline_s:
                raise CommandRefused(f"this did not happen within {limit_s:.0f} s: {what}")
            time.sleep(POLL_S)

    @staticmethod
    def wait(seconds: float) -> None:
        time.sleep(seconds)

    def shorten_windows(self, scale: float) -> bool:
        """Multiply the windows of all alerts by `scale`; the journal restores them. Return False if no Prometheus
        runs."""
        running = self.entries("prometheus")
        if not running:
            return False
        self.journal.add(RestoreWindows())
        ensure_monitoring(self.context.layout, self.context.ports, scale)
        reload_prometheus(running)
        return True


def reload_prometheus(running: Sequence[LedgerEntry]) -> None:
    for entry in running:
        if entry.pid is not None and entry.started_at is not None and is_alive(entry.pid, entry.started_at):
            send_signal(entry.pid, signal.SIGHUP)
