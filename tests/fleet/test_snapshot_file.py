"""The stored snapshot: whole or not there, and never believed when a byte is wrong."""

from pathlib import Path

import pytest

from functions.api import snapshot as snapshots
from functions.api.snapshot import SnapshotInvalid
from functions.fleet import snapshot_file
from tests.fleet.builders import snapshot

DOCUMENT = snapshots.encode(snapshot())


def test_what_was_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "made" / "snapshot.json"
    snapshot_file.write(file, DOCUMENT)
    assert snapshot_file.read(file) == snapshot()
    assert file.stat().st_mode & 0o777 == 0o600, "it holds key hashes"
    assert list(file.parent.iterdir()) == [file], "nothing temporary stays"


def test_no_file_is_no_snapshot(tmp_path: Path) -> None:
    assert snapshot_file.read(tmp_path / "none.json") is None


def test_a_flipped_byte_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    snapshot_file.write(file, DOCUMENT)
    good = file.read_bytes()
    for index in range(0, len(good), 3):
        file.write_bytes(good[:index] + bytes([good[index] ^ 1]) + good[index + 1 :])
        with pytest.raises(SnapshotInvalid):
            snapshot_file.read(file)


def test_a_torn_write_is_noticed_wherever_it_ends(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    snapshot_file.write(file, DOCUMENT)
    good = file.read_bytes()
    for length in range(0, len(good), 3):
        file.write_bytes(good[:length])
        with pytest.raises(SnapshotInvalid):
            snapshot_file.read(file)


def test_a_later_snapshot_replaces_the_former(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    snapshot_file.write(file, DOCUMENT)
    snapshot_file.write(file, snapshots.encode(snapshot(epoch=2)))
    read = snapshot_file.read(file)
    assert read is not None
    assert read.epoch == 2


def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    file.mkdir()  # rename cannot replace a folder by a file
    with pytest.raises(OSError, match="directory"):
        snapshot_file.write(file, DOCUMENT)
    assert list(tmp_path.iterdir()) == [file]


def test_what_cannot_be_read_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(SnapshotInvalid, match="cannot be read"):
        snapshot_file.read(tmp_path)
