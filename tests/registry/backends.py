"""Both databases in `make test`: for every test of the SQL, and for tests of routes that import the fixture `url`."""

import pytest

BACKENDS = ("sqlite", pytest.param("postgres", marks=pytest.mark.servers))


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest) -> str | None:
    """Of a database with its schema; None is SQLite's, in the test's own folder."""
    return url_of(request)


def url_of(request: pytest.FixtureRequest) -> str | None:
    if request.param == "sqlite":
        return None
    made: str = request.getfixturevalue("postgres").new_database(request.getfixturevalue("prepared_postgres"))
    return made
