"""Digest of the folder that an engine is started from; the folder is rarely read in full."""

import os
from pathlib import Path

import pytest

from functions.artifacts import directories
from functions.artifacts.errors import ArtifactError
from functions.artifacts.loaded_weights import MAX_NOTES, weights_digest
from functions.artifacts.manifest import MANIFEST_NAME
from tests.artifacts.test_base_folder import model


class Reads:
    """Counter of the times that a folder was read in full."""

    def __init__(self, notes: Path) -> None:
        self.notes, self.folders = notes, list[Path]()

    def digest(self, folder: Path) -> str:
        return weights_digest(folder, self.notes, hashed=self.folders.append)


@pytest.fixture
def reads(tmp_path: Path) -> Reads:
    return Reads(tmp_path / "notes")


def rewrite(file: Path, text: str, seconds: int = 0) -> None:
    """Overwrite a file as copying another model over this one does; the file's time is `seconds` after now."""
    file.write_text(text)
    times_ns = file.stat().st_mtime_ns + seconds * 10**9
    os.utime(file, ns=(times_ns, times_ns))


def test_weights_digest_is_the_same_without_a_manifest(tmp_path: Path, reads: Reads) -> None:
    """Otherwise a replica on a plain copy would seem to have other weights than one that fetched them."""
    folder = model(tmp_path / "llama")
    by_content = reads.digest(folder)
    assert directories.write_manifest(folder) == by_content == reads.digest(folder)
    assert len(reads.folders) == 1, "the manifest says it"


def test_a_folder_is_read_once_a_node_and_again_when_a_file_changes(tmp_path: Path, reads: Reads) -> None:
    folder = model(tmp_path / "llama")
    first = reads.digest(folder)
    assert reads.digest(folder) == first and len(reads.folders) == 1
    rewrite(folder / "tokenizer.json", "[]", seconds=1)  # as many bytes
    second = reads.digest(folder)
    assert second != first and len(reads.folders) == 2
    assert directories.write_manifest(folder) == second


def test_manifest_older_than_a_file_is_ignored(tmp_path: Path, reads: Reads) -> None:
    """Copying weights over others does not change the manifest, so the manifest alone would hide the change."""
    folder = model(tmp_path / "llama")
    old = directories.write_manifest(folder)
    rewrite(folder / "tokenizer.json", "[]", seconds=1)
    assert reads.digest(folder) != old


@pytest.mark.parametrize("change", ["more", "less"])
def test_manifest_of_other_files_is_ignored(tmp_path: Path, reads: Reads, change: str) -> None:
    folder = model(tmp_path / "llama")
    old = directories.write_manifest(folder)
    if change == "more":
        (folder / "model-2.safetensors").write_bytes(b"more")
        os.utime(folder / "model-2.safetensors", (1, 1))
    else:
        (folder / "tokenizer.json").unlink()
    assert reads.digest(folder) != old


def test_hidden_files_do_not_invalidate_the_manifest(tmp_path: Path, reads: Reads) -> None:
    folder = model(tmp_path / "llama")
    old = directories.write_manifest(folder)
    (folder / f".{MANIFEST_NAME}.77").write_text("left by a process that was killed")
    assert reads.digest(folder) == old and not reads.folders


def test_truncated_note_is_ignored(tmp_path: Path, reads: Reads) -> None:
    folder = model(tmp_path / "llama")
    first = reads.digest(folder)
    (note,) = reads.notes.glob("*.json")
    note.write_bytes(note.read_bytes()[:20])
    assert reads.digest(folder) == first and len(reads.folders) == 2


def test_number_of_notes_is_bounded(tmp_path: Path, reads: Reads) -> None:
    for number in range(MAX_NOTES + 3):
        (tmp_path / f"m{number}").mkdir()
        (tmp_path / f"m{number}" / "config.json").write_text("{}")
        reads.digest(tmp_path / f"m{number}")
    assert len(list(reads.notes.iterdir())) == MAX_NOTES


def test_a_folder_that_is_no_artifact_has_no_digest(tmp_path: Path, reads: Reads) -> None:
    with pytest.raises(ArtifactError):
        reads.digest(tmp_path / "nothing")
    folder = model(tmp_path / "llama")
    (folder / "link").symlink_to("config.json")
    with pytest.raises(ArtifactError):
        reads.digest(folder)
