"""The installation under test: a `shoal up` of six replicas with the registry on Postgres, a second gateway, a second
registry, and a supervisor for them.

The controller supervises what `shoal up` started. Postgres, the controller, the second gateway and the second registry
are restarted a second after they end, as systemd or a kubelet would do. The drill does nothing else for the
installation.
"""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from functions.controller.local.children import FLEET_VARIABLE, HASH_VARIABLE, NAME_VARIABLE, session_members
from tests.drills.chaos.postgres import Postgres
from tests.e2e.projects import PATIENT, project_with, without_limits, without_scaling
from tests.fleets import Fleet, running_fleet, wait_until

REPLICAS = 6
POOL = "smollm2-135m"
GROUPS = {"gateway-2": 4202, "registry-2": 4302}  # processes whose packets a firewall rule can match
_PORT_BASE = 23_000  # no other process uses this network
_AGAIN_AFTER_S = 1.0
_READY_S = 120.0
# offsets from the fleet's base
_PORTS = {"postgres": 130, "gateway-2": 131, "gateway-2 metrics": 132, "registry-2": 133}
_MIB = {
    "gateway": 48, "gateway-2": 48, "cache": 96, "data/registry": 48, "registry-2": 48,
    "data/s3": 1024, "data/traces": 512, "data/controller": 16, "postgres": 512,
}  # fmt: skip
_BESIDE = ("gateway-2", "registry-2", "postgres")
DISK_OF = {
    "gateway-1": "gateway", "gateway-2": "gateway-2", "agents": "cache", "registry-1": "data/registry",
    "registry-2": "registry-2", "postgres": "postgres", "s3": "data/s3", "traces": "data/traces",
    "controller": "data/controller",
}  # fmt: skip
CONVERSATIONS = (
    "policies/tenants.yaml",
    '  models: ["globex/*", "smollm2-135m"]\n',
    '  models: ["globex/*", "smollm2-135m"]\n  conversations: {store: true, ttl: 2h, maxTokens: 4000}\n',
)


@dataclass(slots=True)
class Kept:
    """A process that is restarted when it ends."""

    argv: list[str]
    env: dict[str, str]
    cwd: Path
    log: Path
    group: int = 0
    process: "subprocess.Popen[bytes] | None" = None
    starts: int = 0

    def start(self) -> "subprocess.Popen[bytes]":
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.argv, env=self.env, cwd=self.cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, group=self.group,
            )  # fmt: skip


@dataclass(slots=True)
class Rig:
    fleet: Fleet
    folder: Path
    postgres: Postgres
    kept: dict[str, Kept] = field(default_factory=dict)
    postgres_process: "subprocess.Popen[bytes] | None" = None
    controller_environment: dict[str, str] = field(default_factory=dict)
    kept_controller: "subprocess.Popen[bytes] | None" = None
    _over: threading.Event = field(default_factory=threading.Event)

    def port(self, name: str) -> int:
        own = {"gateway-1": 3, "registry-1": 4, "gateway-1 metrics": 5, "bus": 6, "s3": 7, "traces": 11} | _PORTS
        return self.fleet.port_base + own[name]

    def url(self, name: str) -> str:
        return f"https://localhost:{self.port(name)}"

    def disk(self, target: str) -> Path:
        return _disk(self.folder, DISK_OF[target])

    def leader(self, target: str, draw: float) -> int | None:
        """Return the first process of its session, or None if it does not run now."""
        if target in self.kept:
            process = self.kept[target].process
        elif target == "postgres":
            process = self.postgres_process
        elif target == "controller":
            return self.controller_pid()
        else:
            return self._from_ledger(target, draw)
        return process.pid if process is not None and process.poll() is None else None

    def members(self, target: str, draw: float) -> list[int]:
        leader = self.leader(target, draw)
        return [] if leader is None else session_members(leader)

    def replica(self, draw: float) -> int:
        """Return the slot of the replica that a draw selects."""
        return int(draw * REPLICAS)

    def controller_pid(self) -> int | None:
        with suppress(OSError, ValueError, KeyError, psutil.Error):
            ledger = json.loads((self.fleet.state_dir / "run" / "processes.json").read_text())
            pid = int(ledger["controller_pid"])
            if "functions.controller" in " ".join(psutil.Process(pid).cmdline()):
                return pid
        return None

    def _from_ledger(self, target: str, draw: float) -> int | None:
        with suppress(OSError, ValueError, KeyError, AssertionError):
            role = target.removesuffix("-1")
            found = [entry for entry in self.fleet.processes().values() if entry["role"] == role]
            if role in ("engine", "agent"):
                found = [entry for entry in found if entry["slot"] == self.replica(draw)]
            if found:
                return int(max(found, key=lambda entry: entry["generation"])["pid"])
        return None

    def supervise(self) -> None:
        """Restart ended processes until `close`; runs in a thread."""
        ended_s: dict[str, float] = {}
        while not self._over.wait(0.3):
            for name in ("postgres", "controller", *self.kept):
                if self._runs(name):
                    ended_s.pop(name, None)
                    continue
                if time.monotonic() - ended_s.setdefault(name, time.monotonic()) >= _AGAIN_AFTER_S:
                    ended_s.pop(name)
                    self._start_or_say(name)

    def close(self) -> None:
        self._over.set()

    def _runs(self, name: str) -> bool:
        if name == "controller":
            pid = self.controller_pid()
            started = self.kept_controller
            return pid is not None or (started is not None and started.poll() is None)
        process = self.postgres_process if name == "postgres" else self.kept[name].process
        return process is not None and process.poll() is None

    def _start_or_say(self, name: str) -> None:
        """Start the process; a failed start is printed and retried."""
        try:
            self._start(name)
        except (OSError, subprocess.SubprocessError, psutil.Error) as error:
            print(f"{time.strftime('%H:%M:%S')} {name} did not start: {error!r}", flush=True)

    def _start(self, name: str) -> None:
        if name == "postgres":
            self.postgres_process = self.postgres.start()
        elif name == "controller":
            with (self.fleet.state_dir / "logs" / "controller.log").open("ab") as log:
                self.kept_controller = subprocess.Popen(
                    [sys.executable, "-m", "functions.controller"], env=self.controller_environment, stdout=log,
                    stderr=log, stdin=subprocess.DEVNULL, cwd=self.fleet.state_dir, start_new_session=True, group=0,
                )  # fmt: skip
        else:
            kept = self.kept[name]
            kept.process = kept.start()
            kept.starts += 1


@contextmanager
def running_rig(folder: Path) -> Iterator[Rig]:
    state = folder / "state"
    _mount(folder)
    project = without_scaling(without_limits(project_with(folder / "project", PATIENT, CONVERSATIONS)))
    port_base = _PORT_BASE
    postgres = Postgres(_disk(folder, "postgres"), port_base + _PORTS["postgres"], folder / "postgres.log")
    server = postgres.start()
    wait_until("Postgres answers", postgres.answers, _READY_S)
    postgres.make_database()
    variables = {"SHOAL_REGISTRY_DATABASE_URL": postgres.url, "SHOAL_TRACE_STORE": "chdb"}
    with running_fleet(state, "sim", REPLICAS, project, variables, port_base) as fleet:
        rig = Rig(fleet, folder, postgres, postgres_process=server)
        rig.controller_environment = psutil.Process(rig.controller_pid() or 0).environ()
        rig.kept = {"gateway-2": _gateway_2(rig), "registry-2": _registry_2(rig)}
        keeper = threading.Thread(target=rig.supervise, daemon=True)
        keeper.start()
        try:
            yield rig
        finally:
            rig.close()
            keeper.join(10)
            _end(rig)
    _stop(server if rig.postgres_process is None else rig.postgres_process, signal.SIGINT)


def _end(rig: Rig) -> None:
    for kept in rig.kept.values():
        _stop(kept.process, signal.SIGTERM)


def _stop(process: "subprocess.Popen[bytes] | None", number: signal.Signals) -> None:
    if process is None or process.poll() is not None:
        return
    process.send_signal(number)
    process.wait(60)


def _disk(folder: Path, name: str) -> Path:
    """Return the disk's folder: below the fleet's state for its own processes, because the fleet ends processes
    there.
    """
    return folder / ("beside" if name in _BESIDE else "state") / name


def _mount(folder: Path) -> None:
    for name, mib in _MIB.items():
        place = _disk(folder, name)
        place.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=0755", "none", str(place)], check=True)
    (folder / "beside").chmod(0o755)  # Postgres runs under an unprivileged account


def _beside(rig: Rig, role: str, name: str, changes: dict[str, str]) -> Kept:
    """Build a process like the fleet's own of this role, without its marks: a restarted controller would adopt it."""
    prefix = f"SHOAL_{role.upper()}_"
    environment = psutil.Process(rig.fleet.pid(role)).environ() | {
        prefix + setting: value for setting, value in changes.items()
    }
    for mark in (FLEET_VARIABLE, NAME_VARIABLE, HASH_VARIABLE):
        environment.pop(mark, None)
    argv = [sys.executable, "-m", f"functions.{role}"]
    return Kept(argv, environment, rig.fleet.state_dir, rig.folder / f"{name}.log", GROUPS[name])


def _gateway_2(rig: Rig) -> Kept:
    folder = rig.disk("gateway-2")
    return _beside(rig, "gateway", "gateway-2", {
        "GATEWAY_ID": "gateway-2", "PORT": str(rig.port("gateway-2")),
        "METRICS_PORT": str(rig.port("gateway-2 metrics")), "SNAPSHOT_CACHE_FILE": str(folder / "snapshot.json"),
        "TRACE_DIR": str(folder / "traces"), "HANDOVER_SOCKET": str(folder / "door"),
    })  # fmt: skip


def _registry_2(rig: Rig) -> Kept:
    return _beside(rig, "registry", "registry-2", {
        "PORT": str(rig.port("registry-2")), "STATE_DIR": str(rig.disk("registry-2")),
    })  # fmt: skip
