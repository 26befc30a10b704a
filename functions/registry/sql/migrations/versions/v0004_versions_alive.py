"""Index of versions that are not deleted, so that deleted ones are not read."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_index(
        "versions_alive",
        "versions",
        ["model"],
        sqlite_where=sa.text("deleted = 0"),
        postgresql_where=sa.text("NOT deleted"),
    )
