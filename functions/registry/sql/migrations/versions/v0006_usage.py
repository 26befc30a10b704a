"""Usage by hour, the sources of counted reports, and capacity by hour."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def _counts(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger(), nullable=False) for name in names]


def _amounts(*names: str) -> list[sa.Column[float]]:
    return [sa.Column(name, sa.Float(), nullable=False) for name in names]


def upgrade() -> None:
    op.create_table(
        "usage",
        sa.Column("hour", sa.BigInteger(), primary_key=True, autoincrement=False),
        *(sa.Column(name, _ID, primary_key=True) for name in ("tenant", "model", "version", "pool", "service_class")),
        *_counts("requests", "failed", "left", "prompt_tokens", "cached_tokens", "completion_tokens"),
        *_amounts("kv_token_seconds", "accelerator_seconds", "cost"),
        *_counts("lost_attempts", "lost_prompt_tokens", "lost_completion_tokens"),
        *_amounts("lost_accelerator_seconds", "lost_cost"),
    )
    op.create_index("usage_by_tenant", "usage", ["tenant", "hour"])
    op.create_table(
        "usage_sources",
        sa.Column("source", _ID, primary_key=True),
        sa.Column("gateway_id", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("told_unix_s", sa.Float(), nullable=False),
    )
    op.create_table(
        "capacity",
        sa.Column("hour", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("pool", _ID, primary_key=True),
        sa.Column("minutes", sa.Integer(), nullable=False),
        sa.Column("last_minute", sa.BigInteger(), nullable=False),
        *_amounts("replica_seconds", "accelerator_seconds", "cost"),
    )
