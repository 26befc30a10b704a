"""Builders for valid heartbeats and snapshots; tests change single fields."""

from typing import Any

import msgspec

from functions.api.ids import Digest, EngineName, ModelId, PoolName, TenantId
from functions.api.snapshot import SCHEMA_VERSION, ModelEntry, PoolEntry, Snapshot, TenantEntry, VersionEntry
from functions.fleet.heartbeat import Heartbeat

BEAT = Heartbeat(
    replica_id="r0",
    pool="base",
    host="127.0.0.1",
    port=8460,
    phase="ready",
    sequence=1,
    incarnation=1000,
    sent_unix_s=1.0,
)


def beat(**changes: Any) -> Heartbeat:
    return msgspec.structs.replace(BEAT, **changes)


def snapshot(epoch: int = 1, **changes: Any) -> Snapshot:
    version = VersionEntry(
        "v1", Digest("sha256:" + "a" * 64), EngineName("acme/bot@sha256:a"), "s3://shoal-models/acme"
    )
    made = Snapshot(
        schema_version=SCHEMA_VERSION,
        epoch=epoch,
        revision="test",
        compiled_unix_s=100.0,
        tenants=(TenantEntry(TenantId("acme"), "standard", ("acme/*",)),),
        keys=(),
        models=(ModelEntry(ModelId("acme/bot"), PoolName("base"), "lora", (version,), {"stable": "v1"}),),
        pools=(PoolEntry(PoolName("base"), 2048),),
    )
    return msgspec.structs.replace(made, **changes)
