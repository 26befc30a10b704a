"""Real processes around an agent: Valkey, simulated engines, agents. Loopback, free ports, killed at the end."""

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

from functions.api import snapshot as snapshots
from functions.api.netloc import netloc
from functions.api.snapshot import Snapshot
from functions.artifacts.s3 import S3Settings
from tests.ports import free_ports
from tests.roles import RoleProcess, start

POOL = "smollm2-135m"
_HOST = "127.0.0.1"
_LOOK_INTERVAL_S = 0.05


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = 120.0) -> Any:
    """Return the first true value of `condition`; on timeout fail with `what` and the last value."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what} (last: {value!r})")
        time.sleep(_LOOK_INTERVAL_S)


@contextmanager
def process(arguments: list[str], log: Path, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as output:
        started = subprocess.Popen(arguments, stdout=output, stderr=output, env={**os.environ, **(env or {})})
    with ending(started):
        yield started


@contextmanager
def role(module: str, *arguments: str, log: Path, env: dict[str, str]) -> Iterator[RoleProcess]:
    """Run one of shoal's roles, forked from a process that has imported it if there is one."""
    with log.open("ab") as output:
        started = start(module, *arguments, stdout=output, stderr=output, env={**os.environ, **env})
    with ending(started):
        yield started


@contextmanager
def ending(started: "subprocess.Popen[bytes] | RoleProcess") -> Iterator[None]:
    try:
        yield
    finally:
        if started.poll() is None:
            started.send_signal(signal.SIGCONT)
            started.kill()
        started.wait()


def http(
    method: str, url: str, body: Any = None, timeout_s: float = 60.0, token: str | None = None
) -> tuple[int, bytes]:
    """Return status and body; status 0 if no server answers."""
    data = json.dumps(body).encode() if body is not None else None
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(url, data=data, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except (OSError, HTTPException):  # also a server that was killed in the middle of its answer
        return 0, b""


@dataclass
class Engine:
    """A simulated engine as a separate process."""

    directory: Path
    port: int = field(default_factory=lambda: free_ports(1)[0])
    arguments: tuple[str, ...] = ()
    host: str = _HOST
    running: RoleProcess | None = None

    @property
    def url(self) -> str:
        return f"http://{netloc(self.host, self.port)}"

    @contextmanager
    def run(self) -> Iterator["Engine"]:
        arguments = [
            *("--host", self.host, "--port", str(self.port)),
            *("--model", str(self.directory / "no-model"), "--served-model-name", POOL, "--max-model-len", "2048"),
            *("--enable-lora", "--max-loras", "4", "--max-cpu-loras", "8", "--max-lora-rank", "16"),
            *self.arguments,
        ]
        env = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
        log = self.directory / f"engine-{self.port}.log"
        with role("functions.engines.sim", *arguments, log=log, env=env) as running:
            self.running = running
            try:
                yield self
            finally:
                self.running = None

    def fault(self, **switches: Any) -> None:
        status, content = http("POST", f"{self.url}/sim/faults", switches)
        assert status == 200, content

    def adapters(self) -> list[str]:
        _, content = http("GET", f"{self.url}/v1/models")
        cards = json.loads(content)["data"] if content else []
        return sorted(card["id"] for card in cards if card["parent"])

    def signal(self, number: signal.Signals) -> None:
        assert self.running is not None
        self.running.send_signal(number)


@dataclass
class AgentProcess:
    """The agent as a separate process; unset addresses refuse connections."""

    directory: Path
    engine: Engine
    bus_url: str
    s3: S3Settings | None = None
    registry_url: str = "http://127.0.0.1:9"  # refuses connections: the snapshot comes from the cache file
    replica_id: str = "r0"
    settings: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=lambda: free_ports(1)[0])
    peer_port: int = field(default_factory=lambda: free_ports(1)[0])
    running: RoleProcess | None = None

    @property
    def url(self) -> str:
        return f"http://{netloc(self.engine.host, self.port)}"

    def load(self, name: str, wait_s: float = 60.0, token: str = "internal-token") -> tuple[int, dict[str, Any]]:
        """Request a cold adapter as a gateway does."""
        body = {"engine_name": name, "wait_s": wait_s}
        url = f"http://127.0.0.1:{self.peer_port}/adapters/load"
        status, content = http("POST", url, body, timeout_s=wait_s + 30, token=token)
        return status, json.loads(content) if content else {}

    @property
    def snapshot_cache_file(self) -> Path:
        return self.directory / "snapshot.json"

    @property
    def log(self) -> Path:
        return self.directory / f"agent-{self.replica_id}.log"

    @contextmanager
    def run(self) -> Iterator["AgentProcess"]:
        with role("functions.replica", log=self.log, env=self._environment()) as running:
            self.running = running
            yield self

    def ask(self, path: str, method: str = "GET") -> tuple[int, dict[str, Any]]:
        status, content = http(method, self.url + path)
        return status, json.loads(content) if content else {}

    def wait_until_ready(self) -> None:
        self.wait(lambda: self.ask("/readyz")[0] == 200, f"{self.replica_id} is ready")

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        """Wait like `wait_for`; on timeout fail with the agent's status, its thread stacks and its last log lines."""
        try:
            wait_for(condition, what)
        except AssertionError as error:
            said = self.ask("/readyz")
            if self.running is not None:
                self.running.send_signal(signal.SIGABRT)  # faulthandler writes all stacks into the log
                self.running.wait(10)
            raise AssertionError(f"{error}\n{said}\n{self.log.read_text()[-20_000:]}") from None

    def phase(self) -> str:
        return str(self.ask("/readyz")[1].get("phase", "unreachable"))

    def _environment(self) -> dict[str, str]:
        token, credentials = self.directory / "token", self.directory / "s3.json"
        token.write_text("internal-token\n")
        keys = self.s3.credentials if self.s3 else None
        credentials.write_text(
            json.dumps(
                {
                    "access_key_id": keys.access_key_id if keys else "none",
                    "secret_access_key": keys.secret_access_key if keys else "none",
                }
            )
        )
        values = {
            "REPLICA_ID": self.replica_id,
            "POOL": POOL,
            **{f"{name}_HOST": self.engine.host for name in ("ENGINE", "AGENT", "PEER")},
            "ENGINE_PORT": self.engine.port,
            "AGENT_PORT": self.port,
            "PEER_PORT": self.peer_port,
            "REGISTRY_URL": self.registry_url,
            "INTERNAL_TOKEN_FILE": token,
            "BUS_URL": self.bus_url,
            "S3_ENDPOINT_URL": self.s3.endpoint_url if self.s3 else "http://127.0.0.1:9",
            "S3_CREDENTIALS_FILE": credentials,
            "CACHE_DIR": self.directory / "cache",
            "SNAPSHOT_CACHE_FILE": self.snapshot_cache_file,
            **self.settings,
        }
        return {f"SHOAL_REPLICA_{name}": str(value) for name, value in values.items()}


@dataclass
class Registry:
    """The real registry, without TLS."""

    directory: Path
    bus_url: str
    port: int = field(default_factory=lambda: free_ports(1)[0])
    host: str = _HOST

    @property
    def url(self) -> str:
        return f"http://{netloc(self.host, self.port)}"

    @contextmanager
    def run(self) -> Iterator["Registry"]:
        token = self.directory / "token"
        token.write_text("internal-token\n")
        values = {
            "HOST": self.host,
            "PORT": self.port,
            "INTERNAL_TOKEN_FILE": token,
            "BUS_URL": self.bus_url,
            "STATE_DIR": self.directory / "registry",
        }
        env = {f"SHOAL_REGISTRY_{name}": str(value) for name, value in values.items()}
        with role("functions.registry", log=self.directory / "registry.log", env=env):
            wait_for(lambda: http("GET", f"{self.url}/healthz")[0] == 200, "the registry answers")
            yield self

    def publish(self, snapshot: Snapshot) -> None:
        request = urllib.request.Request(
            f"{self.url}/v1/snapshot",
            data=snapshots.encode(snapshot),
            method="PUT",
            headers={"authorization": "Bearer internal-token", "content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            assert response.status in (200, 201, 204)
