"""Assemble artifacts from chunks in any order and by any writer; unverified content is never visible."""

import hashlib
import random
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.api.ids import Digest
from functions.artifacts import directories
from functions.artifacts import manifest as manifests
from functions.artifacts.assembly import PROGRESS_NAME, TREE_NAME, Assembly
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.errors import ArtifactCorrupt, ArtifactRefused, CacheFailed
from functions.artifacts.manifest import Chunk, FileEntry, Manifest

MIB = 1024**2


class Source:
    """An artifact in memory, cut at 1 MiB so that a few MiB are many chunks."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.manifest = Manifest(chunk_bytes=MIB, files=tuple(self._entry(path) for path in sorted(files)))
        self.document = manifests.encode(self.manifest)
        self.digest = manifests.digest_of(self.document)

    def _entry(self, path: str) -> FileEntry:
        content = self.files[path]
        chunks = tuple(
            hashlib.sha256(content[offset : offset + MIB]).hexdigest() for offset in range(0, len(content), MIB)
        )
        return FileEntry(path, len(content), hashlib.sha256(content).hexdigest(), chunks)

    def read(self, chunk: Chunk) -> bytes:
        return self.files[chunk.path][chunk.offset_bytes :][: chunk.size_bytes]

    def open(self, cache: ArtifactCache) -> Assembly:
        return Assembly.open(cache, self.digest, self.document)


def source(seed: int = 0) -> Source:
    """Five chunks, two of them of equal content, one file in a folder, one file empty."""
    made = random.Random(seed)
    twice = made.randbytes(MIB)
    weights = twice + made.randbytes(MIB) + twice + made.randbytes(1000)
    return Source({"sub/weights": weights, "config": made.randbytes(50), "empty": b""})


def test_chunks_in_any_order_make_the_artifact(tmp_path: Path) -> None:
    cache, made = ArtifactCache(tmp_path), source()
    with cache.single_flight(made.digest):
        assembly = made.open(cache)
        chunks = assembly.missing()
        assert len(chunks) == 4  # the repeated chunk is transferred once
        random.Random(1).shuffle(chunks)
        for chunk in chunks:
            assert not cache.held(made.digest)
            assembly.put(chunk, made.read(chunk))
        path = assembly.finish()
    assert cache.held(made.digest)
    assert not cache.partial_path(made.digest).exists()
    assert {name: (path / name).read_bytes() for name in made.files} == made.files
    directories.verify_directory(path, made.digest)
    modes = {found.name: found.stat().st_mode & 0o777 for found in (path, *path.rglob("*"))}
    assert modes["sub"] == modes[path.name] == 0o755
    assert modes["weights"] == modes["shoal-manifest.json"] == 0o444


@settings(max_examples=20, deadline=None)
@given(st.sets(st.integers(0, 3)), st.sets(st.integers(0, 3)))
def test_resumed_assembly_does_not_request_chunks_again(
    tmp_path_factory: pytest.TempPathFactory, first: set[int], second: set[int]
) -> None:
    cache, made = ArtifactCache(tmp_path_factory.mktemp("cache")), source()
    for done in (first, second, {0, 1, 2, 3}):  # each time a new Assembly, as after a kill
        assembly = made.open(cache)
        for position in done:
            assembly.put(assembly.chunks[position], made.read(assembly.chunks[position]))
    resumed = made.open(cache)
    assert resumed.complete
    assert resumed.finish() == cache.path_of(made.digest)
    partly = source(seed=1)
    assembly = partly.open(cache)
    for position in first:
        assembly.put(assembly.chunks[position], partly.read(assembly.chunks[position]))
    again = partly.open(cache)
    assert [again.chunks.index(chunk) for chunk in again.missing()] == sorted({0, 1, 2, 3} - first)
    assert list(again.have) == [int(position in first) for position in range(4)]


def test_a_corrupt_chunk_changes_nothing(tmp_path: Path) -> None:
    cache, made = ArtifactCache(tmp_path), source()
    assembly = made.open(cache)
    chunk = assembly.missing()[0]
    for bad in (b"", made.read(chunk)[:-1], made.read(chunk) + b"\0", bytes(chunk.size_bytes)):
        with pytest.raises(ArtifactCorrupt, match=f"chunks/sha256/{chunk.sha256} of {chunk.path} arrived corrupt"):
            assembly.put(chunk, bad)
    assert len(assembly.missing()) == 4
    assert assembly.read(chunk.sha256) is None


def test_many_threads_may_put_at_once(tmp_path: Path) -> None:
    cache, made = ArtifactCache(tmp_path), source()
    assembly = made.open(cache)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda chunk: assembly.put(chunk, made.read(chunk)), assembly.missing() * 5))
    assert assembly.finish().is_dir()


def test_peer_reads_only_present_chunks(tmp_path: Path) -> None:
    cache, made = ArtifactCache(tmp_path), source()
    assembly = made.open(cache)
    chunk, other, *_ = assembly.missing()
    assembly.put(chunk, made.read(chunk))
    assert assembly.read(chunk.sha256) == made.read(chunk)
    assert assembly.read(other.sha256) is None
    assert assembly.read("0" * 64) is None


def test_corrupt_partial_chunk_is_detected_and_fetched_again(tmp_path: Path) -> None:
    cache, made = ArtifactCache(tmp_path), source()
    assembly = made.open(cache)
    for chunk in assembly.missing():
        assembly.put(chunk, made.read(chunk))
    weights = cache.partial_path(made.digest) / TREE_NAME / "sub" / "weights"
    with weights.open("r+b") as file:  # as after a power cut: marked as written but not on disk
        file.seek(MIB)
        file.write(bytes(MIB))
    (weights.parent.parent / "config").write_bytes(bytes(50))
    with pytest.raises(ArtifactCorrupt, match="has other content"):
        assembly.finish()
    assert not cache.held(made.digest)
    bad = made.open(cache).missing()
    assert [(chunk.path, chunk.offset_bytes) for chunk in bad] == [("config", 0), ("sub/weights", MIB)]
    for chunk in bad:
        assembly.put(chunk, made.read(chunk))
    assert assembly.finish().is_dir()


def test_incomplete_assembly_cannot_be_finished(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="4 chunks are missing"):
        source().open(ArtifactCache(tmp_path)).finish()


@pytest.mark.parametrize("harm", ["progress short", "progress odd", "file short", "file gone"])
def test_damaged_partial_is_started_again(tmp_path: Path, harm: str) -> None:
    cache, made = ArtifactCache(tmp_path), source()
    assembly = made.open(cache)
    assembly.put(assembly.chunks[0], made.read(assembly.chunks[0]))
    folder = cache.partial_path(made.digest)
    if harm.startswith("progress"):
        (folder / PROGRESS_NAME).write_bytes(b"\x01" if harm.endswith("short") else b"\x01\x02\x00\x00")
    elif harm.endswith("short"):
        (folder / TREE_NAME / "config").write_bytes(b"")
    else:
        (folder / TREE_NAME / "config").unlink()
    again = made.open(cache)
    assert len(again.missing()) == 4
    for chunk in again.missing():
        again.put(chunk, made.read(chunk))
    assert again.finish().is_dir()


def test_a_manifest_whose_hashes_contradict_each_other_is_refused_not_retried(tmp_path: Path) -> None:
    honest = source()
    weights = honest.manifest.files[-1]
    lying = FileEntry(weights.path, weights.size_bytes, "0" * 64, weights.chunks)
    document = manifests.encode(Manifest(chunk_bytes=MIB, files=(lying,)))
    cache = ArtifactCache(tmp_path)
    assembly = Assembly.open(cache, manifests.digest_of(document), document)
    for chunk in assembly.missing():
        assembly.put(chunk, honest.read(chunk))
    with pytest.raises(ArtifactRefused, match="contradicts itself"):
        assembly.finish()
    assert not cache.held(assembly.digest)


def test_the_document_must_be_that_of_the_digest(tmp_path: Path) -> None:
    with pytest.raises(ArtifactCorrupt, match="has the content of"):
        Assembly.open(ArtifactCache(tmp_path), Digest("sha256:" + "0" * 64), source().document)


def test_full_disk_is_reported_before_fetching(tmp_path: Path) -> None:
    count = 2 * 1024**4 // (64 * MIB) - 1
    huge = [FileEntry(f"f{part}", 64 * 1024**3, "0" * 64, ("a" * 64,) * 1024) for part in range(count // 1024)]
    document = manifests.encode(Manifest(chunk_bytes=64 * MIB, files=tuple(huge)))
    cache = ArtifactCache(tmp_path)
    with pytest.raises(CacheFailed, match="bytes and 67108864 to spare"):
        Assembly.open(cache, manifests.digest_of(document), document)


def test_failed_chunk_write_is_reported_and_keeps_earlier_chunks(tmp_path: Path) -> None:
    cache, made = ArtifactCache(tmp_path), source()
    assembly = made.open(cache)
    first, second, *_ = assembly.missing()
    assembly.put(first, made.read(first))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # every write fails, as on a full disk
    try:
        with pytest.raises(CacheFailed, match="cannot be written to the cache"):
            assembly.put(second, made.read(second))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert second in assembly.missing()
    resumed = made.open(cache)
    assert first not in resumed.missing()
    for chunk in resumed.missing():
        resumed.put(chunk, made.read(chunk))
    assert resumed.finish().is_dir()


def test_unwritable_cache_is_reported(tmp_path: Path) -> None:
    (tmp_path / "partial").write_text("a file where the folder should be")
    with pytest.raises(CacheFailed, match="cannot be written"):
        source().open(ArtifactCache(tmp_path))
