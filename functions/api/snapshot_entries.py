"""Entries of a snapshot: one frozen type per kind of entry, and the snapshot that holds them.

Each entry is one line of the document (`snapshot_document`), with a tag for its type and the name attribute that
`SECTIONS` states. Every field is written, including defaults: msgspec omits defaults by identity, and equal content
must have equal bytes. Entries are never part of a cycle, so the garbage collector does not track them (`gc=False`):
a collection costs the same with a hundred thousand keys as with one.

Neighbours: `snapshot` exports all of this to the rest of the code; `functions.controller.snapshot.compile` creates
entries.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

import msgspec

from functions.api.ids import (
    DIGEST_PATTERN,
    MODEL_ID_PATTERN,
    NAME_PATTERN,
    ROLLOUT_ID_PATTERN,
    Digest,
    EngineName,
    KeyId,
    ModelId,
    PoolName,
    RolloutId,
    TenantId,
)
from functions.api.keys import KEY_ID_PATTERN

SCHEMA_VERSION = 3
EPOCH_MAX = 10**9  # a publication a second for 30 years

ServiceClass = Literal["interactive", "near-real-time", "batch"]
Scope = Literal["inference", "models:read", "models:write"]
PrefixSource = Literal["events", "bloom", "sent"]
UnknownFields = Literal["strip", "refuse", "pass"]
FallbackWhen = Literal["saturated", "unavailable"]
Sticky = Literal["session", "tenant"]
Script = Literal["latin", "cyrillic", "greek", "arabic", "hebrew", "devanagari", "thai", "hangul", "kana", "han"]
Task = Literal["generate", "embed", "classify", "score"]
ContextOverflow = Literal["refuse", "slide", "summarise"]
CacheSalt = Literal["per-tenant", "shared"]
EntropyMeasure = Literal["mean", "p90"]
ModelType = Literal["lora", "base"]
PoolUse = Literal["shared", "preferred", "dedicated"]
PoolRole = Literal["", "prefill"]

# msgspec searches for a pattern, and `$` would allow a final newline.
Name = Annotated[str, msgspec.Meta(pattern=rf"\A{NAME_PATTERN}\Z")]
ObjectName = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?\Z")]  # metadata.name
AnyModelId = Annotated[ModelId, msgspec.Meta(pattern=rf"\A{MODEL_ID_PATTERN}\Z")]
AnyDigest = Annotated[Digest, msgspec.Meta(pattern=rf"\A{DIGEST_PATTERN}\Z")]
AnyRolloutId = Annotated[RolloutId, msgspec.Meta(pattern=rf"\A{ROLLOUT_ID_PATTERN}\Z")]
AnyKeyId = Annotated[KeyId, msgspec.Meta(pattern=rf"\A{KEY_ID_PATTERN}\Z")]
Hex64 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Epoch = Annotated[int, msgspec.Meta(ge=0, le=EPOCH_MAX)]
Replicas = Annotated[int, msgspec.Meta(ge=0, le=100_000)]
Limit = Annotated[int, msgspec.Meta(ge=0)]
Ratio = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0)]
PoolPattern = Annotated[str, msgspec.Meta(pattern=r"\A(?:[a-z0-9][a-z0-9._-]{0,62}\*?|\*)\Z")]
AnyText = Annotated[str, msgspec.Meta(max_length=1000)]


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False, tag_field="is"):
    """One line of the document."""


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A part of an entry."""


class QuotaLimitsPart(_Part, frozen=True):
    """Limits of a tier or a key; None means unlimited."""

    requests_per_minute: Limit | None = None
    input_tokens_per_minute: Limit | None = None
    output_tokens_per_minute: Limit | None = None
    concurrent_requests: Limit | None = None
    kv_token_seconds_per_minute: Limit | None = None
    gpu_seconds_per_hour: Limit | None = None
    max_context_tokens: Limit | None = None
    max_output_tokens: Limit | None = None
    token_burst_seconds: Limit | None = None  # None means the default of `functions.decisions.quota.token_bucket`


class KeyEntry(_Entry, frozen=True, tag="key"):
    key_id: AnyKeyId
    tenant: TenantId
    hmac_sha256: Hex64
    scopes: tuple[Scope, ...]
    max_class: ServiceClass
    expires_unix_s: float | None = None
    limits: QuotaLimitsPart | None = None  # limits of this key alone, within its tenant's


class ToolEntry(_Part, frozen=True):
    """An endpoint that the gateway calls when a model requests it."""

    name: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]
    description: AnyText
    url: Annotated[str, msgspec.Meta(pattern=r"\Ahttps://", max_length=500)]
    parameters: Annotated[str, msgspec.Meta(max_length=8_000)]  # JSON text
    timeout_s: Seconds = 10.0
    max_calls: Annotated[int, msgspec.Meta(ge=1, le=16)] = 4
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=1024 * 1024)] = 65_536
    secret: str = ""  # name of the secret's file; empty if there is none


class ConversationsPart(_Part, frozen=True):
    """Settings for the tenant's stored conversations."""

    ttl_s: Seconds = 86_400.0
    max_tokens: Limit = 32_000


class TenantEntry(_Entry, frozen=True, tag="tenant"):
    name: TenantId
    tier: str  # name of a QuotaEntry
    models: tuple[str, ...]  # exact ids, or prefixes that end in `*`
    cache_salt: CacheSalt = "per-tenant"
    context_overflow: ContextOverflow = "refuse"
    conversations: ConversationsPart | None = None  # None means that conversations are not stored
    tools: tuple[ToolEntry, ...] = ()
    pools: PoolUse = "shared"  # use of pools that are dedicated to the tenant: not, first, or only


class VersionEntry(_Part, frozen=True):
    name: Name
    digest: AnyDigest
    engine_name: EngineName
    artifact_uri: str


class SplitEntry(_Part, frozen=True):
    """A rollout that sends part of a channel's requests to another version; the channel itself names the control."""

    channel: Name
    rollout: AnyRolloutId
    stage: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]  # continues from attempt to attempt: `Rollout.trial`
    percent: Annotated[int, msgspec.Meta(ge=1, le=99)]
    candidate: Name  # a version
    sticky: Sticky = "session"


class ModelEntry(_Entry, frozen=True, tag="model"):
    id: AnyModelId
    pool: PoolName
    type: ModelType
    versions: tuple[VersionEntry, ...]
    channels: dict[Name, Name]  # version name by channel
    declared_in: str = ""  # the file, for people
    rollout: str = ""  # name of a RolloutEntry; empty: the built-in stages
    splits: tuple[SplitEntry, ...] = ()  # at most one per channel


class PoolEntry(_Entry, frozen=True, tag="pool"):
    name: PoolName
    context_window_tokens: Annotated[int, msgspec.Meta(ge=1)]
    min_replicas: Replicas = 1
    max_replicas: Replicas = 1
    task: Task = "generate"  # task that its engines were started for; it decides which routes apply
    # From its engines' arguments, for their agents; None if these do not enable adapters.
    max_adapters: Annotated[int, msgspec.Meta(ge=0, le=4096)] | None = None
    max_lora_rank: Annotated[int, msgspec.Meta(ge=1, le=4096)] | None = None
    # Facts that charges are computed from.
    accelerators_per_replica: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 1  # on CPU: 1
    # in the operator's currency; 0: not stated
    price_per_accelerator_hour: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0
    model: str = ""  # the pool whose model it also serves; empty: the model with its own name
    dedicated_to: tuple[TenantId, ...] = ()  # only these tenants' requests are sent here; empty: all tenants'
    quantization: str = ""  # quantization of its weights; empty if there is none
    spot: bool = False  # its machines may be reclaimed at short notice: used last, unless a rule selects it
    role: PoolRole = ""  # prefill: computes prompts for the other pools of its model, and answers no request itself
    # bytes that a prefill pool transfers and a host tier stores
    kv_bytes_per_token: Annotated[int, msgspec.Meta(ge=0)] = 0
    kv_transfer_bytes_per_s: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0  # transfer rate
    # host memory for blocks that leave the KV cache, by arguments
    kv_host_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    # reload rate from there; 0: not stated, and measured
    kv_reload_bytes_per_s: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0


class QuotaEntry(_Entry, frozen=True, tag="quota"):
    name: ObjectName
    weight: Annotated[float, msgspec.Meta(gt=0.0)] = 1.0
    limits: QuotaLimitsPart = QuotaLimitsPart()
    cached_token_weight_ratio: Ratio = 0.0  # share of a cached prompt token that counts


class FallbackEntry(_Part, frozen=True):
    when: FallbackWhen
    source_pool: PoolName
    target_pool: PoolName
    tiers: tuple[str, ...] = ()  # empty: every tier


class CascadeEntry(_Part, frozen=True):
    source_pool: PoolName
    target_pool: PoolName
    tiers: tuple[str, ...] = ()  # empty: every tier
    threshold_nats: Annotated[float, msgspec.Meta(ge=0.0)] = 1.0  # with more entropy than this, the next pool answers
    sample_tokens: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 32  # tokens measured at the beginning of the answer
    measure: EntropyMeasure = "mean"


class RuleEntry(_Part, frozen=True):
    """A classifier rule. All stated conditions must hold; None or empty ones are ignored."""

    target_pool: PoolName
    min_prompt_tokens: Limit | None = None
    max_prompt_tokens: Limit | None = None
    tools: bool | None = None
    code: bool | None = None
    keywords: tuple[str, ...] = ()  # lower case; one of them must occur
    script: Script | None = None


class ClassifierEntry(_Part, frozen=True):
    """A classifier: requests for `model`, which is no real model, go to the pool of the first rule that holds."""

    model: Name
    otherwise: PoolName
    rules: tuple[RuleEntry, ...] = ()


class PlacementEntry(_Part, frozen=True):
    """A placement rule. All stated conditions must hold; None or empty ones are ignored."""

    target_pool: PoolName
    classes: tuple[ServiceClass, ...] = ()
    tiers: tuple[str, ...] = ()
    tenants: tuple[TenantId, ...] = ()
    min_prompt_tokens: Limit | None = None
    max_prompt_tokens: Limit | None = None
    min_predicted_ttft_ms: Limit | None = None  # in the pool where the request would go without this rule


class RoutingEntry(_Entry, frozen=True, tag="routing"):
    """Routing of some pools. The defaults apply if no policy fits a pool, and equal the defaults of the kind."""

    name: ObjectName
    pools: tuple[PoolPattern, ...]  # exact names, or prefixes that end in `*`
    session_ttl_s: Seconds = 300.0
    prefix_source: PrefixSource = "events"
    bounded_load: Annotated[float, msgspec.Meta(ge=1.0)] = 1.25  # largest load of a replica relative to the mean
    spread_above_utilization_ratio: Ratio = 0.85
    retry_max_attempts: Annotated[int, msgspec.Meta(ge=1, le=10)] = 3
    retry_budget_ratio: Ratio = 0.2
    fallback: tuple[FallbackEntry, ...] = ()
    cascade: tuple[CascadeEntry, ...] = ()
    hedge_after_s: Seconds | None = None  # None means no hedge of a slow first attempt
    classifier: ClassifierEntry | None = None
    unknown_fields: UnknownFields = "strip"  # handling of request fields that no field table has
    placement: tuple[PlacementEntry, ...] = ()  # rules for several pools of one model; the first that holds decides
    prefill_min_prompt_tokens: Limit = 2048  # shorter prompts are never computed by a prefill pool
    prefill_give_up_after_s: Seconds = 10.0  # then the pool computes the prompt itself


class BandEntry(_Part, frozen=True):
    name: ServiceClass
    share_ratio: Ratio
    ttft_slo_ms: Limit | None = None
    max_wait_ms: Limit | None = (
        None  # None means half of the promise; without one, `decisions.admission.bands` has the defaults
    )


class AdmissionEntry(_Entry, frozen=True, tag="admission"):
    name: ObjectName
    pools: tuple[PoolPattern, ...]
    bands: tuple[BandEntry, ...]
    max_queued_tokens: Limit = 2_000_000


class StageEntry(_Part, frozen=True):
    percent: Annotated[int, msgspec.Meta(ge=1, le=100)]
    duration_s: Seconds | None = None  # None for the last stage
    auto_halt: tuple[AnyText, ...] = ()  # canonical halt conditions


class RolloutEntry(_Entry, frozen=True, tag="rollout"):
    name: ObjectName
    stages: tuple[StageEntry, ...]
    min_requests: Limit = 0
    sticky: Sticky = "session"
    # largest share of rollouts halted although the new version is as good as the old one
    false_alarm_ratio: Ratio = 0.01


class AutoscalingEntry(_Entry, frozen=True, tag="autoscaling"):
    name: ObjectName
    pool: PoolName
    min_replicas: Replicas
    max_replicas: Replicas
    warm: Replicas = 0
    scale_up: tuple[AnyText, ...] = ()  # canonical scale rules
    scale_down: tuple[AnyText, ...] = ()
    idle_after_s: Annotated[float, msgspec.Meta(gt=0.0)] = 600.0  # applies with min_replicas 0


class Removed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False, tag_field="is", tag="removed"):
    """A line of a delta for an entry that the base has and the new content does not."""

    section: Literal["admission", "autoscaling", "keys", "models", "pools", "quotas", "rollouts", "routing", "tenants"]
    name: str


AnyEntry = (
    AdmissionEntry
    | AutoscalingEntry
    | KeyEntry
    | ModelEntry
    | PoolEntry
    | QuotaEntry
    | RolloutEntry
    | RoutingEntry
    | TenantEntry
)

# The sections in the order of the document, with the entry's type and its name attribute.
SECTIONS: Mapping[str, tuple[type[AnyEntry], str]] = MappingProxyType(
    {
        "admission": (AdmissionEntry, "name"),
        "autoscaling": (AutoscalingEntry, "name"),
        "keys": (KeyEntry, "key_id"),
        "models": (ModelEntry, "id"),
        "pools": (PoolEntry, "name"),
        "quotas": (QuotaEntry, "name"),
        "rollouts": (RolloutEntry, "name"),
        "routing": (RoutingEntry, "name"),
        "tenants": (TenantEntry, "name"),
    }
)


class Snapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A snapshot. Every section is sorted by name."""

    schema_version: int
    epoch: Epoch
    revision: str  # its source: `main@<commit>`, `kubernetes@<resourceVersion>`, or `local`
    compiled_unix_s: float
    tenants: tuple[TenantEntry, ...]
    keys: tuple[KeyEntry, ...]
    models: tuple[ModelEntry, ...]
    pools: tuple[PoolEntry, ...]
    quotas: tuple[QuotaEntry, ...] = ()
    routing: tuple[RoutingEntry, ...] = ()
    admission: tuple[AdmissionEntry, ...] = ()
    rollouts: tuple[RolloutEntry, ...] = ()
    autoscaling: tuple[AutoscalingEntry, ...] = ()


class SnapshotInvalid(Exception):
    """The document is unusable; the last good one must stay."""
