"""The stored snapshot is whole or absent, and a file with a wrong byte is rejected."""

from pathlib import Path

import pytest

from functions.api import snapshot as snapshots
from functions.api.ids import TenantId
from functions.api.snapshot import Snapshot, SnapshotInvalid, TenantEntry
from functions.api.snapshot_document import delta_lines
from functions.api.snapshot_index import changes_between, empty, indexed
from functions.fleet import snapshot_file
from functions.fleet.snapshot_file import SnapshotFile
from tests.fleet.builders import snapshot

DOCUMENT = snapshots.encode(snapshot())


def stored(file: Path) -> Snapshot:
    content = snapshot_file.read(file)
    assert content is not None
    return content.snapshot


class Journal:
    """Snapshot file that is updated as a follower does it: by deltas where they suffice."""

    def __init__(self, path: Path) -> None:
        self.file = SnapshotFile(path)
        self.content = empty()

    def step(self, epoch: int) -> None:
        tenants = tuple(TenantEntry(TenantId(f"t{n:03d}"), f"tier{epoch if n == 0 else 0}", ()) for n in range(50))
        new = indexed(snapshot(epoch=epoch, tenants=tenants), self.content)
        base, self.content = self.content, new
        delta = b"".join(delta_lines(new.snapshot, base.content_hash, changes_between(base, new)))
        self.file.store(new, delta, base.content_hash)


def test_written_snapshot_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "made" / "snapshot.json"
    snapshot_file.write(file, DOCUMENT)
    assert stored(file) == snapshot()
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
    assert stored(file).epoch == 2


def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    file.mkdir()  # a rename cannot replace a folder
    with pytest.raises(OSError, match="directory"):
        snapshot_file.write(file, DOCUMENT)
    assert list(tmp_path.iterdir()) == [file]


def test_unreadable_snapshot_file_is_refused_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(SnapshotInvalid, match="cannot be read"):
        snapshot_file.read(tmp_path)


def test_small_change_is_stored_as_a_delta(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    journal = Journal(file)
    journal.step(1)
    whole_bytes = file.stat().st_size
    for epoch in range(2, 6):
        journal.step(epoch)
        assert stored(file) == journal.content.snapshot
    assert file.stat().st_size < whole_bytes * 1.5


def test_deltas_that_outgrow_the_whole_are_folded_into_it(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    journal = Journal(file)
    for epoch in range(1, 60):
        journal.step(epoch)
    assert stored(file) == journal.content.snapshot
    whole_bytes = len(snapshots.encode(journal.content.snapshot))
    assert file.stat().st_size < whole_bytes * 2 + 20_000, "frames have lines of their own"


def test_a_crash_in_the_middle_of_an_append_costs_that_append_only(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    journal = Journal(file)
    journal.step(1)
    before_bytes = file.stat().st_size
    journal.step(2)
    good = file.read_bytes()
    for length in range(before_bytes, len(good)):
        file.write_bytes(good[:length])
        again = Journal(file)
        content = again.file.load()
        assert content is not None
        assert content.snapshot.epoch == 1
        again.content = content
        again.step(3)  # continues after the last whole frame, not after the torn one
        assert stored(file).epoch == 3


def test_a_flipped_byte_in_a_delta_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    journal = Journal(file)
    journal.step(1)
    before_bytes = file.stat().st_size
    journal.step(2)
    good = file.read_bytes()
    document_starts = good.index(b"\n", before_bytes) + 1
    for index in range(document_starts, len(good), 3):
        file.write_bytes(good[:index] + bytes([good[index] ^ 1]) + good[index + 1 :])
        with pytest.raises(SnapshotInvalid):
            snapshot_file.read(file)


def test_a_restart_goes_on_appending(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    journal = Journal(file)
    journal.step(1)
    journal.step(2)
    again = Journal(file)
    content = again.file.load()
    assert content == journal.content
    again.content = journal.content
    before_bytes = file.stat().st_size
    again.step(3)
    assert stored(file).epoch == 3
    assert file.stat().st_size < before_bytes * 1.5


def test_two_processes_that_share_a_file_do_not_spoil_it(tmp_path: Path) -> None:
    """This happens while a gateway drains beside its successor."""
    file = tmp_path / "snapshot.json"
    first, second = Journal(file), Journal(file)
    for epoch in range(1, 8):
        first.step(epoch)
        assert stored(file) == first.content.snapshot
        second.step(epoch)
        assert stored(file) == second.content.snapshot
