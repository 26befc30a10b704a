"""Manifests: the list of an artifact's files and chunks, in bytes of exactly one form.

    digest = "sha256:" + hex(sha256(canonical bytes))

Canonical bytes are msgspec's deterministic JSON of `{"schema_version":2,"chunk_bytes","files":[{"path","size_bytes",
"sha256","chunks":[…]}…]}` with the files sorted by path. A document that decodes but is not in that form is rejected,
so that one artifact never has two digests. Paths are plain relative names, so that no manifest can write outside the
directory it is unpacked into.

Files are cut every `chunk_bytes`: chunk i of a file is its bytes [i * chunk_bytes, min((i + 1) * chunk_bytes, size));
an empty file has none. Chunks are transferred, stored and verified one by one. Worked example (test_worked_example):
one file `a.txt` holding "hi" is one chunk, whose hash is the file's own; the digest equals the sha256sum of the
manifest.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from functions.api.ids import DIGEST_PATTERN, Digest
from functions.artifacts.errors import ArtifactCorrupt, ArtifactRefused

SCHEMA_VERSION = 2
MANIFEST_NAME = "shoal-manifest.json"
PATH_MAX_DEPTH = 4
CHUNK_MIN_BYTES = 1024**2
CHUNK_DEFAULT_BYTES = 8 * 1024**2  # a peer sends one in under a second at 10 MB/s; 67 bytes of manifest each
CHUNK_MAX_BYTES = 64 * 1024**2  # one is held in memory while it is verified
CHUNKS_AIMED_AT = 8192  # 8192 * 67 bytes: half a MiB of manifest
MANIFEST_MAX_BYTES = 4 * 1024**2  # 2 TiB in the largest chunks are 32768 hashes, 2.2 MB
_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"  # no leading dot or dash: neither `..` nor an option
_PATH = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT}){{0,{PATH_MAX_DEPTH - 1}}}")
_DIGEST = re.compile(DIGEST_PATTERN)
# Names that Windows, for example on a network share, treats as devices.
_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))})

Sha256Hex = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


@dataclass(frozen=True, slots=True)
class ManifestLimits:
    """Size limits for artifacts of one kind."""

    max_files: int = 512
    max_file_bytes: int = 64 * 1024**3
    max_total_bytes: int = 2 * 1024**4


MODEL_LIMITS = ManifestLimits()
# Rank 512 on every projection of a 70B model is under 4 GiB; adapters in use are 10-200 MB.
ADAPTER_LIMITS = ManifestLimits(max_files=16, max_file_bytes=4 * 1024**3, max_total_bytes=4 * 1024**3)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of one file."""

    sha256: str
    size_bytes: int
    path: str
    offset_bytes: int


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    size_bytes: Annotated[int, msgspec.Meta(ge=0)]
    sha256: Sha256Hex
    chunks: tuple[Sha256Hex, ...]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    schema_version: Literal[2] = 2
    chunk_bytes: int = CHUNK_DEFAULT_BYTES
    files: tuple[FileEntry, ...]

    @property
    def total_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.files)

    def chunks(self) -> Iterator[Chunk]:
        """Yield every chunk in the order of files and offsets; repeated content is repeated."""
        for entry in self.files:
            for index, sha256 in enumerate(entry.chunks):
                offset_bytes = index * self.chunk_bytes
                size_bytes = min(self.chunk_bytes, entry.size_bytes - offset_bytes)
                yield Chunk(sha256, size_bytes, entry.path, offset_bytes)

    def distinct_chunks(self) -> tuple[Chunk, ...]:
        """Return the first occurrence of each distinct content. Their order is the order of all bitmaps."""
        first: dict[str, Chunk] = {}
        for chunk in self.chunks():
            first.setdefault(chunk.sha256, chunk)
        return tuple(first.values())


class _Version(msgspec.Struct):
    schema_version: int


def chunk_bytes_for(total_bytes: int) -> int:
    """Return the chunk size: the smallest power of two, from the default on, that makes at most 8192 chunks, but at
    most CHUNK_MAX_BYTES. Worked example (test_chunk_sizes): 2 GB are cut at 8 MiB, 140 GB at 32 MiB (4,173 chunks, 280
    kB of manifest)."""
    chunk_bytes = CHUNK_DEFAULT_BYTES
    while chunk_bytes < CHUNK_MAX_BYTES and total_bytes > chunk_bytes * CHUNKS_AIMED_AT:
        chunk_bytes *= 2
    return chunk_bytes


def encode(manifest: Manifest) -> bytes:
    """Return the manifest's canonical bytes: JSON without spaces, with files sorted by path."""
    ordered = msgspec.structs.replace(manifest, files=tuple(sorted(manifest.files, key=lambda entry: entry.path)))
    return msgspec.json.encode(ordered, order="deterministic")


def digest_of(document: bytes) -> Digest:
    """Return the digest that names these manifest bytes."""
    return Digest("sha256:" + hashlib.sha256(document).hexdigest())


def decode(document: bytes, limits: ManifestLimits = MODEL_LIMITS) -> Manifest:
    """Decode and check a manifest; raise ArtifactRefused if it is invalid, over the limits or not in canonical form."""
    if len(document) > MANIFEST_MAX_BYTES:
        raise ArtifactRefused(f"manifest of {len(document)} bytes is over the limit of {MANIFEST_MAX_BYTES}")
    try:
        _check_version(msgspec.json.decode(document, type=_Version).schema_version)
        manifest = msgspec.json.decode(document, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ArtifactRefused(f"not a manifest: {error}") from error
    check(manifest, limits)
    if encode(manifest) != document:
        raise ArtifactRefused("manifest is not in canonical form: fields in order, files sorted by path, no spaces")
    return manifest


def decode_verified(document: bytes, digest: Digest, limits: ManifestLimits = MODEL_LIMITS) -> Manifest:
    """Decode the manifest that `digest` names. Raise ArtifactCorrupt if the bytes have another digest, ArtifactRefused
    if the manifest is invalid."""
    found = digest_of(document)
    if found != digest:
        raise ArtifactCorrupt(f"manifest {digest} has the content of {found}")
    return decode(document, limits)


def check(manifest: Manifest, limits: ManifestLimits) -> None:
    """Raise ArtifactRefused unless paths are safe and unique, all limits hold and the chunks match the files."""
    if not 1 <= len(manifest.files) <= limits.max_files:
        raise ArtifactRefused(f"{len(manifest.files)} files; an artifact has 1 to {limits.max_files}")
    seen: set[str] = set()
    for entry in manifest.files:
        check_path(entry.path)
        if entry.size_bytes > limits.max_file_bytes:
            raise ArtifactRefused(
                f"{entry.path} has {entry.size_bytes} bytes, over the limit of {limits.max_file_bytes}"
            )
        folded = entry.path.lower()  # some file systems ignore case
        if folded in seen:
            raise ArtifactRefused(f"{entry.path} is named twice (upper and lower case count as the same)")
        seen.add(folded)
    _check_no_file_is_a_directory(seen)
    if manifest.total_bytes > limits.max_total_bytes:
        raise ArtifactRefused(f"{manifest.total_bytes} bytes in all, over the limit of {limits.max_total_bytes}")
    _check_chunks(manifest)


def check_path(path: str) -> None:
    """Raise ArtifactRefused unless `path` is a plain relative name that is safe to write to a disk and not the
    manifest's own."""
    if _PATH.fullmatch(path) is None:
        raise ArtifactRefused(f"file name {path[:200]!r} is not allowed: letters, digits, `._-`, no leading dot")
    if path.lower() == MANIFEST_NAME:
        raise ArtifactRefused(f"{path} is the manifest's own name")
    if any(part.partition(".")[0].lower() in _DEVICES for part in path.split("/")):
        raise ArtifactRefused(f"file name {path!r} is not allowed: some systems take it for a device")


def check_digest(text: str) -> Digest:
    """Return `text` as a digest; raise ArtifactRefused if it is not one."""
    if _DIGEST.fullmatch(text) is None:
        raise ArtifactRefused(f"{text[:100]!r} is not a digest: sha256: and 64 hex digits")
    return Digest(text)


def hex_of(digest: Digest) -> str:
    return check_digest(digest).removeprefix("sha256:")


def _check_version(version: int) -> None:
    if version != SCHEMA_VERSION:
        raise ArtifactRefused(
            f"manifest of schema {version}; this build reads {SCHEMA_VERSION}: publish the artifact again "
            "(`shoal up` does that for its own adapters, `shoal prepare` for base models)"
        )


def _check_no_file_is_a_directory(paths: set[str]) -> None:
    for path in paths:
        parts = path.split("/")
        for depth in range(1, len(parts)):
            parent = "/".join(parts[:depth])
            if parent in paths or parent == MANIFEST_NAME:
                raise ArtifactRefused(f"{parent} is named both as a file and as a directory")


def _check_chunks(manifest: Manifest) -> None:
    size = manifest.chunk_bytes
    if not CHUNK_MIN_BYTES <= size <= CHUNK_MAX_BYTES or size & (size - 1):
        raise ArtifactRefused(f"chunk_bytes {size} is not a power of two from {CHUNK_MIN_BYTES} to {CHUNK_MAX_BYTES}")
    for entry in manifest.files:
        expected = -(-entry.size_bytes // size)
        if len(entry.chunks) != expected:
            raise ArtifactRefused(f"{entry.path} of {entry.size_bytes} bytes has {len(entry.chunks)} chunks")
        if expected == 1 and entry.chunks[0] != entry.sha256:
            raise ArtifactRefused(f"{entry.path} is one chunk, and yet the two hashes differ")
    sizes: dict[str, int] = {}
    for chunk in manifest.chunks():
        if sizes.setdefault(chunk.sha256, chunk.size_bytes) != chunk.size_bytes:
            raise ArtifactRefused(f"chunk {chunk.sha256} has two sizes")
