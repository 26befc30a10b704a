"""The tables. The steps in `migrations/` must build exactly these (test_migrations_build_these_tables).

Times are Unix seconds. `change` is the number of the last write that changed a row; a reader at change N requests the
rows above N. Rows whose deletion readers of changes must see are marked as deleted, not removed.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    text,
)

metadata = MetaData()

# Ids sort by their bytes on both databases, since pages are merged with lists that Python has sorted.
Id = Text().with_variant(Text(collation="C"), "postgresql")

# One row, id 1: the lock that every write takes, and the counters of writes and audit entries.
state = Table(
    "state",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("lineage", Text, nullable=False),  # random, created once; identifies this database's history
    Column("change", BigInteger, nullable=False),
    Column("audit_seq", BigInteger, nullable=False),
    Column("audit_hash", Text, nullable=False),
    Column("fence", BigInteger, nullable=False),  # the highest leadership that has written
)

models = Table(
    "models",
    metadata,
    Column("id", Id, primary_key=True),  # tenant/name
    Column("tenant", Text, nullable=False),
    Column("base", Text, nullable=False),
    Column("rollout", Text, nullable=False),  # name of a RolloutPolicy
    Column("created_unix_s", Float, nullable=False),
    Column("change", BigInteger, nullable=False),
    Column("deleted", Boolean, nullable=False),
    Column("rollout_since_unix_s", Float),  # NULL: set before times were stored
    Index("models_by_change", "change"),
    Index("models_by_tenant", "tenant", "id"),
)

# A version never changes. A deleted version keeps its row, so that its name can never mean other content.
versions = Table(
    "versions",
    metadata,
    Column("model", Id, ForeignKey("models.id"), primary_key=True),
    Column("name", Id, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("artifact_uri", Text, nullable=False),
    Column("created_unix_s", Float, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("deleted", Boolean, nullable=False),
    Column("since_unix_s", Float),  # time of its last creation or deletion; NULL: as created
    Index("versions_by_digest", "digest"),
    Index("versions_alive", "model", sqlite_where=text("deleted = 0"), postgresql_where=text("NOT deleted")),
)

channels = Table(
    "channels",
    metadata,
    Column("model", Id, primary_key=True),
    Column("name", Id, primary_key=True),
    Column("version", Id, nullable=False),
    Column("lock_version", BigInteger, nullable=False),
    Column("moved_unix_s", Float, nullable=False),
    ForeignKeyConstraint(["model", "version"], ["versions.model", "versions.name"]),
)

# Deleted channels, so that other regions do not create them again.
channel_ends = Table(
    "channel_ends",
    metadata,
    Column("model", Id, primary_key=True),
    Column("name", Id, primary_key=True),
    Column("since_unix_s", Float, nullable=False),
)

# Ingested content. Several tenants may own the same digest; none can see the others.
artifacts = Table(
    "artifacts",
    metadata,
    Column("digest", Id, primary_key=True),
    Column("tenant", Text, primary_key=True),  # empty: the operator
    Column("artifact_uri", Text, nullable=False),
    Column("total_bytes", BigInteger, nullable=False),
    Column("facts", Text, nullable=False),  # JSON
    Column("used_unix_s", Float, nullable=False),  # last ingested, or named by a version
    Column("checked", Text),  # JSON: fingerprints of the bases that it fits; NULL: none
)

rollouts = Table(
    "rollouts",
    metadata,
    Column("id", Id, primary_key=True),
    Column("seq", BigInteger, nullable=False, unique=True),  # the change that created it: the order of the list
    Column("model", Id, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("channel", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("active", Boolean, nullable=False),
    Column("lock_version", BigInteger, nullable=False),
    Column("row", Text, nullable=False),  # the encoded Rollout; the other columns index it
    Column("change", BigInteger, nullable=False),
    Index("rollouts_by_change", "change"),
    Index("rollouts_by_model", "model", "channel", "seq"),
    Index(
        "rollouts_one_active",
        "model",
        "channel",
        unique=True,
        sqlite_where=text("active"),
        postgresql_where=text("active"),
    ),
)

rollout_events = Table(
    "rollout_events",
    metadata,
    Column("rollout", Id, ForeignKey("rollouts.id"), primary_key=True),
    Column("lock_version", BigInteger, primary_key=True),  # lock version of the rollout after the event
    Column("at_unix_s", Float, nullable=False),
    Column("actor", Text, nullable=False),
    Column("event", Text, nullable=False),  # JSON
    Column("state", Text, nullable=False),
    Column("stage", Integer, nullable=False),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Id, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("hmac_sha256", Text, nullable=False),
    Column("scopes", Text, nullable=False),  # JSON
    Column("max_class", Text, nullable=False),
    Column("expires_unix_s", Float),
    Column("created_unix_s", Float, nullable=False),
    Column("revoked", Boolean, nullable=False),
    Column("change", BigInteger, nullable=False),
    Column("limits", Text),  # JSON, by name; NULL: no limits of this key
    Index("api_keys_by_change", "change"),
    Index("api_keys_by_tenant", "tenant", "id"),
)

audit = Table(
    "audit",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("tenant", Text, nullable=False),  # only for the index; the entry contains it too
    Column("entry", Text, nullable=False),  # canonical JSON, the input of the hash
    Column("hash", Text, nullable=False),
    Index("audit_by_tenant", "tenant", "seq"),
)

# Usage of tenants, summed by the hour in which requests ended. Reports only add to it, each counted once.
usage = Table(
    "usage",
    metadata,
    Column("hour", BigInteger, primary_key=True, autoincrement=False),  # Unix seconds / 3600
    Column("tenant", Id, primary_key=True),
    Column("model", Id, primary_key=True),
    Column("version", Id, primary_key=True),
    Column("pool", Id, primary_key=True),
    Column("service_class", Id, primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("left", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("kv_token_seconds", Float, nullable=False),
    Column("accelerator_seconds", Float, nullable=False),
    Column("cost", Float, nullable=False),
    Column("lost_attempts", BigInteger, nullable=False),
    Column("lost_prompt_tokens", BigInteger, nullable=False),
    Column("lost_completion_tokens", BigInteger, nullable=False),
    Column("lost_accelerator_seconds", Float, nullable=False),
    Column("lost_cost", Float, nullable=False),
    Index("usage_by_tenant", "tenant", "hour"),
)

# Last counted report of each gateway process.
usage_sources = Table(
    "usage_sources",
    metadata,
    Column("source", Id, primary_key=True),
    Column("gateway_id", Text, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("told_unix_s", Float, nullable=False),
)

# Capacity: replicas of a pool as seen in each minute.
capacity = Table(
    "capacity",
    metadata,
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    Column("pool", Id, primary_key=True),
    Column("minutes", Integer, nullable=False),  # counted minutes of the hour
    # Unix seconds / 60 of the last counted minute, so that none counts twice
    Column("last_minute", BigInteger, nullable=False),
    Column("replica_seconds", Float, nullable=False),
    Column("accelerator_seconds", Float, nullable=False),
    Column("cost", Float, nullable=False),
)

# The ledger of the garbage collector (functions/artifacts/collect.py). One row, id 1, is its lock and its counter:
# candidates and ingests are numbered from it, so their order does not depend on clocks.
gc_state = Table(
    "gc_state",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("moment", BigInteger, nullable=False),
)

gc_candidates = Table(
    "gc_candidates",
    metadata,
    Column("key", Text, primary_key=True),
    Column("moment", BigInteger, nullable=False),  # moment of the mark, in the ledger's order
    Column("marked_unix_s", Float, nullable=False),
    Column("deleting", Boolean, nullable=False),
)

ingests = Table(
    "ingests",
    metadata,
    Column("id", Text, primary_key=True),
    Column("moment", BigInteger, nullable=False),
    Column("expires_unix_s", Float, nullable=False),
)

# The last published snapshot: a whole document and the deltas after it, in order
# (functions/registry/sql/published.py).
published_snapshots = Table(
    "published_snapshots",
    metadata,
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("content_hash", Text, nullable=False),
    Column("base_hash", Text, nullable=False),  # base of a delta; empty: a whole document
    Column("document", LargeBinary, nullable=False),  # compressed
)
