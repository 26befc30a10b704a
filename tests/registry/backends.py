"""Fixture `url` for tests that `make test` runs on both databases: all tests of the SQL, and some of routes."""

import pytest

BACKENDS = ("sqlite", pytest.param("postgres", marks=pytest.mark.servers))


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest) -> str | None:
    """URL of a Postgres database with its schema; `None` selects SQLite in the test's own folder."""
    return url_of(request)


def url_of(request: pytest.FixtureRequest) -> str | None:
    if request.param == "sqlite":
        return None
    made: str = request.getfixturevalue("postgres").new_database(request.getfixturevalue("prepared_postgres"))
    return made
