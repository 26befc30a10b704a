"""Bringing the schema up to date, one process at a time.

The whole upgrade is one transaction on both databases: a process that is killed in it leaves the old schema. On SQLite
the lock is the file's write lock, on Postgres an advisory lock that ends with the transaction.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError

from functions.registry.sql import failures
from functions.registry.sql.engine import BEGIN_OPTION
from functions.registry.sql.failures import SchemaUnknown

_SCRIPTS = Path(__file__).parent / "migrations"
ADVISORY_LOCK = 0x73686F616C01  # "shoal", 1


def migrate(engine: Engine) -> None:
    """DatabaseUnavailable where the database is away, SchemaUnknown where it is newer than this program."""
    try:
        with engine.connect() as opened:
            connection = opened.execution_options(**{BEGIN_OPTION: "BEGIN IMMEDIATE"})
            with connection.begin():
                if connection.dialect.name == "postgresql":
                    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
                command.upgrade(_config(connection), "head")
    except CommandError as error:
        message = f"the database's schema is not one that this shoal knows ({error}); run the version that made it"
        raise SchemaUnknown(message) from error
    except SQLAlchemyError as error:
        raise failures.mapped(error) from error


def head() -> str:
    """The revision that this program works with."""
    revision = ScriptDirectory(str(_SCRIPTS)).get_current_head()
    assert revision is not None
    return revision


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
