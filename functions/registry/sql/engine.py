"""Connections: SQLite with a write-ahead log and explicit `BEGIN`s, or Postgres with a limit on every wait.

Python's sqlite3 chooses itself when transactions begin. Here a write begins with BEGIN IMMEDIATE, which takes
SQLite's only write lock at the start instead of failing half way. On Postgres a write runs READ COMMITTED: the lock
on the `state` row orders the writes, and each statement after it sees the commits of earlier writes. Reads run
REPEATABLE READ, as they always do on SQLite, so that a model and its channels, or the chain and its end, are of the
same moment.
"""

from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

BEGIN_OPTION = "shoal_begin"  # connection option: how its transaction begins on SQLite
CONNECT_TIMEOUT_S = 3
LOCK_TIMEOUT_S = 10  # other registries' writes take milliseconds; a frozen one must not block all others forever
STATEMENT_TIMEOUT_S = 30
POOL_SIZE = 10  # as many as the threads of `database`

SQLITE_FILE = "registry.db"


class UrlInvalid(Exception):
    """The database URL cannot be used; the message says what is expected."""


def database_url(given: str | None, state_dir: Path) -> URL:
    """Return the configured URL with our driver, or else that of the SQLite file in the state directory. Raises
    UrlInvalid."""
    if given is None:
        return URL.create("sqlite", database=str(state_dir.absolute() / SQLITE_FILE))
    try:
        url = make_url(given)
    except ArgumentError as error:
        raise UrlInvalid(
            "the database URL is invalid; expected: for example postgresql://user@host/database"
        ) from error
    if url.get_backend_name() == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:"):
        return url.set(drivername="sqlite")
    raise UrlInvalid("the database URL must be postgresql://… or sqlite:///<file>")


def make_engine(url: URL) -> Engine:
    """Make an SQLAlchemy engine for SQLite or Postgres without connecting."""
    return _sqlite(url) if url.get_backend_name() == "sqlite" else _postgres(url)


def as_of_one_moment(connection: Connection) -> Connection:
    """Return the connection, set so that all statements of a read transaction see the same state."""
    is_postgres = connection.dialect.name == "postgresql"  # always so on SQLite
    return connection.execution_options(isolation_level="REPEATABLE READ") if is_postgres else connection


def _postgres(url: URL) -> Engine:
    options = (
        f"-c lock_timeout={LOCK_TIMEOUT_S}s -c statement_timeout={STATEMENT_TIMEOUT_S}s"
        # A registry whose machine fails during a transaction must not hold the lock until TCP gives up.
        f" -c idle_in_transaction_session_timeout={LOCK_TIMEOUT_S}s"
    )
    return create_engine(
        url,
        pool_size=POOL_SIZE,
        max_overflow=0,
        pool_timeout=LOCK_TIMEOUT_S,
        pool_pre_ping=True,
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "options": options,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "application_name": "shoal-registry",
        },
        hide_parameters=True,  # values must not reach a log through an exception's text
    )


def _sqlite(url: URL) -> Engine:
    engine = create_engine(
        url,
        pool_size=POOL_SIZE,
        max_overflow=0,
        pool_timeout=LOCK_TIMEOUT_S,
        connect_args={"timeout": LOCK_TIMEOUT_S, "check_same_thread": False},
        hide_parameters=True,
    )
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # BEGIN is sent explicitly
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")  # acknowledged writes survive a power cut
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get(BEGIN_OPTION, "BEGIN"))
