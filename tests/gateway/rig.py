"""Shared set-up: two tenants, two adapters and a base, on clocks that only the test advances.

`acme` may call its own models and the base, `globex` only its own. Every key is minted from fixed bytes, so that a
failing test fails with the same bytes again.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import msgspec

from functions.api import keys
from functions.api import snapshot as snapshots
from functions.api.ids import Digest, EngineName, KeyId, ModelId, PoolName, RolloutId, TenantId, engine_name
from functions.api.snapshot import (
    KeyEntry,
    ModelEntry,
    PoolEntry,
    QuotaEntry,
    QuotaLimitsPart,
    RoutingEntry,
    Scope,
    ServiceClass,
    SplitEntry,
    Sticky,
    TenantEntry,
    VersionEntry,
)
from functions.decisions.catalogue import Catalogue
from functions.fleet.heartbeat import Heartbeat
from functions.gateway.assembly import make_services
from functions.gateway.gateway import Gateway
from functions.gateway.gauges import StateGauges
from functions.gateway.limits import Limits
from functions.gateway.metrics import Metrics
from functions.gateway.routing.load_client import Loader

PEPPER = b"p" * 32
POOL = PoolName("smollm2-135m")
ROLLOUT = RolloutId("ro-0000test")
NOW_UNIX_S = 1_800_000_000.0

DIGEST_V1 = Digest("sha256:" + "ab" * 32)
DIGEST_V2 = Digest("sha256:" + "cd" * 32)
BOT_V1 = engine_name(ModelId("acme/bot"), DIGEST_V1)
BOT_V2 = engine_name(ModelId("acme/bot"), DIGEST_V2)
RIVAL = engine_name(ModelId("globex/bot"), DIGEST_V1)


def mint(key_id: str, fill: bytes) -> str:
    return keys.mint("test", key_id, fill * 32)


ACME_KEY = mint("acme-ci", b"a")
BATCH_KEY = mint("acme-batch", b"b")
READER_KEY = mint("acme-reader", b"c")
EXPIRED_KEY = mint("acme-old", b"d")
GLOBEX_KEY = mint("globex-ci", b"e")
REVOKED_KEY = mint("acme-gone", b"f")  # in no snapshot
IMPOSTOR_KEY = mint("acme-ci", b"z")  # a known id with another secret


def key_entry(
    key: str,
    tenant: str,
    scopes: tuple[Scope, ...] = ("inference",),
    max_class: ServiceClass = "interactive",
    expires_unix_s: float | None = None,
) -> KeyEntry:
    parsed = keys.parse(key)
    assert parsed is not None
    hashed = keys.keyed_hash(PEPPER, parsed.secret)
    return KeyEntry(KeyId(parsed.key_id), TenantId(tenant), hashed, scopes, max_class, expires_unix_s)


def version(name: str, digest: Digest, engine: str) -> VersionEntry:
    return VersionEntry(name, digest, EngineName(engine), "s3://shoal-models/somewhere")


def quota(name: str = "enterprise", **limits: int) -> QuotaEntry:
    return QuotaEntry(name, limits=QuotaLimitsPart(**limits))


def routing(**changes: Any) -> RoutingEntry:
    return RoutingEntry("default", ("*",), **changes)


def snapshot(epoch: int = 1, **sections: Any) -> snapshots.Snapshot:
    """Return the rig's snapshot with the given sections replaced (`quotas=(quota(...),)`)."""
    bot = ModelId("acme/bot")
    rival = ModelId("globex/bot")
    small = snapshots.Snapshot(
        schema_version=snapshots.SCHEMA_VERSION,
        epoch=epoch,
        revision="test",
        compiled_unix_s=NOW_UNIX_S,
        tenants=(
            TenantEntry(TenantId("acme"), "enterprise", ("acme/*", POOL)),
            TenantEntry(TenantId("globex"), "free", ("globex/*",), cache_salt="shared"),
        ),
        keys=(
            key_entry(ACME_KEY, "acme"),
            key_entry(BATCH_KEY, "acme", max_class="batch"),
            key_entry(READER_KEY, "acme", scopes=("models:read",)),
            key_entry(EXPIRED_KEY, "acme", expires_unix_s=NOW_UNIX_S - 1),
            key_entry(GLOBEX_KEY, "globex"),
        ),
        models=(
            ModelEntry(
                bot,
                POOL,
                "lora",
                (version("v1", DIGEST_V1, BOT_V1), version("v2", DIGEST_V2, BOT_V2)),
                {"stable": "v1", "canary": "v2"},
            ),
            ModelEntry(rival, POOL, "lora", (version("v1", DIGEST_V1, RIVAL),), {"stable": "v1"}),
            ModelEntry(ModelId(POOL), POOL, "base", (version("v1", DIGEST_V1, POOL),), {"stable": "v1"}),
        ),
        pools=(PoolEntry(POOL, context_window_tokens=2048),),
    )
    return msgspec.structs.replace(small, **sections)


def in_rollout(percent: int = 50, *, stage: int = 0, sticky: Sticky = "session", **changes: Any) -> dict[str, Any]:
    """Return snapshot sections in which acme/bot's stable channel is in a rollout from v1 to v2."""
    split = SplitEntry("stable", ROLLOUT, stage, percent, "v2", sticky)
    models = tuple(
        msgspec.structs.replace(model, splits=(split,)) if model.id == "acme/bot" else model
        for model in snapshot().models
    )
    return {"models": models, **changes}


def catalogue(epoch: int = 1, **sections: Any) -> Catalogue:
    document = snapshots.encode(snapshot(epoch, **sections))
    decoded = snapshots.decode(document)
    return Catalogue(decoded, snapshots.content_hash(decoded))


def heartbeat(replica: str = "r0", port: int = 9, *, sequence: int = 1, **changes: object) -> Heartbeat:
    beat = Heartbeat(
        replica_id=replica,
        pool=POOL,
        host="127.0.0.1",
        port=port,
        phase="ready",
        sequence=sequence,
        incarnation=1,
        sent_unix_s=NOW_UNIX_S,
        adapters=(BOT_V1, BOT_V2, RIVAL),
    )
    return Heartbeat(**{**{name: getattr(beat, name) for name in beat.__struct_fields__}, **changes})


@dataclass
class Clock:
    """Clock that only the test advances."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def forward(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class Rig:
    """A gateway without sockets, on its own clock."""

    clock: Clock = field(default_factory=Clock)
    limits: Limits = field(default_factory=Limits)
    policies: dict[str, Any] = field(default_factory=dict)  # sections of the snapshot
    loader: Loader | None = None

    def __post_init__(self) -> None:
        services = make_services(
            pepper=PEPPER,
            limits=self.limits,
            metrics=Metrics(),
            clock=self.clock,
            wall_clock=lambda: NOW_UNIX_S,
            loader=self.loader,
        )
        self.gateway = Gateway(services)
        self.gauges = StateGauges(services)
        self.gateway.swap(catalogue(**self.policies))

    def with_replicas(self, *names: str) -> "Rig":
        for name in names:
            self.gateway.receive_heartbeat(heartbeat(name))
        return self


def limits(**changes: object) -> Limits:
    return dataclasses.replace(Limits(), **changes)  # type: ignore[arg-type]


def headers(key: str | None = ACME_KEY, **more: str) -> list[tuple[bytes, bytes]]:
    found = [(b"host", b"shoal.test"), (b"content-type", b"application/json")]
    if key is not None:
        found.append((b"authorization", b"Bearer " + key.encode()))
    return found + [(name.replace("_", "-").encode(), value.encode()) for name, value in more.items()]
