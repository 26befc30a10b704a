"""The snapshot: everything that the data plane needs to decide, in one immutable document.

The controller compiles it from YAML; gateways and agents swap it in whole. It is named by the hash of its content
and ordered by its epoch: the same content under a later epoch is the same snapshot, published again.
Arrays are sorted by the compiler, so that equal content has equal bytes.
"""

import hashlib
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from functions.api.ids import (
    DIGEST_PATTERN,
    MODEL_ID_PATTERN,
    NAME_PATTERN,
    Digest,
    EngineName,
    KeyId,
    ModelId,
    PoolName,
    TenantId,
)
from functions.api.keys import KEY_ID_PATTERN

SCHEMA_VERSION = 1
SNAPSHOT_MAX_BYTES = 64 * 1024 * 1024
EPOCH_MAX = 10**9  # a publication a second for 30 years

ServiceClass = Literal["interactive", "near-real-time", "batch"]
Scope = Literal["inference", "models:read", "models:write"]

# msgspec searches for a pattern, and `$` would let a final newline by.
Name = Annotated[str, msgspec.Meta(pattern=rf"\A{NAME_PATTERN}\Z")]
AnyModelId = Annotated[ModelId, msgspec.Meta(pattern=rf"\A{MODEL_ID_PATTERN}\Z")]
AnyDigest = Annotated[Digest, msgspec.Meta(pattern=rf"\A{DIGEST_PATTERN}\Z")]
AnyKeyId = Annotated[KeyId, msgspec.Meta(pattern=rf"\A{KEY_ID_PATTERN}\Z")]
Hex64 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Epoch = Annotated[int, msgspec.Meta(ge=0, le=EPOCH_MAX)]
Replicas = Annotated[int, msgspec.Meta(ge=0, le=100_000)]


class KeyEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key_id: AnyKeyId
    tenant: TenantId
    hmac_sha256: Hex64
    scopes: tuple[Scope, ...]
    max_class: ServiceClass
    expires_unix_s: float | None = None


class TenantEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: TenantId
    tier: str
    models: tuple[str, ...]  # exact ids, or prefixes that end in `*`
    cache_salt: Literal["per-tenant", "shared"] = "per-tenant"


class VersionEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    digest: AnyDigest
    engine_name: EngineName
    artifact_uri: str


class ModelEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: AnyModelId
    pool: PoolName
    type: Literal["base", "lora"]
    versions: tuple[VersionEntry, ...]
    channels: dict[Name, Name]  # channel -> version name
    declared_in: str = ""  # file and line, for people


class PoolEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: PoolName
    context_window_tokens: Annotated[int, msgspec.Meta(ge=1)]
    min_replicas: Replicas = 1
    max_replicas: Replicas = 1


class Snapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema_version: int
    epoch: Epoch
    revision: str  # where it came from: a git commit, or `local`
    compiled_unix_s: float
    tenants: tuple[TenantEntry, ...]
    keys: tuple[KeyEntry, ...]
    models: tuple[ModelEntry, ...]
    pools: tuple[PoolEntry, ...]


class SnapshotInvalid(Exception):
    """The document cannot be used; the last good one must stay."""


def encode(snapshot: Snapshot) -> bytes:
    """Canonical bytes: sorted keys, no spaces."""
    return msgspec.json.encode(snapshot, order="deterministic")


def content_hash(snapshot: Snapshot) -> str:
    """The content's name, `sha256:<hex>`: what is the same, whenever and from wherever it was compiled."""
    content = msgspec.structs.replace(snapshot, epoch=0, revision="", compiled_unix_s=0.0)
    return "sha256:" + hashlib.sha256(encode(content)).hexdigest()


def decode(document: bytes) -> Snapshot:
    """A snapshot from its bytes; SnapshotInvalid says what is wrong with them."""
    if len(document) > SNAPSHOT_MAX_BYTES:
        raise SnapshotInvalid(f"snapshot of {len(document)} bytes is over the limit of {SNAPSHOT_MAX_BYTES}")
    try:
        snapshot = msgspec.json.decode(document, type=Snapshot)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SnapshotInvalid(f"not a snapshot: {error}") from error
    if snapshot.schema_version != SCHEMA_VERSION:
        raise SnapshotInvalid(f"schema version {snapshot.schema_version}; this build reads {SCHEMA_VERSION}")
    _check_names_are_unique(snapshot)
    _check_references(snapshot)
    return snapshot


def _check_names_are_unique(snapshot: Snapshot) -> None:
    _refuse_duplicates("tenant", (tenant.name for tenant in snapshot.tenants))
    _refuse_duplicates("key", (key.key_id for key in snapshot.keys))
    _refuse_duplicates("pool", (pool.name for pool in snapshot.pools))
    _refuse_duplicates("model", (model.id for model in snapshot.models))
    for model in snapshot.models:
        _refuse_duplicates(f"version of {model.id}", (version.name for version in model.versions))


def _refuse_duplicates(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise SnapshotInvalid(f"the {what} {name} occurs twice")
        seen.add(name)


def _check_references(snapshot: Snapshot) -> None:
    tenants = {tenant.name for tenant in snapshot.tenants}
    pools = {pool.name for pool in snapshot.pools}
    for key in snapshot.keys:
        if key.tenant not in tenants:
            raise SnapshotInvalid(f"key {key.key_id} belongs to tenant {key.tenant}, which is not in the snapshot")
    for model in snapshot.models:
        if model.pool not in pools:
            raise SnapshotInvalid(f"model {model.id} is served by pool {model.pool}, which is not in the snapshot")
        names = {version.name for version in model.versions}
        for channel, version in model.channels.items():
            if version not in names:
                raise SnapshotInvalid(f"channel {model.id}:{channel} points at version {version}, which does not exist")
