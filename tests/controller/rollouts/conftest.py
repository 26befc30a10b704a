"""A world for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from functions.registry.sql.database import Database
from functions.registry.sql.engine import SQLITE_FILE, database_url
from tests.controller.rollouts.world import World
from tests.controller.rollouts.world import world as made_world


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("empty")
    database = Database(database_url(None, folder))
    database.prepare()
    database.close()
    return folder / SQLITE_FILE


@pytest.fixture
async def world(tmp_path: Path, empty_database: Path) -> AsyncIterator[World]:
    async with made_world(tmp_path, empty_database) as made:
        yield made
