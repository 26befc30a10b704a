"""The store across restarts: published state is restored, corrupt files are set aside."""

from pathlib import Path

import pytest

from functions.fleet import snapshot_file
from functions.registry.store import MAX_LEAD, EpochTaken, SnapshotStore
from tests.fleet.builders import snapshot

RUBBISH = b'{"sha256":"0","document":{}}\n'


async def test_restart_restores_the_published_snapshot(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    published = await SnapshotStore(file).publish(snapshot(epoch=4))
    again = SnapshotStore(file)
    again.load()
    assert again.current is not None
    assert (again.current.snapshot, again.current.snapshot_hash) == (published.snapshot, published.snapshot_hash)
    with pytest.raises(EpochTaken):
        await again.publish(snapshot(epoch=4))


async def test_a_corrupt_file_is_set_aside_and_the_registry_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "snapshot.json"
    file.write_bytes(RUBBISH)
    store = SnapshotStore(file)
    store.load()
    assert store.current is None
    assert (tmp_path / "snapshot.json.refused").read_bytes() == RUBBISH
    assert "invalid and was renamed to snapshot.json.refused" in caplog.text
    await store.publish(snapshot(epoch=1))
    content = snapshot_file.read(file)
    assert content is not None
    assert content.snapshot == snapshot(epoch=1)


async def test_registry_that_lost_a_million_publications_continues_above_them(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path / "snapshot.json")
    store.record_follower_epoch(1_000_000)
    with pytest.raises(EpochTaken, match="above 1000000"):
        await store.publish(snapshot(epoch=1))
    assert (await store.publish(snapshot(epoch=1_000_001))).epoch == 1_000_001


async def test_corrupt_fence_does_not_lose_the_snapshot(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "snapshot.json"
    await SnapshotStore(file).publish(snapshot(epoch=4))
    (tmp_path / "snapshot.json.fence").write_text("")
    again = SnapshotStore(file)
    again.load()
    assert again.epoch == 4
    assert "the stored leadership cannot be read" in caplog.text


async def test_corrupt_file_that_cannot_be_moved_does_not_block_the_start(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    file.mkdir()
    (tmp_path / "snapshot.json.refused").write_bytes(b"in the way")
    store = SnapshotStore(file)
    store.load()
    assert store.current is None


def test_epoch_floor_follows_followers_within_reason(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path / "snapshot.json")
    store.record_follower_epoch(MAX_LEAD + 1)
    assert store.epoch_floor == 0
    store.record_follower_epoch(MAX_LEAD)
    store.record_follower_epoch(5)
    assert store.epoch_floor == MAX_LEAD
