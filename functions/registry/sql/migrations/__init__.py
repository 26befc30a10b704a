"""The schema's history, for alembic: `env` runs it, `versions/` holds one module a step."""
