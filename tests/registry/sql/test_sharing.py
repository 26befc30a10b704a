"""Registries that share one database: all serve what one has published, on both databases."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from functions.api.ids import TenantId
from functions.api.snapshot_entries import TenantEntry
from functions.fleet.snapshot_notices import SnapshotNotice
from functions.registry.sharing import SnapshotSharing
from functions.registry.sql import published
from functions.registry.sql.database import Database
from functions.registry.sql.tables import published_snapshots
from functions.registry.store import EpochTaken, SnapshotStore
from tests.fleet.builders import snapshot


class Registry:
    def __init__(self, folder: Path, database: Database) -> None:
        self.database = database
        self.store = SnapshotStore(folder / "snapshot.json")
        self.store.load()
        self.sharing = SnapshotSharing(database, self.store)

    async def publish(self, epoch: int, *names: str) -> None:
        tenants = tuple(TenantEntry(TenantId(name), "standard", (f"{name}/*",)) for name in sorted(names))
        await self.store.publish(snapshot(epoch, tenants=tenants))

    @property
    def says(self) -> tuple[int, str]:
        return self.store.epoch, self.store.feed.content.content_hash


Make = Callable[[str], Registry]


@pytest.fixture
def make(database: Database, tmp_path: Path) -> Iterator[Make]:
    others: list[Database] = []

    def made(name: str) -> Registry:
        own = Database(database.url)
        own.prepare()
        others.append(own)
        (tmp_path / name).mkdir(exist_ok=True)
        return Registry(tmp_path / name, own)

    yield made
    for other in others:
        other.close()


def kinds(database: Database) -> list[str]:
    """Return the kinds of the rows by epoch: whole or delta."""
    rows = database.read(lambda c: c.execute(published_snapshots.select()).all())
    return ["delta" if row.base_hash else "whole" for row in sorted(rows, key=lambda row: row.epoch)]


async def test_second_registry_serves_what_the_first_published(make: Make, database: Database) -> None:
    first, second = make("a"), make("b")
    await first.publish(3, "acme")
    assert second.store.current is None
    await second.sharing.sync_once()
    assert second.says == first.says
    waits = asyncio.create_task(second.store.wait_beyond(3, 30.0))
    await asyncio.sleep(0)
    await first.publish(4, "acme", "globex")
    await second.sharing.sync_once()
    feed = await waits
    assert feed is not None and feed.content.content_hash == first.says[1], "who follows the second hears of it"
    await second.publish(5, "globex")
    await first.sharing.sync_once()
    assert first.says == second.says


async def test_new_pod_starts_with_the_last_publication(make: Make) -> None:
    first = make("a")
    many = [f"tenant-{number:03}" for number in range(200)]
    for epoch, gone in enumerate(range(5), 1):
        await first.publish(epoch, *many[gone:])
    assert kinds(first.database) == ["whole", *["delta"] * 4]
    fresh = make("new")
    await fresh.sharing.sync_once()
    assert fresh.says == first.says
    again = make("new")
    assert again.says == first.says, "it is on its disk, too"


async def test_registry_that_was_away_for_long_catches_up(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "MAX_DELTAS", 3)
    first, second = make("a"), make("b")
    many = [f"tenant-{number:03}" for number in range(200)]
    await first.publish(1, *many)
    await second.sharing.sync_once()
    for epoch in range(2, 9):
        await first.publish(epoch, *many[epoch:])
    assert len(kinds(first.database)) <= 4, "deltas do not pile up"
    await second.sharing.sync_once()
    assert second.says == first.says


async def test_epoch_is_assigned_once(make: Make) -> None:
    first, second = make("a"), make("b")
    await first.publish(3, "acme")
    with pytest.raises(EpochTaken, match="another registry has published"):
        await second.publish(3, "globex")
    await second.sharing.sync_once()
    assert second.says == first.says, "nothing of the refused one is left"
    await second.publish(4, "globex")


async def test_publication_without_database_is_stored_there_later(make: Make) -> None:
    first, second = make("a"), make("b")
    first.database.ready = False
    await first.publish(3, "acme")
    await second.sharing.sync_once()
    assert (first.store.epoch, second.store.epoch) == (3, 0)
    first.database.ready = True
    await first.sharing.sync_once()
    await second.sharing.sync_once()
    assert second.says == first.says


async def test_bus_notice_triggers_an_immediate_read(make: Make) -> None:
    first, second = make("a"), make("b")
    await second.sharing.sync_once()
    follows = asyncio.create_task(second.sharing.run())
    await asyncio.sleep(0.2)  # past its first poll: the next one comes after two seconds
    await first.publish(3, "acme")
    second.sharing.notify_published(SnapshotNotice(3))
    async with asyncio.timeout(1.5):
        await second.store.wait_beyond(0, 1.5)
    follows.cancel()
    assert second.says == first.says


async def test_unreadable_row_is_skipped_and_logged_once(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    second = make("b")
    row = published.SnapshotDocument(9, "sha256:x", b"", "", lambda: b'{"is":"snapshot","schema_version":999}\n')
    second.database.write_unaudited(lambda connection: published.put(connection, row))
    await second.sharing.sync_once()
    await second.sharing.sync_once()
    assert second.store.current is None
    assert caplog.text.count("cannot be read here") == 1
