"""A snapshot for tests of placement: one model in several pools, and three tenants.

acme      preferred: its dedicated pool `llama-acme` first, then the shared pools
initech   dedicated: only `llama-initech`
globex    shared: `llama`, `llama-spot`, and `llama-fp8` with quantized weights
"""

from typing import Any

from functions.api import snapshot as snapshots
from functions.api.ids import Digest, EngineName, ModelId, PoolName, TenantId, engine_name
from functions.api.snapshot import (
    KeyEntry,
    ModelEntry,
    PlacementEntry,
    PoolEntry,
    RoutingEntry,
    Snapshot,
    TenantEntry,
    VersionEntry,
)

LLAMA, SPOT, FP8 = PoolName("llama"), PoolName("llama-spot"), PoolName("llama-fp8")
ACMES, INITECHS = PoolName("llama-acme"), PoolName("llama-initech")
ALL = (LLAMA, ACMES, FP8, INITECHS, SPOT)
ACME, GLOBEX, INITECH = TenantId("acme"), TenantId("globex"), TenantId("initech")
DIGEST, FP8_DIGEST = Digest("sha256:" + "1" * 64), Digest("sha256:" + "2" * 64)
BOT = engine_name(ModelId("acme/bot"), DIGEST)


def base(name: PoolName, digest: Digest = DIGEST) -> ModelEntry:
    version = VersionEntry("v1", digest, EngineName(name), "s3://shoal-models/somewhere")
    return ModelEntry(ModelId(name), name, "base", (version,), {"stable": "v1"})


def adapter(tenant: str) -> ModelEntry:
    name = ModelId(f"{tenant}/bot")
    version = VersionEntry("v1", DIGEST, engine_name(name, DIGEST), "s3://shoal-models/somewhere")
    return ModelEntry(name, LLAMA, "lora", (version,), {"stable": "v1"})


def pool(name: PoolName, *owners: TenantId, window_tokens: int = 2048, quantization: str = "") -> PoolEntry:
    model = "" if name == LLAMA else LLAMA
    return PoolEntry(name, window_tokens, model=model, dedicated_to=owners, quantization=quantization)


def routing(*rules: PlacementEntry, **changes: Any) -> RoutingEntry:
    return RoutingEntry("default", ("*",), placement=rules, **changes)


def snapshot(*rules: PlacementEntry, keys: tuple[KeyEntry, ...] = (), **sections: Any) -> Snapshot:
    whole: dict[str, Any] = {
        "tenants": (
            TenantEntry(ACME, "gold", ("acme/*", LLAMA), pools="preferred"),
            TenantEntry(GLOBEX, "free", ("globex/*", LLAMA)),
            TenantEntry(INITECH, "gold", ("initech/*", LLAMA), pools="dedicated"),
        ),
        "keys": keys,
        "models": (
            adapter("acme"),
            adapter("globex"),
            adapter("initech"),
            base(LLAMA),
            base(FP8, FP8_DIGEST),
        ),
        "pools": (pool(LLAMA), pool(ACMES, ACME), pool(FP8, quantization="fp8"), pool(INITECHS, INITECH), pool(SPOT)),
        "routing": (routing(*rules),),
    }
    return Snapshot(snapshots.SCHEMA_VERSION, 1, "test", 1_800_000_000.0, **(whole | sections))
