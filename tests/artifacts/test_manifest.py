"""Manifests have one form, safe names and bounds; any other document is refused with a message."""

import hashlib
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.api.ids import Digest
from functions.artifacts import manifest as manifests
from functions.artifacts.errors import ArtifactCorrupt, ArtifactRefused
from functions.artifacts.manifest import FileEntry, Manifest, ManifestLimits

_SEGMENTS = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True)
_PATHS = st.lists(_SEGMENTS, min_size=1, max_size=3).map("/".join)
_HASHES = st.binary(min_size=32, max_size=32).map(bytes.hex)
MIB = 1024**2


def sized(path: str, size_bytes: int, hashes: list[str]) -> FileEntry:
    """Return a file of that size whose chunk hashes cycle through `hashes`."""
    count = -(-size_bytes // MIB)
    chunks = tuple(hashes[index % len(hashes)] for index in range(count))
    sha256 = chunks[0] if count == 1 else hashes[-1]
    return FileEntry(path=path, size_bytes=size_bytes, sha256=sha256, chunks=chunks)


_ENTRIES = st.builds(sized, _PATHS, st.integers(0, 12 * MIB), st.lists(_HASHES, min_size=1, max_size=6))


def entry(path: str, content: bytes = b"") -> FileEntry:
    sha256 = hashlib.sha256(content).hexdigest()
    return FileEntry(path=path, size_bytes=len(content), sha256=sha256, chunks=(sha256,) if content else ())


def usable(manifest: Manifest) -> bool:
    try:
        manifests.check(manifest, manifests.MODEL_LIMITS)
    except ArtifactRefused:
        return False
    return True


def test_worked_example() -> None:
    document = manifests.encode(Manifest(files=(entry("a.txt", b"hi"),)))
    assert document == (
        b'{"schema_version":2,"chunk_bytes":8388608,"files":[{"path":"a.txt","size_bytes":2,'
        b'"sha256":"8f434346648f6b96df89dda901c5176b10a6d83961dd3c1ac88b59b2dc327aa4",'
        b'"chunks":["8f434346648f6b96df89dda901c5176b10a6d83961dd3c1ac88b59b2dc327aa4"]}]}'
    )
    assert manifests.digest_of(document) == "sha256:" + hashlib.sha256(document).hexdigest()


def test_chunk_sizes() -> None:
    gib = 1024**3
    sizes = {
        total: manifests.chunk_bytes_for(total) // MIB for total in (0, 10**9, 64 * gib, 64 * gib + 1, 140 * 10**9)
    }
    assert list(sizes.values()) == [8, 8, 8, 16, 32]
    chunks = -(-140 * 10**9 // (32 * MIB))
    assert (chunks, round(chunks * 67 / 1000)) == (4173, 280)
    largest = manifests.MODEL_LIMITS.max_total_bytes
    assert largest // manifests.chunk_bytes_for(largest) * 67 < manifests.MANIFEST_MAX_BYTES


@given(st.lists(_ENTRIES, min_size=1, max_size=5))
def test_the_chunks_cover_every_file_once_and_in_order(entries: list[FileEntry]) -> None:
    manifest = Manifest(chunk_bytes=MIB, files=tuple(entries))
    assert sum(chunk.size_bytes for chunk in manifest.chunks()) == manifest.total_bytes
    for one in {two.path: two for two in entries}.values():
        own = list(Manifest(chunk_bytes=MIB, files=(one,)).chunks())
        assert [chunk.offset_bytes for chunk in own] == list(range(0, one.size_bytes, MIB))
        assert all(0 < chunk.size_bytes <= MIB for chunk in own)
    distinct = manifest.distinct_chunks()
    assert len({chunk.sha256 for chunk in distinct}) == len(distinct)
    assert {chunk.sha256 for chunk in distinct} == {chunk.sha256 for chunk in manifest.chunks()}


@given(st.lists(_ENTRIES, min_size=1, max_size=8), st.randoms())
def test_the_order_of_files_never_changes_the_digest(entries: list[FileEntry], random: object) -> None:
    shuffled = list(entries)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    unique = {one.path: one for one in entries}
    first = Manifest(chunk_bytes=MIB, files=tuple(unique.values()))
    second = Manifest(
        chunk_bytes=MIB, files=tuple(unique[one.path] for one in {two.path: two for two in shuffled}.values())
    )
    assert manifests.encode(first) == manifests.encode(second)


@given(st.lists(_ENTRIES, min_size=1, max_size=8))
def test_canonical_bytes_decode_to_the_same_manifest(entries: list[FileEntry]) -> None:
    manifest = Manifest(chunk_bytes=MIB, files=tuple(entries))
    document = manifests.encode(manifest)
    if not usable(manifest):
        with pytest.raises(ArtifactRefused):
            manifests.decode(document)
        return
    decoded = manifests.decode(document)
    assert set(decoded.files) == set(entries)
    assert manifests.encode(decoded) == document


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused_and_nothing_else_is_raised(document: bytes) -> None:
    with pytest.raises(ArtifactRefused):
        manifests.decode(document)


@given(st.text(max_size=60))
def test_no_accepted_path_leaves_its_directory(path: str) -> None:
    try:
        manifests.check_path(path)
    except ArtifactRefused:
        return
    root = Path("/cache/root")
    target = (root / path).resolve()
    assert target.is_relative_to(root)
    assert target != root
    assert not any(part.startswith((".", "-")) for part in Path(path).parts)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../up",
        "a/../../up",
        "a//b",
        "a/",
        ".hidden",
        "-rf",
        "a\\b",
        "a\0b",
        "a\n",
        "ä",
        "a b",
        "a/b/c/d/e",
        "x" * 129,
        "shoal-manifest.json",
        "Shoal-Manifest.json",
        "con",
        "a/NUL.txt",
        "lpt1.json",
    ],
)
def test_refuses_the_path(path: str) -> None:
    with pytest.raises(ArtifactRefused):
        manifests.decode(manifests.encode(Manifest(files=(entry(path),))))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ((), "0 files"),
        ((entry("a"), entry("a")), "twice"),
        ((entry("a"), entry("A")), "twice"),
        ((entry("a"), entry("a/b")), "both as a file and as a directory"),
        ((entry("shoal-manifest.json/a"),), "both as a file and as a directory"),
        (tuple(entry(str(number)) for number in range(4)), "4 files"),
        ((entry("a", b"12345678901"),), "over the limit of 10"),
        ((entry("a", b"12345678"), entry("b", b"12345678")), "16 bytes in all"),
    ],
)
def test_refuses_what_is_out_of_bounds(files: tuple[FileEntry, ...], words: str) -> None:
    limits = ManifestLimits(max_files=3, max_file_bytes=10, max_total_bytes=15)
    with pytest.raises(ArtifactRefused, match=words):
        manifests.decode(manifests.encode(Manifest(files=files)), limits)


def _altered(**changes: object) -> bytes:
    document = json.loads(manifests.encode(Manifest(files=(entry("a"), entry("b")))))
    return json.dumps({**document, **changes}, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"null",
        b"[" * 100_000,
        _altered(schema_version=3),
        _altered(chunk_bytes=512 * 1024),
        _altered(chunk_bytes=128 * MIB),
        _altered(chunk_bytes=3 * MIB),
        _altered(chunk_bytes=0),
        _altered(chunk_bytes=-MIB),
        _altered(extra=1),
        _altered(files=[{"path": "a", "size_bytes": -1, "sha256": "0" * 64, "chunks": []}]),
        _altered(files=[{"path": "a", "size_bytes": 1, "sha256": "0" * 63, "chunks": ["0" * 63]}]),
        _altered(files=[{"path": "a", "size_bytes": 1, "sha256": "G" * 64, "chunks": ["G" * 64]}]),
        _altered(files=[{"path": "a", "size_bytes": 1, "sha256": "0" * 64 + "\n", "chunks": ["0" * 64 + "\n"]}]),
        _altered(files=list(reversed(json.loads(_altered())["files"]))),
        _altered() + b"\n",
        json.dumps(json.loads(_altered())).encode(),
        b" " * (manifests.MANIFEST_MAX_BYTES + 1),
    ],
)
def test_refuses_the_document(document: bytes) -> None:
    with pytest.raises(ArtifactRefused):
        manifests.decode(document)


def test_bytes_under_another_digest_are_corrupt() -> None:
    document = manifests.encode(Manifest(files=(entry("a"),)))
    assert manifests.decode_verified(document, manifests.digest_of(document)).files == (entry("a"),)
    with pytest.raises(ArtifactCorrupt, match="has the content of"):
        manifests.decode_verified(document, Digest("sha256:" + "0" * 64))


@pytest.mark.parametrize(
    "text", ["", "sha256:", "sha256:" + "0" * 63, "sha256:" + "A" * 64, "sha256:" + "0" * 64 + "\n"]
)
def test_refuses_the_digest(text: str) -> None:
    with pytest.raises(ArtifactRefused):
        manifests.check_digest(text)


def test_unknown_fields_of_a_file_are_refused() -> None:
    raw = msgspec.json.encode(
        {
            "schema_version": 2,
            "chunk_bytes": MIB,
            "files": [{"path": "a", "size_bytes": 0, "sha256": "0" * 64, "chunks": [], "mode": 777}],
        }
    )
    with pytest.raises(ArtifactRefused, match="mode"):
        manifests.decode(raw)


_A, _B = "a" * 64, "b" * 64


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ((FileEntry("a", 1, _A, ()),), "has 0 chunks"),
        ((FileEntry("a", 0, _A, (_A,)),), "has 1 chunks"),
        ((FileEntry("a", MIB, _A, (_A, _B)),), "has 2 chunks"),
        ((FileEntry("a", MIB + 1, _A, (_A,)),), "has 1 chunks"),
        ((FileEntry("a", 5, _A, (_B,)),), "the two hashes differ"),
        ((FileEntry("a", MIB + 1, _A, (_B, _B)),), "two sizes"),
        ((FileEntry("a", 5, _A, (_A,)), FileEntry("b", 6, _A, (_A,))), "two sizes"),
    ],
)
def test_refuses_chunks_that_cannot_make_the_files(files: tuple[FileEntry, ...], words: str) -> None:
    with pytest.raises(ArtifactRefused, match=words):
        manifests.decode(manifests.encode(Manifest(chunk_bytes=MIB, files=files)))


def test_former_manifest_format_is_refused_with_instructions() -> None:
    former = b'{"schema_version":1,"files":[{"path":"a","size_bytes":0,"sha256":"' + b"0" * 64 + b'"}]}'
    with pytest.raises(ArtifactRefused, match=r"schema 1; this build reads 2: publish the artifact again"):
        manifests.decode(former)
