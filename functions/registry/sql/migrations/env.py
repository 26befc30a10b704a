"""Run alembic's commands on the connection and in the transaction that `migrate` holds."""

from alembic import context

from functions.registry.sql.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
