"""The tables. What `migrations/` builds, step by step, must come out as this (test_migrations_build_these_tables).

Times are Unix seconds. `change` is the number of the write that touched a row last: who has read up to change N asks
for the rows above N. Rows that readers of changes must hear of are never deleted, they are marked.
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

# Ids are ordered by their bytes on both databases: pages of them are merged with what Python has sorted.
Id = Text().with_variant(Text(collation="C"), "postgresql")

# One row, id 1: the lock that every write takes, and what the writes are numbered by.
state = Table(
    "state",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("lineage", Text, nullable=False),  # made once: tells this history from another database's
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
    Column("rollout", Text, nullable=False),  # a RolloutPolicy's name
    Column("created_unix_s", Float, nullable=False),
    Column("change", BigInteger, nullable=False),
    Column("deleted", Boolean, nullable=False),
    Column("rollout_since_unix_s", Float),  # empty: since before it was kept
    Index("models_by_change", "change"),
    Index("models_by_tenant", "tenant", "id"),
)

# A version never changes. One that was deleted keeps its row, so that its name can never mean other content.
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
    Column("since_unix_s", Float),  # when it was made, deleted or made again, last; NULL: as it was created
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

# Channels that were taken away, for other regions, which must not bring them back.
channel_ends = Table(
    "channel_ends",
    metadata,
    Column("model", Id, primary_key=True),
    Column("name", Id, primary_key=True),
    Column("since_unix_s", Float, nullable=False),
)

# Content that somebody brought in. The same digest may belong to several tenants; none can see that another has it.
artifacts = Table(
    "artifacts",
    metadata,
    Column("digest", Id, primary_key=True),
    Column("tenant", Text, primary_key=True),  # empty: the operator's
    Column("artifact_uri", Text, nullable=False),
    Column("total_bytes", BigInteger, nullable=False),
    Column("facts", Text, nullable=False),  # JSON
    Column("used_unix_s", Float, nullable=False),  # brought in, or named by a version, last
    Column("checked", Text),  # JSON: fingerprints of the bases that it was found to fit; NULL: of none
)

rollouts = Table(
    "rollouts",
    metadata,
    Column("id", Id, primary_key=True),
    Column("seq", BigInteger, nullable=False, unique=True),  # the change that made it: the order of the list
    Column("model", Id, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("channel", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("active", Boolean, nullable=False),
    Column("lock_version", BigInteger, nullable=False),
    Column("row", Text, nullable=False),  # the Rollout on the wire; the columns beside it are its index
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
    Column("lock_version", BigInteger, primary_key=True),  # of the rollout after the event
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
    Column("limits", Text),  # JSON, by name; NULL: none of its own
    Index("api_keys_by_change", "change"),
    Index("api_keys_by_tenant", "tenant", "id"),
)

audit = Table(
    "audit",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("tenant", Text, nullable=False),  # only an index: the entry has it too
    Column("entry", Text, nullable=False),  # canonical JSON: what the hash is taken of
    Column("hash", Text, nullable=False),
    Index("audit_by_tenant", "tenant", "seq"),
)

# What tenants used, in sums by the hour in which it ended. Only ever added to, by reports that are each counted once.
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

# Whose reports were counted, and up to which number: one row a gateway process.
usage_sources = Table(
    "usage_sources",
    metadata,
    Column("source", Id, primary_key=True),
    Column("gateway_id", Text, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("told_unix_s", Float, nullable=False),
)

# What was there to be used: replicas of a pool, as they were seen in each minute.
capacity = Table(
    "capacity",
    metadata,
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    Column("pool", Id, primary_key=True),
    Column("minutes", Integer, nullable=False),  # of the hour, that were seen
    Column("last_minute", BigInteger, nullable=False),  # Unix seconds / 60, of the last one: none counts twice
    Column("replica_seconds", Float, nullable=False),
    Column("accelerator_seconds", Float, nullable=False),
    Column("cost", Float, nullable=False),
)

# The ledger of the garbage collector (functions/artifacts/collect.py). One row, id 1, is its lock and its order:
# candidates and ingests are numbered from it, so that no clock decides which of them came first.
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
    Column("moment", BigInteger, nullable=False),  # when it was marked, in the ledger's order
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

# What was published last: a whole document, and the deltas after it, in order (functions/registry/sql/published.py).
published_snapshots = Table(
    "published_snapshots",
    metadata,
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("content_hash", Text, nullable=False),
    Column("base_hash", Text, nullable=False),  # of a delta: the content that it changes; empty: it is whole
    Column("document", LargeBinary, nullable=False),  # compressed
)
