"""The first schema."""

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", _ID, nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("hmac_sha256", sa.Text(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("max_class", sa.Text(), nullable=False),
        sa.Column("expires_unix_s", sa.Float(), nullable=True),
        sa.Column("created_unix_s", sa.Float(), nullable=False),
        sa.Column("revoked", sa.Boolean(), nullable=False),
        sa.Column("change", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("api_keys_by_change", "api_keys", ["change"], unique=False)
    op.create_index("api_keys_by_tenant", "api_keys", ["tenant", "id"], unique=False)
    op.create_table(
        "artifacts",
        sa.Column("digest", _ID, nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("artifact_uri", sa.Text(), nullable=False),
        sa.Column("total_bytes", sa.BigInteger(), nullable=False),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.Column("used_unix_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("digest", "tenant"),
    )
    op.create_table(
        "audit",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("entry", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index("audit_by_tenant", "audit", ["tenant", "seq"], unique=False)
    op.create_table(
        "gc_candidates",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("moment", sa.BigInteger(), nullable=False),
        sa.Column("marked_unix_s", sa.Float(), nullable=False),
        sa.Column("deleting", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "gc_state",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("moment", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "ingests",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("moment", sa.BigInteger(), nullable=False),
        sa.Column("expires_unix_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "models",
        sa.Column("id", _ID, nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("base", sa.Text(), nullable=False),
        sa.Column("rollout", sa.Text(), nullable=False),
        sa.Column("created_unix_s", sa.Float(), nullable=False),
        sa.Column("change", sa.BigInteger(), nullable=False),
        sa.Column("deleted", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("models_by_change", "models", ["change"], unique=False)
    op.create_index("models_by_tenant", "models", ["tenant", "id"], unique=False)
    op.create_table(
        "rollouts",
        sa.Column("id", _ID, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("model", _ID, nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("lock_version", sa.BigInteger(), nullable=False),
        sa.Column("row", sa.Text(), nullable=False),
        sa.Column("change", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("seq"),
    )
    op.create_index("rollouts_by_change", "rollouts", ["change"], unique=False)
    op.create_index("rollouts_by_model", "rollouts", ["model", "channel", "seq"], unique=False)
    op.create_index(
        "rollouts_one_active",
        "rollouts",
        ["model", "channel"],
        unique=True,
        sqlite_where=sa.text("active"),
        postgresql_where=sa.text("active"),
    )
    op.create_table(
        "state",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("lineage", sa.Text(), nullable=False),
        sa.Column("change", sa.BigInteger(), nullable=False),
        sa.Column("audit_seq", sa.BigInteger(), nullable=False),
        sa.Column("audit_hash", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "rollout_events",
        sa.Column("rollout", _ID, nullable=False),
        sa.Column("lock_version", sa.BigInteger(), nullable=False),
        sa.Column("at_unix_s", sa.Float(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["rollout"],
            ["rollouts.id"],
        ),
        sa.PrimaryKeyConstraint("rollout", "lock_version"),
    )
    op.create_table(
        "versions",
        sa.Column("model", _ID, nullable=False),
        sa.Column("name", _ID, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("artifact_uri", sa.Text(), nullable=False),
        sa.Column("created_unix_s", sa.Float(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("deleted", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["model"],
            ["models.id"],
        ),
        sa.PrimaryKeyConstraint("model", "name"),
    )
    op.create_index("versions_by_digest", "versions", ["digest"], unique=False)
    op.create_table(
        "channels",
        sa.Column("model", _ID, nullable=False),
        sa.Column("name", _ID, nullable=False),
        sa.Column("version", _ID, nullable=False),
        sa.Column("lock_version", sa.BigInteger(), nullable=False),
        sa.Column("moved_unix_s", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["model", "version"],
            ["versions.model", "versions.name"],
        ),
        sa.PrimaryKeyConstraint("model", "name"),
    )
    state = sa.table(
        "state", *(sa.column(name) for name in ("id", "lineage", "change", "audit_seq", "audit_hash", "fence"))
    )
    first = {"id": 1, "lineage": uuid.uuid4().hex, "change": 0, "audit_seq": 0, "audit_hash": "0" * 64, "fence": 0}
    op.execute(sa.insert(state).values(**first))
    gc_state = sa.table("gc_state", sa.column("id"), sa.column("moment"))
    op.execute(sa.insert(gc_state).values(id=1, moment=0))
