"""Execution of the journal's entries. Each may be executed twice. Functions block, and raise if an entry fails."""

import signal
import time
from pathlib import Path

import httpx

from functions.cli.context import CliContext
from functions.cli.drill.commits import revert
from functions.cli.drill.journal import (
    Continue,
    PutBack,
    Remove,
    RestoreWindows,
    Revert,
    RevokeKey,
    SetFaults,
    StartController,
    Undoing,
)
from functions.cli.drill.stage import ENGINE_S, reload_prometheus
from functions.cli.fleet_wait import ensure_controller
from functions.cli.registry_client import Registry, RegistryRefusal, RegistryUnreachable
from functions.controller.local.children import is_alive, send_signal, session_members
from functions.controller.local.instances import read_ledger
from functions.controller.local.monitoring import ensure_monitoring
from functions.controller.local.pools import read_target

REVOKE_WITHIN_S = 30.0  # the registry may have been down just before
RETRY_S = 1.0
_GONE = 404


def undo(context: CliContext, undoing: Undoing) -> None:
    match undoing:
        case Continue():
            _continue(undoing)
        case StartController():
            ensure_controller(context, read_target(context.layout.target_file))
        case SetFaults():
            _set(undoing)
        case Revert():
            revert(context.layout.gitops_dir, undoing.commit)
        case RevokeKey():
            _revoke(context, undoing)
        case PutBack():
            if Path(undoing.aside).exists():
                Path(undoing.aside).replace(undoing.path)
        case Remove():
            Path(undoing.path).unlink(missing_ok=True)
        case RestoreWindows():
            ensure_monitoring(context.layout, context.ports)
            found = read_ledger(context.layout.ledger_file).processes
            reload_prometheus([entry for entry in found if entry.role == "prometheus"])


def _continue(stopped: Continue) -> None:
    if is_alive(stopped.pid, stopped.started_at):
        for pid in session_members(stopped.pid):
            send_signal(pid, signal.SIGCONT)


def _set(former: SetFaults) -> None:
    """Restore an engine's fault switches. An engine that does not answer has none left."""
    try:
        answer = httpx.post(f"http://127.0.0.1:{former.port}/sim/faults", json=former.faults, timeout=ENGINE_S)
    except httpx.TransportError:
        return
    answer.raise_for_status()


def _revoke(context: CliContext, key: RevokeKey) -> None:
    deadline_s = time.monotonic() + REVOKE_WITHIN_S
    while True:
        try:
            with Registry(context) as registry:
                registry.send("DELETE", f"/v1/tenants/{key.tenant}/keys/{key.key_id}")
        except RegistryRefusal as error:
            if error.status == _GONE:  # the key was never created
                return
            if error.status < 500 or time.monotonic() > deadline_s:
                raise
        except RegistryUnreachable:
            if time.monotonic() > deadline_s:
                raise
        else:
            return
        time.sleep(RETRY_S)
