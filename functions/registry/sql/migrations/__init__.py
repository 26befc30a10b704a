"""Schema history for alembic: `env` runs it, `versions/` has one module per step."""
