"""Snapshots for the agent's tests: one pool, some adapters, published or only named."""

from collections.abc import Mapping
from pathlib import Path

from functions.api import snapshot as snapshots
from functions.api.ids import Digest, EngineName, ModelId, PoolName, TenantId, engine_name
from functions.api.snapshot import ModelEntry, PoolEntry, Snapshot, Task, TenantEntry, VersionEntry
from functions.fleet import snapshot_file
from tests.replica.processes import POOL

SUPPORT_BOT = ModelId("acme/support-bot")


def make_snapshot(
    models: Mapping[ModelId, Mapping[str, Digest]],
    *,
    channels: Mapping[str, str] | None = None,
    epoch: int = 1,
    max_adapters: int | None = None,
    task: Task = "generate",
) -> Snapshot:
    """`models` is model -> version -> digest; every model's channels are `channels` (default: stable is v1)."""
    entries = []
    for model_id, versions in sorted(models.items()):
        entries.append(
            ModelEntry(
                id=model_id,
                pool=PoolName(POOL),
                type="lora",
                versions=tuple(
                    VersionEntry(
                        name=name,
                        digest=digest,
                        engine_name=engine_name(model_id, digest),
                        artifact_uri=f"s3://shoal-models/{model_id}/{name}",
                    )
                    for name, digest in sorted(versions.items())
                ),
                channels=dict(channels or {"stable": "v1"}),
            )
        )
    return Snapshot(
        schema_version=snapshots.SCHEMA_VERSION,
        epoch=epoch,
        revision="test",
        compiled_unix_s=0.0,
        tenants=(TenantEntry(name=TenantId("acme"), tier="free", models=("*",)),),
        keys=(),
        models=tuple(entries),
        pools=(PoolEntry(name=PoolName(POOL), context_window_tokens=2048, max_adapters=max_adapters, task=task),),
    )


def keep(path: Path, snapshot: Snapshot) -> None:
    """Write the snapshot into the file from which an agent starts."""
    snapshot_file.write(path, snapshots.encode(snapshot))


def name_of(digest: Digest, model_id: ModelId = SUPPORT_BOT) -> EngineName:
    return engine_name(model_id, digest)
