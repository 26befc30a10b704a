"""A complete local fleet for tests, started with `shoal up` as a user would, with its own ports and state."""

import fcntl
import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from functions.controller.local.control import ask_controller
from functions.controller.local.layout import StateLayout

PROJECT = Path(__file__).parent.parent
SHOAL = [sys.executable, "-m", "functions.cli.main"]
ANSWER_S = 60.0  # for a busy engine or gateway on a busy machine
_PORTS_PER_FLEET = 160  # offsets up to 60, and SeaweedFS's gRPC ports 100 above
_OFFSETS = (3, 4, 5, 6, 7, 8, 9, 10, 11, *range(20, 24), *range(40, 44), *range(60, 64), 107, 108, 109, 110)


@dataclass(frozen=True, slots=True)
class Fleet:
    state_dir: Path
    port_base: int
    environment: dict[str, str]
    up_output: str
    up_seconds: float

    @property
    def base_url(self) -> str:
        return f"https://localhost:{self.port_base + 3}/v1"

    @property
    def ca_file(self) -> str:
        return str(self.state_dir / "tls" / "ca.pem")

    @property
    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca_file)

    def key(self, tenant: str) -> str:
        return str(json.loads((self.state_dir / "secrets" / "demo-keys.json").read_text())[tenant]["key"])

    def client(self, tenant: str = "acme", timeout_s: float = 60.0) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.key(tenant)}"}
        return httpx.Client(base_url=self.base_url, headers=headers, verify=self.tls, timeout=timeout_s)

    def async_client(self, tenant: str = "acme", timeout_s: float = 60.0, connections: int = 100) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {self.key(tenant)}"}
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        return httpx.AsyncClient(
            base_url=self.base_url, headers=headers, verify=self.tls, timeout=timeout_s, limits=limits
        )

    def shoal(self, *arguments: str, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*SHOAL, *arguments],
            env=self.environment,
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    @property
    def repository(self) -> Path:
        return self.state_dir / "gitops.git"

    @property
    def checkout(self) -> Path:
        """A clone of the fleet's repository, created on first use."""
        checkout = self.state_dir.parent / f"{self.state_dir.name}-checkout"
        if not checkout.is_dir():
            git("clone", "--quiet", str(self.repository), str(checkout))
        return checkout

    def read(self, path: str) -> str:
        """Return a file of the branch as it is now."""
        return git("show", f"main:{path}", at=self.repository).stdout

    def push(
        self, files: dict[str, str | bytes | None], message: str = "a change", *options: str
    ) -> subprocess.CompletedProcess[str]:
        """Commit these files on top of the branch's tip (None removes one) and push; options are git push's own."""
        checkout = self.checkout
        git("fetch", "--quiet", "origin", at=checkout)
        git("checkout", "--quiet", "--force", "-B", "main", "origin/main", at=checkout)
        git("clean", "--quiet", "-fdx", at=checkout)
        for path, content in files.items():
            file = checkout / path
            if content is None:
                file.unlink()
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        git("add", "--all", "--force", at=checkout)
        git("commit", "--quiet", "--allow-empty", "--message", message, at=checkout)
        return git("push", *options, "origin", "main", at=checkout, check=False)

    def status(self) -> dict[str, Any]:
        """Return the part `controller` of `shoal status -o json`, without starting a process."""
        seen: dict[str, Any] = ask_controller(StateLayout.at(self.state_dir).control_socket, {"do": "status"}, 60.0)
        return seen

    def is_applied(self) -> bool:
        """Return True if the branch is published, the gateway has it, and every process matches it."""
        status = self.status()
        snapshot = status["snapshot"]
        in_force = snapshot["complete"] and snapshot["gateway_epoch"] == snapshot["epoch"]
        return bool(status["revision"]["last_applied"] == f"main@{self.tip()}" and status["settled"] and in_force)

    def tip(self) -> str:
        return git("rev-parse", "main", at=self.repository).stdout.strip()

    def processes(self) -> dict[str, dict[str, Any]]:
        """Return the running processes of the ledger, by name."""
        ledger = json.loads((self.state_dir / "run" / "processes.json").read_text())
        return {entry["name"]: entry for entry in ledger["processes"] if entry.get("pid")}

    def pid(self, role: str, replica_id: str | None = None) -> int:
        found = [
            entry
            for entry in self.processes().values()
            if entry["role"] == role and (replica_id is None or entry["replica_id"] == replica_id)
        ]
        assert found, f"no process with role {role} ({replica_id}); there are {sorted(self.processes())}"
        return int(max(found, key=lambda entry: entry["generation"])["pid"])

    def replicas(self) -> list[dict[str, Any]]:
        """Return the replicas that the registry knows."""
        with self.registry() as registry:
            answer = registry.get("/v1/fleet")
        answer.raise_for_status()
        return list(answer.json()["replicas"])

    def registry(self, key: str | None = None, timeout_s: float = 60.0) -> httpx.Client:
        """Return a client of the registry with the operator's token, or with a tenant's key."""
        token = key or (self.state_dir / "secrets" / "internal-token").read_text().strip()
        headers = {"authorization": f"Bearer {token}"}
        url = f"https://localhost:{self.port_base + 4}"
        return httpx.Client(base_url=url, headers=headers, verify=self.tls, timeout=timeout_s)

    def engine_port(self, replica_id: str) -> int:
        return next(int(replica["port"]) for replica in self.replicas() if replica["replica_id"] == replica_id)

    def set_faults(self, replica_id: str, **faults: Any) -> None:
        port = self.engine_port(replica_id)
        answer = httpx.post(f"http://127.0.0.1:{port}/sim/faults", json=faults, timeout=ANSWER_S)
        answer.raise_for_status()

    def pace(self, slow_factor: float) -> None:
        """Multiply the duration of each step of every engine by `slow_factor`."""
        for replica in self.replicas():
            self.set_faults(replica["replica_id"], slow_factor=slow_factor)

    def running(self, replica_id: str) -> float:
        return running_at(self.engine_port(replica_id))

    def gateway_metric(self, name: str) -> float:
        text = httpx.get(f"http://127.0.0.1:{self.port_base + 5}/metrics", timeout=ANSWER_S).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name
        )


def git(*arguments: str, at: Path | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run git without this machine's settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "operator",
        "GIT_AUTHOR_EMAIL": "operator@localhost",
        "GIT_COMMITTER_NAME": "operator",
        "GIT_COMMITTER_EMAIL": "operator@localhost",
    }
    where = ["-C", str(at)] if at is not None else []
    done = subprocess.run(
        ["git", *where, *arguments], env=environment, capture_output=True, text=True, timeout=120,
        encoding="utf-8", errors="replace", stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0 or not check, f"git {' '.join(arguments)} failed:\n{done.stdout}\n{done.stderr}"
    return done


def running_at(engine_port: int) -> float:
    """Return the number of running and waiting requests by the engine's own metrics."""
    text = httpx.get(f"http://127.0.0.1:{engine_port}/metrics", timeout=ANSWER_S).text
    wanted = {"vllm:num_requests_running", "vllm:num_requests_waiting"}
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in wanted
    )


def wait_until(what: str, condition: Callable[[], bool], timeout_s: float, every_s: float = 0.05) -> float:
    """Wait for the condition and return the seconds that it took; fail with `what` after `timeout_s`."""
    started_s = time.monotonic()
    while time.monotonic() - started_s < timeout_s:
        if condition():
            return time.monotonic() - started_s
        time.sleep(every_s)
    raise AssertionError(f"{what}: not within {timeout_s} s")


@contextmanager
def running_fleet(
    state_dir: Path,
    engine: str,
    replicas: int | None = 2,
    project: Path = PROJECT,
    variables: Mapping[str, str] = MappingProxyType({}),
    port_base: int | None = None,
) -> Iterator[Fleet]:
    """Run `shoal up`, yield the fleet, run `shoal down`; fail if a process is left. `project` has YAML and adapters.

    `replicas` is the number per pool; None means the number in the YAML. `variables` are added to the environment.
    Set `port_base` if the test has its own network; otherwise a free one is used.
    """
    with free_ports() if port_base is None else nullcontext(port_base) as base:
        yield from _running_fleet(state_dir, engine, replicas, project, variables, base)


def _running_fleet(
    state_dir: Path, engine: str, replicas: int | None, project: Path, variables: Mapping[str, str], port_base: int
) -> Iterator[Fleet]:
    environment = os.environ | {
        "SHOAL_STATE_DIR": str(state_dir),
        "SHOAL_PROJECT_DIR": str(project),
        "SHOAL_PORT_BASE": str(port_base),
        "SHOAL_TRACE_STORE": "none",  # it takes 400 MB per fleet; `sim_fleet` has it
        "SHOAL_PROMETHEUS": "false",  # one process less for each fleet
        **variables,
    }
    started_s = time.monotonic()
    wanted = ["--replicas", str(replicas)] if replicas is not None else []
    up = _run(environment, "up", "--engine", engine, *wanted)
    fleet = Fleet(state_dir, port_base, environment, up.stdout, time.monotonic() - started_s)
    try:
        assert up.returncode == 0, f"shoal up failed:\n{up.stdout}\n{up.stderr}\n{_logs(state_dir)}"
        yield fleet
    finally:
        down = _run(environment, "down")
    assert down.returncode == 0, f"shoal down failed:\n{down.stdout}\n{down.stderr}"
    left = processes_of(state_dir)
    assert not left, f"shoal down left processes: {left}"


def processes_of(state_dir: Path) -> list[str]:
    """Return the command line of every process whose environment or arguments name the state directory."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        if process.info["pid"] == os.getpid() or process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        try:
            named = str(state_dir) in " ".join(process.info["cmdline"] or []) or (
                process.environ().get("SHOAL_STATE_DIR") == str(state_dir)
            )
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue
        if named:
            found.append(f"{process.info['pid']} {' '.join(process.info['cmdline'] or [])}"[:200])
    return found


def _run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SHOAL, *arguments],
        env=environment,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=900,
        stdin=subprocess.DEVNULL,
        check=False,
    )


@contextmanager
def free_blocks(blocks: int, first: int = 30_000, end: int = 32_400) -> Iterator[int]:
    """Like `free_ports`, but yield the base of `blocks` consecutive blocks of ports, for several fleets."""
    for base in range(first, end - blocks * _PORTS_PER_FLEET, blocks * _PORTS_PER_FLEET):
        bases = [base + block * _PORTS_PER_FLEET for block in range(blocks)]
        with ExitStack() as held:
            ours = [held.enter_context(_locked(each)) for each in bases]
            if all(ours) and all(_is_free(each + offset) for each in bases for offset in _OFFSETS):
                yield base
                return
    raise AssertionError(f"no range of free ports from {first} to {end}")


@contextmanager
def free_ports() -> Iterator[int]:
    """Yield the base of a block of free ports, under a lock that excludes other test runs on this machine."""
    first = 20_000 + 1_000 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 10)  # one range per worker
    for base in range(first, first + 1_000, _PORTS_PER_FLEET):
        with _locked(base) as is_ours:
            if is_ours and all(_is_free(base + offset) for offset in _OFFSETS):
                yield base
                return
    raise AssertionError(f"no range of free ports from {first} to {first + 1_000}")


@contextmanager
def _locked(base: int) -> Iterator[bool]:
    with (Path(tempfile.gettempdir()) / f"shoal-tests-{os.getuid()}-{base}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _logs(state_dir: Path) -> str:
    logs = sorted((state_dir / "logs").glob("*.log"))
    return "\n".join(f"--- {log.name}\n" + "\n".join(_tail(log)) for log in logs)


def _tail(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-15:]
