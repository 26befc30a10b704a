"""Snapshot with a tenant's own base model, shared by several tests."""

from functions.api import snapshot as snapshots
from functions.api.ids import Digest, EngineName, ModelId, PoolName, TenantId, engine_name
from functions.api.snapshot import ModelEntry, PoolEntry, Snapshot, TenantEntry, VersionEntry
from functions.api.snapshot_entries import ModelType

WIKI, WIKI_POOL, TONE = ModelId("acme/wiki"), PoolName("acme.wiki"), ModelId("acme/tone")
ACME, GLOBEX = TenantId("acme"), TenantId("globex")
V1, V2 = Digest("sha256:" + "1" * 64), Digest("sha256:" + "2" * 64)


def wiki(id_: ModelId = WIKI, pool: PoolName = WIKI_POOL, type_: ModelType = "base") -> ModelEntry:
    versions = tuple(
        VersionEntry(
            name, digest, EngineName(pool) if type_ == "base" else engine_name(id_, digest), f"s3://m/{pool}/{name}"
        )
        for name, digest in (("v1", V1), ("v2", V2))
    )
    return ModelEntry(id_, pool, type_, versions, {"stable": "v1"})


def snapshot(*models: ModelEntry, owners: tuple[TenantId, ...] = (ACME,)) -> Snapshot:
    """Return a snapshot in which acme and globex share a base and globex may call every model that exists for it."""
    return Snapshot(
        schema_version=snapshots.SCHEMA_VERSION,
        epoch=1,
        revision="test",
        compiled_unix_s=1_800_000_000.0,
        tenants=(TenantEntry(ACME, "gold", ("acme/*",)), TenantEntry(GLOBEX, "free", ("*",))),
        keys=(),
        models=models or (wiki(TONE, WIKI_POOL, "lora"), wiki()),
        pools=(PoolEntry(WIKI_POOL, 2048, dedicated_to=owners),),
    )
