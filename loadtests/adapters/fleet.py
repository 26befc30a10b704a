"""The measured fleet: processes on loopback, which end with the measurement.

No registry runs: gateway and agents start from their cached snapshots, as they would without a control plane.
"""

import contextlib
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx
import psutil

from functions.api import keys
from functions.api import snapshot as snapshots
from functions.api.ids import Digest, EngineName, KeyId, ModelId, PoolName, TenantId, engine_name
from functions.api.snapshot import (
    AdmissionEntry,
    BandEntry,
    KeyEntry,
    ModelEntry,
    PoolEntry,
    QuotaEntry,
    Snapshot,
    TenantEntry,
    VersionEntry,
)
from functions.controller.local import context
from functions.fleet import snapshot_file
from loadtests.adapters.library import model_of
from loadtests.fan_out.store import CREDENTIALS

POOL = PoolName("smollm2-135m")
_START_S = 300.0
_FETCHED = re.compile(r"adapter (sha256:[0-9a-f]{64}): .* from s3 in")
_LOADS = re.compile(r'^shoal_adapter_loads_total\{tier="(\w+)"\} (\S+)$', re.MULTILINE)
_ANSWERS = re.compile(r'^shoal_adapter_cold_loads_total\{answer="(\w+)"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Shape:
    replicas: int
    nodes: int  # replicas of one node share a disk cache
    slots: int  # --max-loras
    places: int  # --max-cpu-loras, and the agent's maximum of loaded adapters
    cache_max_bytes: int
    engine: Literal["sim", "vllm"]
    engine_python: str = sys.executable
    model_dir: str = "no-model"
    adapter_load_ms: float = 20.0  # for simulated engines; vLLM took 17 to 23 ms for such an adapter
    context_tokens: int = 2048
    engine_flags: tuple[str, ...] = ()  # placed after all other flags
    ttft_slo_ms: int | None = None  # promised TTFT; None means the default admission policy
    gateway_settings: tuple[tuple[str, str], ...] = ()  # names without the prefix SHOAL_GATEWAY_
    gateway_module: tuple[str, ...] = ("functions.gateway",)  # module, then its arguments


@dataclass(frozen=True, slots=True)
class Replica:
    name: str
    node: int
    engine_port: int
    agent_port: int
    log: Path


@dataclass(frozen=True, slots=True)
class Fleet:
    url: str
    api_key: str
    replicas: tuple[Replica, ...]

    def loads_by_tier(self) -> Counter[str]:
        return self._sum(_LOADS)

    def answers(self) -> Counter[str]:
        return self._sum(_ANSWERS)

    def requests_by_tier(self) -> Counter[str]:
        """Count the requests of simulated engines by adapter tier. Real engines do not report it: empty."""
        found: Counter[str] = Counter()
        for replica in self.replicas:
            answer = httpx.get(f"http://127.0.0.1:{replica.engine_port}/sim/adapters", timeout=10)
            if answer.status_code == httpx.codes.OK:
                found.update(answer.json()["requests_by_tier"])
        return found

    def fetches(self) -> Counter[tuple[int, str]]:
        """Return the number of fetches by node and digest."""
        found: Counter[tuple[int, str]] = Counter()
        for replica in self.replicas:
            found.update((replica.node, digest) for digest in _FETCHED.findall(replica.log.read_text()))
        return found

    def _sum(self, pattern: re.Pattern[str]) -> Counter[str]:
        found: Counter[str] = Counter()
        for replica in self.replicas:
            page = httpx.get(f"http://127.0.0.1:{replica.agent_port}/metrics", timeout=10).text
            found.update({name: int(float(value)) for name, value in pattern.findall(page)})
        return found


@contextmanager
def running(folder: Path, shape: Shape, digests: list[Digest], s3_port: int) -> Iterator[Fleet]:
    """Run the fleet; it is yielded when gateway and agents are ready."""
    pepper, entropy = secrets.token_hex(16), secrets.token_bytes(32)
    api_key = keys.mint("bench", "bench", entropy)
    _write_secrets(folder, pepper)
    document = snapshots.encode(_snapshot(digests, api_key, pepper, shape))
    ports = _quiet_ports(2 + 3 * shape.replicas)
    bus_port, gateway_port = ports.pop(), ports.pop()
    with ExitStack() as stack:
        stack.enter_context(_process([str(context.valkey_server()), "--port", str(bus_port), "--bind", "127.0.0.1",
                                      "--save", ""], folder / "valkey.log", {}))  # fmt: skip
        common = {"INTERNAL_TOKEN_FILE": folder / "token", "BUS_URL": f"valkey://127.0.0.1:{bus_port}/0",
                  "REGISTRY_URL": "http://127.0.0.1:9"}  # fmt: skip
        s3 = {"S3_ENDPOINT_URL": f"http://127.0.0.1:{s3_port}"}
        replicas = [
            _replica(stack, folder, shape, number, document, (ports.pop(), ports.pop(), ports.pop()), common | s3)
            for number in range(shape.replicas)
        ]
        snapshot_file.write(folder / "snapshot.json", document)
        stack.enter_context(_gateway(folder, gateway_port, shape.gateway_module, common | dict(shape.gateway_settings)))
        for replica in replicas:
            _wait_ready(replica.agent_port, replica.log)
        _wait_ready(gateway_port, folder / "gateway.log")
        yield Fleet(f"http://127.0.0.1:{gateway_port}", api_key, tuple(replicas))


def _replica(
    stack: ExitStack,
    folder: Path,
    shape: Shape,
    number: int,
    document: bytes,
    ports: tuple[int, int, int],
    common: dict[str, object],
) -> Replica:
    engine_port, agent_port, peer_port = ports
    name, node = f"r{number:02d}", number % shape.nodes
    stack.enter_context(_process(_engine_arguments(shape, engine_port), folder / f"engine-{name}.log", _ENGINE_ENV))
    snapshot_file.write(folder / name / "snapshot.json", document)
    settings = common | {
        "REPLICA_ID": name,
        "POOL": POOL,
        "ENGINE_PORT": engine_port,
        "AGENT_PORT": agent_port,
        "PEER_PORT": peer_port,
        "S3_CREDENTIALS_FILE": folder / "s3-keys.json",
        "CACHE_DIR": folder / f"node-{node}",
        "CACHE_MAX_BYTES": shape.cache_max_bytes,
        "SNAPSHOT_CACHE_FILE": folder / name / "snapshot.json",
        "MAX_ADAPTERS": shape.places,
        "STALLED_AFTER_S": 20,  # many processes on few cores
        "PROBE_TIMEOUT_S": 30,
        "SILENT_AFTER_S": 20,
        "CHECK_TIMEOUT_S": 5,
    }
    environment = {f"SHOAL_REPLICA_{key}": str(value) for key, value in settings.items()}
    log = folder / f"agent-{name}.log"
    stack.enter_context(_process([sys.executable, "-m", "functions.replica"], log, environment))
    return Replica(name, node, engine_port, agent_port, log)


_ENGINE_ENV = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "75",
    "VLLM_HOST_IP": "127.0.0.1",
    "HF_HUB_OFFLINE": "1",
}


def _engine_arguments(shape: Shape, port: int) -> list[str]:
    module = "functions.engines.sim" if shape.engine == "sim" else "vllm.entrypoints.openai.api_server"
    own = ["--sim-adapter-load-ms", str(shape.adapter_load_ms)] if shape.engine == "sim" else ["--dtype", "float32"]
    return [
        *(shape.engine_python, "-m", module, "--host", "127.0.0.1", "--port", str(port), "--model", shape.model_dir),
        *("--served-model-name", POOL, "--max-num-seqs", "32", "--enable-lora"),
        *("--max-model-len", str(shape.context_tokens)),
        *("--max-loras", str(shape.slots), "--max-cpu-loras", str(shape.places), "--max-lora-rank", "16", *own),
        *shape.engine_flags,
    ]


@contextmanager
def _gateway(folder: Path, port: int, module: tuple[str, ...], common: dict[str, object]) -> Iterator[None]:
    settings = common | {
        "PORT": port,
        "PLAIN_PORT": 0,
        "METRICS_PORT": 0,
        "PEPPER_FILE": folder / "pepper",
        "SNAPSHOT_CACHE_FILE": folder / "snapshot.json",
    }
    environment = {f"SHOAL_GATEWAY_{key}": str(value) for key, value in settings.items()}
    with _process([sys.executable, "-m", *module], folder / "gateway.log", environment):
        yield


@contextmanager
def _process(arguments: list[str], log: Path, environment: dict[str, str]) -> Iterator[None]:
    with log.open("wb") as output:
        child = subprocess.Popen(arguments, stdout=output, stderr=output, env=os.environ | environment)
    try:
        yield
    finally:
        if child.poll() is None:
            for each in psutil.Process(child.pid).children(recursive=True):  # vLLM is several processes
                each.kill()
            child.kill()
        child.wait()


def _wait_ready(port: int, log: Path) -> None:
    give_up_s = time.monotonic() + _START_S
    while time.monotonic() < give_up_s:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=5).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass  # it does not listen yet
        if "cannot listen" in log.read_text():
            break
        time.sleep(0.2)
    raise RuntimeError(f"not ready within {_START_S} s; the end of its log:\n{log.read_text()[-2000:]}")


def _quiet_ports(count: int) -> list[int]:
    """Return free ports below the ephemeral range, from which outgoing connections take ports at any moment."""
    port, found = 16_384, list[int]()
    while len(found) < count:
        port += 1 + secrets.randbelow(50)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return found


def _write_secrets(folder: Path, pepper: str) -> None:
    (folder / "pepper").write_text(pepper)
    (folder / "token").write_text("loadtest-token")
    found = {"access_key_id": CREDENTIALS.access_key_id, "secret_access_key": CREDENTIALS.secret_access_key}
    (folder / "s3-keys.json").write_text(json.dumps(found))


_NO_ADAPTER = Digest("sha256:" + "0" * 64)


def _snapshot(digests: list[Digest], api_key: str, pepper: str, shape: Shape) -> Snapshot:
    parsed = keys.parse(api_key)
    assert parsed is not None
    tenant = TenantId("acme")
    key = KeyEntry(
        KeyId("bench"), tenant, keys.keyed_hash(pepper.encode(), parsed.secret), ("inference",), "interactive"
    )
    base = VersionEntry("v1", digests[0] if digests else _NO_ADAPTER, EngineName(POOL), "pvc://bench")
    models = [ModelEntry(model_of(number), POOL, "lora", (_version(number, digest),), {"stable": "v1"})
              for number, digest in enumerate(digests)]  # fmt: skip
    models.append(ModelEntry(ModelId(POOL), POOL, "base", (base,), {"stable": "v1"}))
    return Snapshot(
        schema_version=snapshots.SCHEMA_VERSION,
        epoch=1,
        revision="bench",
        compiled_unix_s=time.time(),
        tenants=(TenantEntry(tenant, "bench", ("acme/*", POOL)),),
        keys=(key,),
        models=tuple(sorted(models, key=lambda model: model.id)),
        pools=(PoolEntry(POOL, shape.context_tokens),),
        quotas=(QuotaEntry("bench"),),
        admission=_admissions(shape),
    )


def _admissions(shape: Shape) -> tuple[AdmissionEntry, ...]:
    if shape.ttft_slo_ms is None:
        return ()
    band = BandEntry("interactive", 1.0, shape.ttft_slo_ms, shape.ttft_slo_ms)
    return (AdmissionEntry("bench", ("*",), (band,), max_queued_tokens=10_000_000),)


def _version(number: int, digest: Digest) -> VersionEntry:
    model = model_of(number)
    return VersionEntry("v1", digest, engine_name(model, digest), f"s3://shoal-models/{model}/v1")
