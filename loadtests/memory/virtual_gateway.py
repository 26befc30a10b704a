"""A gateway in this process, on a virtual clock.

It has 40 tenants, 10,000 adapters on 8 replicas (each adapter on one of them), and the default policies.
"""

from dataclasses import replace

from functions.api import keys
from functions.api.ids import Digest, EngineName, KeyId, ModelId, PoolName, TenantId, engine_name
from functions.api.snapshot import (
    SCHEMA_VERSION,
    KeyEntry,
    ModelEntry,
    PoolEntry,
    Snapshot,
    TenantEntry,
    VersionEntry,
)
from functions.decisions.catalogue import Catalogue
from functions.fleet.heartbeat import Heartbeat
from functions.gateway.assembly import make_services
from functions.gateway.gateway import Gateway
from functions.gateway.limits import Limits
from functions.gateway.metrics import Metrics
from loadtests.memory.engine import Engines

TENANTS = 40
ADAPTERS = 10_000
REPLICAS = 8
POOL = PoolName("base")
_PEPPER = b"m" * 32
_DIGEST = Digest("sha256:" + "ab" * 32)
_STARTED_UNIX_S = 1_800_000_000.0


def tenant_of(number: int) -> TenantId:
    return TenantId(f"tenant-{number % TENANTS:02d}")


def adapter(number: int) -> ModelId:
    return ModelId(f"{tenant_of(number)}/adapter-{number:05d}")


def key_of(tenant: int) -> str:
    return keys.mint("load", f"key-{tenant:02d}", bytes([tenant]) * 32)


class VirtualGateway:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self._heartbeats = 0
        services = make_services(
            pepper=_PEPPER,
            limits=Limits(),
            metrics=Metrics(),
            clock=lambda: self.now_s,
            wall_clock=lambda: _STARTED_UNIX_S + self.now_s,
        )
        self.gateway = Gateway(replace(services, upstreams=Engines(lambda: self.now_s)))
        snapshot = _snapshot()
        self.gateway.swap(Catalogue(snapshot, "sha256:" + "0" * 64))
        self.heartbeat()

    def heartbeat(self) -> None:
        """Send a heartbeat of every replica, all ready."""
        self._heartbeats += 1
        for number in range(REPLICAS):
            self.gateway.receive_heartbeat(_heartbeat(number, self._heartbeats))

    def pass_on(self, seconds: float) -> None:
        """Advance the clock and run the gateway's periodic sweep."""
        self.now_s += seconds
        self.gateway.sweep()


def _heartbeat(replica: int, sequence: int) -> Heartbeat:
    return Heartbeat(
        replica_id=f"r{replica}",
        pool=POOL,
        host="127.0.0.1",
        port=9,
        phase="ready",
        sequence=sequence,
        incarnation=1,
        sent_unix_s=0.0,
        kv_blocks_total=60_000,
        kv_block_tokens=16,
        prefill_ms_per_token=0.05,
        adapters=tuple(engine_name(adapter(number), _DIGEST) for number in range(replica, ADAPTERS, REPLICAS)),
    )


def _snapshot() -> Snapshot:
    versions = {
        number: VersionEntry("v1", _DIGEST, EngineName(engine_name(adapter(number), _DIGEST)), "s3://shoal/x")
        for number in range(ADAPTERS)
    }
    models = [
        ModelEntry(adapter(number), POOL, "lora", (versions[number],), {"stable": "v1"}) for number in range(ADAPTERS)
    ]
    models.append(
        ModelEntry(ModelId(POOL), POOL, "base", (VersionEntry("v1", _DIGEST, EngineName(POOL), ""),), {"stable": "v1"})
    )
    return Snapshot(
        schema_version=SCHEMA_VERSION,
        epoch=1,
        revision="memory",
        compiled_unix_s=_STARTED_UNIX_S,
        tenants=tuple(
            TenantEntry(tenant_of(number), "none", (f"{tenant_of(number)}/*", POOL)) for number in range(TENANTS)
        ),
        keys=tuple(sorted((_key(number) for number in range(TENANTS)), key=lambda key: key.key_id)),
        models=tuple(sorted(models, key=lambda model: model.id)),
        pools=(PoolEntry(POOL, context_window_tokens=131_072),),
    )


def _key(tenant: int) -> KeyEntry:
    parsed = keys.parse(key_of(tenant))
    assert parsed is not None
    hashed = keys.keyed_hash(_PEPPER, parsed.secret)
    return KeyEntry(KeyId(parsed.key_id), tenant_of(tenant), hashed, ("inference",), "interactive")
