"""The registry's database: reads, writes one after another, and locks that only one registry at a time can hold.

Calls wait in two queues with separate threads: one for tenants, one for the operator and the controller. So tenants'
calls cannot delay the controller, nor an operator who stops a bad rollout.

A write first waits for its turn in this process, then in the database for other registries' writes. So a burst of
writes holds one connection, not all. A transaction that loses a conflict is retried a few times.

Neighbours: `engine` makes connections, `transaction` is the interface of a write, `errors` maps database errors.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import URL, Connection, Engine, select, text, update
from sqlalchemy.exc import SQLAlchemyError

from functions.registry.sql import errors as failures
from functions.registry.sql.audit import Actor
from functions.registry.sql.engine import BEGIN_OPTION, LOCK_TIMEOUT_S, as_of_one_moment, make_engine
from functions.registry.sql.errors import Contended, DatabaseUnavailable, SchemaUnknown
from functions.registry.sql.tables import state
from functions.registry.sql.transaction import Write

# Schema upgrades, by one process at a time.
#
# The whole upgrade is one transaction on both databases, so a process killed during it leaves the old schema. The
# lock is the file's write lock on SQLite, and an advisory lock that ends with the transaction on Postgres.


_SCRIPTS = Path(__file__).parent / "migrations"
ADVISORY_LOCK = 0x73686F616C01  # "shoal", 1


def migrate(engine: Engine) -> None:
    """Upgrade the schema. Raises DatabaseUnavailable, or SchemaUnknown if the schema is newer than this program."""
    try:
        with engine.connect() as opened:
            connection = opened.execution_options(**{BEGIN_OPTION: "BEGIN IMMEDIATE"})
            with connection.begin():
                if connection.dialect.name == "postgresql":
                    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
                command.upgrade(_config(connection), "head")
    except CommandError as error:
        message = f"this version of shoal does not know the database's schema ({error}); run the version that made it"
        raise SchemaUnknown(message) from error
    except SQLAlchemyError as error:
        raise failures.map_error(error) from error


def head() -> str:
    """Return the newest schema revision that this program has."""
    revision = ScriptDirectory(str(_SCRIPTS)).get_current_head()
    assert revision is not None
    return revision


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


MAX_ATTEMPTS = 5
_POLL_S = 0.05
THREADS = 8
OPERATOR_THREADS = 2
MAX_PENDING = 512  # calls in one queue; further ones are rejected

Answer = TypeVar("Answer")


@dataclass(slots=True)
class _Line:
    threads: ThreadPoolExecutor
    pending: int = 0

    async def run(self, work: Callable[[], Answer]) -> Answer:
        if self.pending >= MAX_PENDING:
            raise DatabaseUnavailable("too many requests wait for the registry's database; try again")
        self.pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.threads, work)
        finally:
            self.pending -= 1


class Database:
    """Owned by one event loop; the blocking methods may be called from any thread."""

    def __init__(self, url: URL, clock: Callable[[], float] = time.time) -> None:
        self.url = url
        self.ready = False
        self._engine = make_engine(url)
        self._clock = clock
        self._turn = threading.Lock()
        self._tenants = _Line(ThreadPoolExecutor(THREADS, thread_name_prefix="sql"))
        self._operator = _Line(ThreadPoolExecutor(OPERATOR_THREADS, thread_name_prefix="sql-operator"))
        self._listeners: list[Callable[[], None]] = []

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    def now_unix_s(self) -> float:
        return self._clock()

    def prepare(self) -> None:
        """Upgrade the schema and set `ready`. Blocks. Raises DatabaseUnavailable or SchemaUnknown."""

        with self._sqlite_prepare_lock():
            migrate(self._engine)
        self.ready = True

    def read(self, work: Callable[[Connection], Answer]) -> Answer:
        """Run `work` on a consistent view of the database and return its result. Blocks. Raises DatabaseUnavailable."""
        try:
            with self._connected("BEGIN") as connection, as_of_one_moment(connection).begin():
                return work(connection)
        except SQLAlchemyError as error:
            raise _unavailable(error) from error

    def write(self, actor: Actor, work: Callable[[Write], Answer]) -> Answer:
        """Run `work` alone among all writes, commit it unless it raises or adds no audit entry, and return its result.
        Blocks. Raises DatabaseUnavailable."""

        def audited(connection: Connection) -> tuple[Answer, bool]:
            write = Write.start(connection, actor, self._clock())
            answer = work(write)
            return answer, write.finish()

        return self._commit(audited)

    def write_unaudited(self, work: Callable[[Connection], Answer]) -> Answer:
        """Run `work` in a transaction outside the numbered writes, for bookkeeping and derived facts only, and return
        its result. Blocks."""
        return self._commit(lambda connection: (work(connection), True))

    def raise_fence(self, token: int) -> int:
        """Raise the stored leadership to `token` if it is lower, and return the higher of the two. Blocks. Raises
        DatabaseUnavailable."""

        def raised(connection: Connection) -> tuple[int, bool]:
            known: int = connection.execute(select(state.c.fence).with_for_update()).scalar_one()
            if token > known:
                connection.execute(update(state).values(fence=token))
            return max(token, known), token > known

        if not self.ready:
            raise DatabaseUnavailable("the registry's database is not ready yet")
        return self._commit(raised)

    async def run(self, work: Callable[[], Answer], *, for_operator: bool = False) -> Answer:
        """Run `work` in one of the database's threads, so that a blocking ingest cannot delay it, and return its
        result; the operator has threads of its own. Raises DatabaseUnavailable if the database is not ready."""
        if not self.ready:
            raise DatabaseUnavailable("the registry's database is not ready yet; see the registry's log")
        return await (self._operator if for_operator else self._tenants).run(work)

    def on_commit(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each later write of this process, in the writing thread."""
        self._listeners.append(listener)

    @contextlib.contextmanager
    def exclusive_lock(self, name: str) -> Iterator[bool]:
        """Try, without waiting, to take the named lock among all registries; yield True on success. It is held in the
        block. Blocks on the database."""
        if self.is_sqlite:
            with self._file_lock(name) as is_ours:
                yield is_ours
        else:
            with self._advisory_lock(name) as is_ours:
                yield is_ours

    def close(self) -> None:
        self._tenants.threads.shutdown(wait=True, cancel_futures=True)
        self._operator.threads.shutdown(wait=True, cancel_futures=True)
        self._engine.dispose()

    def _commit(self, work: Callable[[Connection], tuple[Answer, bool]]) -> Answer:
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                return self._attempt(work)
            except Contended as error:
                if attempt == MAX_ATTEMPTS:
                    raise DatabaseUnavailable(
                        f"the write lost {MAX_ATTEMPTS} conflicts with others: {error}"
                    ) from error
        raise AssertionError("unreachable")

    def _attempt(self, work: Callable[[Connection], tuple[Answer, bool]]) -> Answer:
        if not self._turn.acquire(timeout=LOCK_TIMEOUT_S):
            raise DatabaseUnavailable(f"other writes held the database for {LOCK_TIMEOUT_S} s; try again")
        try:
            with self._connected("BEGIN IMMEDIATE") as connection, contextlib.ExitStack() as undoing:
                transaction = connection.begin()
                undoing.callback(transaction.close)  # rolls back if it was not committed
                answer, is_changed = work(connection)
                if is_changed:
                    transaction.commit()
        except SQLAlchemyError as error:
            raise failures.map_error(error) from error
        finally:
            self._turn.release()
        if is_changed:
            for listener in self._listeners:
                listener()
        return answer

    @contextlib.contextmanager
    def _connected(self, begin: str) -> Iterator[Connection]:
        with self._engine.connect() as connection:
            yield connection.execution_options(**{BEGIN_OPTION: begin})

    @contextlib.contextmanager
    def _sqlite_prepare_lock(self) -> Iterator[None]:
        """Hold SQLite's file exclusively in the block, while a new file gets its write-ahead log; do nothing on
        Postgres. Raises DatabaseUnavailable if another registry holds it too long."""
        if not self.is_sqlite:
            yield
            return
        gives_up_s = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            with self._file_lock("preparing") as is_ours:
                if is_ours:
                    yield
                    return
            if time.monotonic() > gives_up_s:
                raise DatabaseUnavailable("another registry has been preparing the database for too long")
            time.sleep(_POLL_S)

    @contextlib.contextmanager
    def _file_lock(self, name: str) -> Iterator[bool]:
        assert self.url.database is not None
        with contextlib.ExitStack() as opened:
            try:
                file = opened.enter_context(Path(f"{self.url.database}.{name}.lock").open("w"))
            except OSError as error:
                message = f"the folder of the database cannot be written: {error.strerror}"
                raise DatabaseUnavailable(message) from error
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
            else:
                yield True  # closing the file releases the lock

    @contextlib.contextmanager
    def _advisory_lock(self, name: str) -> Iterator[bool]:
        key = {"key": int.from_bytes(hashlib.sha256(f"shoal/{name}".encode()).digest()[:8], "big", signed=True)}
        try:
            with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                is_ours = bool(connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), key))
                try:
                    yield is_ours
                finally:
                    if is_ours:
                        connection.execute(text("SELECT pg_advisory_unlock(:key)"), key)
        except SQLAlchemyError as error:
            raise _unavailable(error) from error


def _unavailable(error: SQLAlchemyError) -> DatabaseUnavailable:
    mapped = failures.map_error(error)
    return mapped if isinstance(mapped, DatabaseUnavailable) else DatabaseUnavailable(str(mapped))
