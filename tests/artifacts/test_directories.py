"""Artifact directories: the digest covers all content, and a directory that differs from its digest is refused."""

import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from functions.artifacts import directories
from functions.artifacts.errors import ArtifactCorrupt, ArtifactMissing, ArtifactRefused, CacheFailed
from functions.artifacts.manifest import MANIFEST_NAME, ManifestLimits
from tests.artifacts.descriptors import no_descriptors

MIB = 1024**2


def make_directory(directory: Path) -> Path:
    (directory / "sub").mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "sub" / "weights.bin").write_bytes(b"\x01" * 3_000_000)
    return directory


def test_the_digest_depends_on_names_and_content_only(tmp_path: Path) -> None:
    first, second = make_directory(tmp_path / "a"), make_directory(tmp_path / "b")
    os.utime(second / "config.json", (0, 0))
    (second / "config.json").chmod(0o600)
    assert directories.write_manifest(first) == directories.write_manifest(second)
    (second / "config.json").write_text("{ }")
    assert directories.write_manifest(first) != directories.write_manifest(second)


def test_a_manifest_written_into_the_directory_does_not_change_its_digest(tmp_path: Path) -> None:
    made = make_directory(tmp_path / "a")
    digest = directories.write_manifest(made)
    assert directories.write_manifest(made) == digest
    assert directories.read_manifest(made)[0] == digest
    assert [entry.path for entry in directories.verify_directory(made, digest).files] == [
        "config.json",
        "sub/weights.bin",
    ]


def _flip_last_byte(made: Path) -> None:
    path = made / "sub" / "weights.bin"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (_flip_last_byte, "sub/weights.bin"),
        (lambda made: (made / "sub" / "weights.bin").write_bytes(b""), "sub/weights.bin"),
        (lambda made: (made / "config.json").unlink(), "config.json is missing"),
        (lambda made: (made / "more.txt").write_text("x"), "more.txt is extra"),
        (lambda made: (made / ".hidden").write_text("x"), ".hidden is extra"),
        (lambda made: (made / "link").symlink_to("/etc/hostname"), "link"),
        (lambda made: (made / MANIFEST_NAME).write_text("{}"), "has the content of"),
    ],
)
def test_damaged_directory_is_corrupt(tmp_path: Path, harm: Callable[[Path], object], words: str) -> None:
    made = make_directory(tmp_path / "a")
    digest = directories.write_manifest(made)
    harm(made)
    with pytest.raises(ArtifactCorrupt, match=words):
        directories.verify_directory(made, digest)


@pytest.mark.parametrize(
    "place",
    [
        lambda made: (made / "link").symlink_to(made / "config.json"),
        lambda made: (made / "linked").symlink_to(made / "sub", target_is_directory=True),
        lambda made: os.mkfifo(made / "pipe"),
        lambda made: (made / "with space").write_text("x"),
        lambda made: (made / ".git").mkdir() or (made / ".git" / "config").write_text("x"),
        lambda made: (made / "1/2/3/4/5").mkdir(parents=True),
    ],
)
def test_links_pipes_and_odd_names_are_refused(tmp_path: Path, place: Callable[[Path], object]) -> None:
    made = make_directory(tmp_path / "a")
    place(made)
    with pytest.raises(ArtifactRefused):
        directories.build_manifest(made)


def test_bounds_hold_while_reading(tmp_path: Path) -> None:
    made = make_directory(tmp_path / "a")
    with pytest.raises(ArtifactRefused, match="over the limit"):
        directories.build_manifest(made, ManifestLimits(max_file_bytes=1_000_000))
    with pytest.raises(ArtifactRefused, match="more than 1 files"):
        directories.build_manifest(made, ManifestLimits(max_files=1))


@pytest.mark.parametrize(("size_bytes", "chunks"), [(0, 0), (1, 1), (8 * MIB, 1), (8 * MIB + 1, 2), (20 * MIB, 3)])
def test_files_are_cut_and_hashed_in_one_pass(tmp_path: Path, size_bytes: int, chunks: int) -> None:
    content = random.Random(size_bytes).randbytes(size_bytes)
    (tmp_path / "a").write_bytes(content)
    manifest = directories.build_manifest(tmp_path)
    (entry,) = manifest.files
    assert entry.sha256 == hashlib.sha256(content).hexdigest()
    assert manifest.chunk_bytes == 8 * MIB
    cut = [content[begin : begin + 8 * MIB] for begin in range(0, size_bytes, 8 * MIB)]
    assert entry.chunks == tuple(hashlib.sha256(piece).hexdigest() for piece in cut)
    assert len(entry.chunks) == chunks


def test_a_directory_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ArtifactMissing):
        directories.build_manifest(tmp_path / "nowhere")
    with pytest.raises(ArtifactMissing):
        directories.read_manifest(tmp_path)


def test_an_empty_directory_is_no_artifact(tmp_path: Path) -> None:
    with pytest.raises(ArtifactRefused, match="0 files"):
        directories.build_manifest(tmp_path)


def test_lack_of_descriptors_is_not_reported_as_corruption(tmp_path: Path) -> None:
    """Otherwise it would discard every artifact that it verifies."""
    made = make_directory(tmp_path / "a")
    directories.write_manifest(made)
    _, manifest = directories.read_manifest(made)
    with no_descriptors(left=0):
        with pytest.raises(CacheFailed, match=r"config\.json"):
            directories.verify_file(made, manifest.files[0])
        with pytest.raises(CacheFailed):
            directories.read_manifest(made)


def test_a_device_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(ArtifactRefused, match="not a plain file"):
        directories.open_plain(Path("/dev/null"))
    with pytest.raises(ArtifactRefused):
        directories.open_plain(tmp_path)
