"""The last published snapshot, for registries that it was not published to."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "published_snapshots",
        sa.Column("epoch", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("content_hash", sa.Text(), nullable=False),
        sa.Column("base_hash", sa.Text(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
    )
