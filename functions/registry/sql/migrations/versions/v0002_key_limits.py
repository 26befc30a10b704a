"""Keys may have limits of their own."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("limits", sa.Text(), nullable=True))
