"""kill -9 at every statement of a write: afterwards all of it is stored, or nothing."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, func, select

from functions.api.ids import ModelId
from functions.registry.channel_moves import ChannelMove
from functions.registry.sql import artifacts, audit, catalogue, catalogue_writes, changes, rollouts
from functions.registry.sql.artifacts import StoredArtifact
from functions.registry.sql.audit import Actor
from functions.registry.sql.catalogue_writes import NewVersion
from functions.registry.sql.database import Database
from functions.registry.sql.engine import database_url
from functions.registry.sql.rollouts import Filter
from functions.registry.sql.tables import rollouts as table
from functions.registry.sql.transaction import Write
from tests.registry.catalogue_rig import LIMITS, digest, published
from tests.soak import every

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]
MODEL = ModelId("acme/bot")
POLICY = published().rollouts[1]
MAX_STATEMENTS = 80


def put_and_promote(number: int) -> Any:
    """The largest write: a version, and a rollout of the channel to it."""
    new = NewVersion(MODEL, "acme", "base", f"v{number}", digest("cd"[number % 2]), "", None)
    move = ChannelMove(MODEL, "stable", f"v{number}", lambda name: POLICY, LIMITS)

    def write(write: Write) -> None:
        catalogue_writes.put_version(write, new, LIMITS)
        move.apply(write)

    return write


def killed_at(statement: int, url: str | None, folder: Path, number: int) -> bool:
    """Run the write in a process that is killed after so many statements; return whether it finished."""
    child = os.fork()
    if child == 0:
        database = Database(database_url(url, folder), clock=lambda: 1000.0)
        count = 0

        def counted(*_: Any) -> None:
            nonlocal count
            count += 1
            if count == statement:
                os.kill(os.getpid(), signal.SIGKILL)

        event.listen(database._engine, "after_cursor_execute", counted)
        event.listen(database._engine, "commit", counted)
        database.write(Actor("killed"), put_and_promote(number))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0


@every(4)
def test_killed_write_is_complete_or_absent(database: Database, url: str | None, tmp_path: Path, every: int) -> None:
    for letter in "cd":
        row = StoredArtifact(digest(letter), "acme", "", 1, {})
        database.write(Actor("test"), lambda write, row=row: artifacts.put_artifact(write, row))
    database.write(Actor("test"), put_and_promote(0))
    before = state_of(database)
    statement = 1
    while not killed_at(statement, url, tmp_path, 1):
        assert state_of(database) == before, f"killed after statement {statement}"
        statement += every
        assert statement < MAX_STATEMENTS
    after = state_of(database)
    assert statement > 8  # the loop has reached the inside of a write
    assert (after["versions"], after["rollouts"], after["change"]) == (["v0", "v1"], 1, before["change"] + 1)
    print(f"\nkilled after one in {every} of {statement - 1} statements")


def state_of(database: Database) -> dict[str, Any]:
    """Check that the database is consistent and return its content."""
    assert database.read(audit.verify).broken_at is None
    model = database.read(lambda c: catalogue.model(c, MODEL))
    rows = database.read(lambda c: rollouts.page(c, Filter(), None, 100))
    assert database.read(lambda c: c.scalar(select(func.count()).select_from(table).where(table.c.active))) == len(rows)
    return {
        "versions": [version.name for version in model.versions] if model is not None else [],
        "channels": {name: channel.version for name, channel in model.channels.items()} if model is not None else {},
        "rollouts": len(rows),
        "change": database.read(changes.position)[1],
        "entries": database.read(audit.verify).entries,
    }
