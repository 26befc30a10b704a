"""Times at which versions were created or deleted, and deleted channels, for exchange with other regions."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("versions", sa.Column("since_unix_s", sa.Float(), nullable=True))
    op.create_table(
        "channel_ends",
        sa.Column("model", _ID, primary_key=True),
        sa.Column("name", _ID, primary_key=True),
        sa.Column("since_unix_s", sa.Float(), nullable=False),
    )
