"""Databases of both kinds for the registry's tests, and an object store where one is needed.

What differs between the two is the SQL, whose own tests (`sql/`) run on both in `make test`, with the routes that write
most. The other routes run on SQLite there, and on Postgres in `make soak`.
"""

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from functions.registry.sql.database import Database
from functions.registry.sql.engine import SQLITE_FILE, database_url
from tests.artifacts.conftest import s3_settings, store
from tests.registry.backends import url_of
from tests.registry.catalogue_rig import Rig
from tests.registry.catalogue_rig import catalogue as serving_catalogue
from tests.registry.postgres import Postgres, running_postgres

__all__ = ["s3_settings", "store"]

SQLITE_FIRST = ("sqlite", pytest.param("postgres", marks=[pytest.mark.servers, pytest.mark.soak]))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(params=SQLITE_FIRST)
def url(request: pytest.FixtureRequest) -> str | None:
    """URL of a Postgres database with its schema; `None` selects SQLite in the test's own folder."""
    return url_of(request)


@pytest.fixture(scope="session")
def prepared_postgres(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Create a Postgres database with its schema; return its name for tests to copy."""
    url = postgres.new_database()
    made = Database(database_url(url, tmp_path_factory.mktemp("prepared")))
    made.prepare()
    made.close()
    return url.rpartition("/")[2]


@pytest.fixture(scope="session")
def prepared_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a SQLite database with its schema for tests to copy: building one takes a tenth of a second."""
    folder = tmp_path_factory.mktemp("prepared")
    made = Database(database_url(None, folder))
    made.prepare()
    made.close()
    return folder / SQLITE_FILE


@pytest.fixture
def database(url: str | None, tmp_path: Path, prepared_sqlite: Path) -> Iterator[Database]:
    """An empty database with its schema, whose clock shows 1,000 s; once on SQLite, once on Postgres."""
    if url is None:
        shutil.copy(prepared_sqlite, tmp_path / SQLITE_FILE)
    made = Database(database_url(url, tmp_path), clock=lambda: 1000.0)
    made.prepare()
    yield made
    made.close()


@pytest.fixture
async def catalogue(tmp_path: Path, database: Database) -> AsyncIterator[Rig]:
    """A registry with its catalogue, on both databases."""
    async with serving_catalogue(tmp_path, database) as made:
        yield made
