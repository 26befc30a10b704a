"""A rig for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from functions.registry.sql.database import Database
from functions.registry.sql.engine import SQLITE_FILE, database_url
from tests.controller.rollouts.rig import Rig
from tests.controller.rollouts.rig import rig as made_rig


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("empty")
    database = Database(database_url(None, folder))
    database.prepare()
    database.close()
    return folder / SQLITE_FILE


@pytest.fixture
async def rig(tmp_path: Path, empty_database: Path) -> AsyncIterator[Rig]:
    async with made_rig(tmp_path, empty_database) as made:
        yield made
