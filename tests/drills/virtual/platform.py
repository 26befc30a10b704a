"""Compiled configuration of a run: three tenants, an adapter in rollout, two pools, and the snapshots of a seed.

Epoch 1 has no rollout. Then `acme/bot` goes from v1 to v2 in two stages, and ends promoted or rolled back.
"""

from dataclasses import dataclass
from functools import lru_cache
from random import Random

import msgspec

from functions.api import snapshot as snapshots
from functions.api.ids import ModelId, PoolName, TenantId
from functions.api.snapshot import (
    AdmissionEntry,
    BandEntry,
    FallbackEntry,
    ModelEntry,
    PoolEntry,
    QuotaEntry,
    QuotaLimitsPart,
    RoutingEntry,
    ServiceClass,
    SplitEntry,
    TenantEntry,
)
from functions.decisions.catalogue import Catalogue
from tests.gateway.rig import (
    ACME_KEY,
    BOT_V1,
    BOT_V2,
    DIGEST_V1,
    DIGEST_V2,
    GLOBEX_KEY,
    NOW_UNIX_S,
    POOL,
    RIVAL,
    ROLLOUT,
    key_entry,
    mint,
    version,
)

SPARE = PoolName("tiny")
INITECH_KEY = mint("initech-ci", b"i")
KEYS = {"acme": ACME_KEY, "globex": GLOBEX_KEY, "initech": INITECH_KEY}
MODELS = {"acme": ("acme/bot", POOL), "globex": ("globex/bot",), "initech": (POOL, SPARE)}
ADAPTERS = (BOT_V1, BOT_V2, RIVAL)
MAX_WAIT_S: dict[ServiceClass, float] = {"interactive": 2.0, "near-real-time": 4.0, "batch": 10.0}
SESSION_TTL_S = 20.0
MAX_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Policy:
    """Settings that differ between seeds; hashable."""

    tight: bool
    hedge: bool
    fallback: bool
    percents: tuple[int, int]
    promoted: bool


def draw_policy(rng: Random) -> Policy:
    return Policy(
        tight=rng.random() < 0.25,
        hedge=rng.random() < 0.3,
        fallback=rng.random() < 0.5,
        percents=rng.choice(((10, 50), (50, 90), (30, 60))),
        promoted=rng.random() < 0.5,
    )


@lru_cache(maxsize=256)
def catalogue(policy: Policy, epoch: int) -> Catalogue:
    decoded = snapshots.decode(snapshots.encode(_snapshot(policy, epoch)))
    return Catalogue(decoded, snapshots.content_hash(decoded))


def _snapshot(policy: Policy, epoch: int) -> snapshots.Snapshot:
    return snapshots.Snapshot(
        schema_version=snapshots.SCHEMA_VERSION,
        epoch=epoch,
        revision="seed",
        compiled_unix_s=NOW_UNIX_S,
        tenants=(
            TenantEntry(TenantId("acme"), "enterprise", ("acme/*", POOL)),
            TenantEntry(TenantId("globex"), "free", ("globex/*",), cache_salt="shared"),
            TenantEntry(TenantId("initech"), "unlimited", (POOL, SPARE)),
        ),
        keys=tuple(key_entry(key, tenant) for tenant, key in KEYS.items()),
        models=(
            _bot(policy, epoch),
            ModelEntry(ModelId("globex/bot"), POOL, "lora", (version("v1", DIGEST_V1, RIVAL),), {"stable": "v1"}),
            *(
                ModelEntry(ModelId(pool), pool, "base", (version("v1", DIGEST_V1, pool),), {"stable": "v1"})
                for pool in (POOL, SPARE)
            ),
        ),
        pools=tuple(PoolEntry(pool, context_window_tokens=2048, max_replicas=8) for pool in (POOL, SPARE)),
        quotas=_quotas(policy),
        routing=(_routing(policy),),
        admission=(_admission(),),
    )


def _bot(policy: Policy, epoch: int) -> ModelEntry:
    versions = (version("v1", DIGEST_V1, BOT_V1), version("v2", DIGEST_V2, BOT_V2))
    stable = "v2" if epoch >= 4 and policy.promoted else "v1"
    bot = ModelEntry(ModelId("acme/bot"), POOL, "lora", versions, {"stable": stable})
    if epoch not in (2, 3):
        return bot
    split = SplitEntry("stable", ROLLOUT, epoch - 2, policy.percents[epoch - 2], "v2", "session")
    return msgspec.structs.replace(bot, splits=(split,))


def _quotas(policy: Policy) -> tuple[QuotaEntry, ...]:
    many = QuotaLimitsPart(
        requests_per_minute=600,
        input_tokens_per_minute=200_000,
        output_tokens_per_minute=100_000,
        concurrent_requests=16,
        kv_token_seconds_per_minute=1_000_000,
        gpu_seconds_per_hour=3600,
        max_output_tokens=1024,
    )
    few = QuotaLimitsPart(
        requests_per_minute=120, input_tokens_per_minute=30_000, output_tokens_per_minute=60_000, concurrent_requests=6
    )
    return (
        QuotaEntry("enterprise", weight=8.0, limits=few if policy.tight else many),
        QuotaEntry("free", limits=few),
    )


def _routing(policy: Policy) -> RoutingEntry:
    fallback = tuple(FallbackEntry(when, POOL, SPARE) for when in ("saturated", "unavailable"))
    return RoutingEntry(
        "default",
        ("*",),
        session_ttl_s=SESSION_TTL_S,
        retry_max_attempts=MAX_ATTEMPTS,
        fallback=fallback if policy.fallback else (),
        hedge_after_s=0.8 if policy.hedge else None,
    )


def _admission() -> AdmissionEntry:
    shares: dict[ServiceClass, float] = {"interactive": 0.6, "near-real-time": 0.3, "batch": 0.1}
    bands = tuple(BandEntry(name, shares[name], max_wait_ms=int(wait_s * 1000)) for name, wait_s in MAX_WAIT_S.items())
    return AdmissionEntry("default", ("*",), bands, max_queued_tokens=50_000)
