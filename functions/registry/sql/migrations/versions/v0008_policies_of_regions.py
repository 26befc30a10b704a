"""Time at which a model's RolloutPolicy was set: if two regions set one, the later wins."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("models", sa.Column("rollout_since_unix_s", sa.Float(), nullable=True))
