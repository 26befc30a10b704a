"""The snapshot: everything that the data plane needs to decide, in one immutable document.

The controller compiles it from YAML, and gateways and agents replace it as a whole. It is named by the hash of its
content and ordered by its epoch: the same content under a later epoch is the same snapshot, published again.

Import from this module, which has all that small documents need. `snapshot_entries` has the types,
`snapshot_document` the bytes, `snapshot_index` the runtime form, `snapshot_tree` the hash.
"""

import msgspec

from functions.api.snapshot_comparison import name_of
from functions.api.snapshot_document import SNAPSHOT_MAX_BYTES, full_lines, in_chunks, read
from functions.api.snapshot_entries import (
    EPOCH_MAX,
    SCHEMA_VERSION,
    SECTIONS,
    AdmissionEntry,
    AutoscalingEntry,
    BandEntry,
    CascadeEntry,
    ClassifierEntry,
    ContextOverflow,
    ConversationsPart,
    FallbackEntry,
    FallbackWhen,
    KeyEntry,
    ModelEntry,
    PlacementEntry,
    PoolEntry,
    PoolRole,
    PoolUse,
    QuotaEntry,
    QuotaLimitsPart,
    RolloutEntry,
    RoutingEntry,
    RuleEntry,
    Scope,
    Script,
    ServiceClass,
    Snapshot,
    SnapshotInvalid,
    SplitEntry,
    StageEntry,
    Sticky,
    Task,
    TenantEntry,
    ToolEntry,
    UnknownFields,
    VersionEntry,
)
from functions.api.snapshot_index import empty, indexed

__all__ = [
    "EPOCH_MAX",
    "SCHEMA_VERSION",
    "SNAPSHOT_MAX_BYTES",
    "AdmissionEntry",
    "AutoscalingEntry",
    "BandEntry",
    "CascadeEntry",
    "ClassifierEntry",
    "ContextOverflow",
    "ConversationsPart",
    "FallbackEntry",
    "FallbackWhen",
    "KeyEntry",
    "ModelEntry",
    "PlacementEntry",
    "PoolEntry",
    "PoolRole",
    "PoolUse",
    "QuotaEntry",
    "QuotaLimitsPart",
    "RolloutEntry",
    "RoutingEntry",
    "RuleEntry",
    "Scope",
    "Script",
    "ServiceClass",
    "Snapshot",
    "SnapshotInvalid",
    "SplitEntry",
    "StageEntry",
    "Sticky",
    "Task",
    "TenantEntry",
    "ToolEntry",
    "UnknownFields",
    "VersionEntry",
    "content_hash",
    "decode",
    "encode",
]


def encode(snapshot: Snapshot) -> bytes:
    """Return canonical bytes: equal content under one epoch has equal bytes, whatever the order of its sections."""
    by_name = {section: tuple(sorted(getattr(snapshot, section), key=name_of(section))) for section in SECTIONS}
    return b"".join(full_lines(msgspec.structs.replace(snapshot, **by_name)))


def content_hash(snapshot: Snapshot) -> str:
    """Return the content's name, `sha256:<hex>`; it is independent of when and from which source it was compiled."""
    return indexed(snapshot).content_hash


def decode(document: bytes) -> Snapshot:
    """Decode a whole document; SnapshotInvalid says what is wrong with it. A delta raises BaseMissing."""
    if len(document) > SNAPSHOT_MAX_BYTES:
        raise SnapshotInvalid(f"snapshot of {len(document)} bytes is over the limit of {SNAPSHOT_MAX_BYTES}")
    return read(in_chunks(document), empty()).snapshot
