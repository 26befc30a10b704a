"""Artifacts record the bases that they fit."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("artifacts", sa.Column("checked", sa.Text(), nullable=True))
