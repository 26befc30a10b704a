"""Since when a model has its RolloutPolicy: of two that regions name, the later holds."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("models", sa.Column("rollout_since_unix_s", sa.Float(), nullable=True))
