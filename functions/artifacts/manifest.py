"""Manifests: what an artifact is made of, in bytes that have exactly one form.

    digest = "sha256:" + hex(sha256(canonical bytes))

Canonical bytes are msgspec's deterministic JSON of `{"schema_version":1,"files":[{"path","size_bytes","sha256"}…]}`
with the files sorted by path. A document that decodes but is not in that form is refused: one artifact must never
have two digests. Paths are plain relative names, so that no manifest can write outside the directory it is unpacked
into. Worked example (test_worked_example): one file `a.txt` holding "hi" gives a manifest whose digest anyone can
recompute with sha256sum.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from functions.api.ids import DIGEST_PATTERN, Digest
from functions.artifacts.errors import ArtifactCorrupt, ArtifactRefused

MANIFEST_NAME = "shoal-manifest.json"
MANIFEST_MAX_BYTES = 1024 * 1024
PATH_MAX_DEPTH = 4
_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"  # no leading dot or dash: neither `..` nor an option
_PATH = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT}){{0,{PATH_MAX_DEPTH - 1}}}")
_DIGEST = re.compile(DIGEST_PATTERN)


@dataclass(frozen=True, slots=True)
class ManifestLimits:
    """How large an artifact of one kind may be. One PUT carries at most 5 GiB, and model shards are cut below that."""

    max_files: int = 512
    max_file_bytes: int = 5 * 1024**3
    max_total_bytes: int = 2 * 1024**4


MODEL_LIMITS = ManifestLimits()
# Rank 512 on every projection of a 70B model is under 4 GiB; adapters in use are 10-200 MB.
ADAPTER_LIMITS = ManifestLimits(max_files=16, max_file_bytes=4 * 1024**3, max_total_bytes=4 * 1024**3)


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    size_bytes: Annotated[int, msgspec.Meta(ge=0)]
    sha256: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    schema_version: Literal[1] = 1
    files: tuple[FileEntry, ...]

    @property
    def total_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.files)


def encode(manifest: Manifest) -> bytes:
    """The manifest's canonical bytes."""
    ordered = msgspec.structs.replace(manifest, files=tuple(sorted(manifest.files, key=lambda entry: entry.path)))
    return msgspec.json.encode(ordered, order="deterministic")


def digest_of(document: bytes) -> Digest:
    """The digest that names these manifest bytes."""
    return Digest("sha256:" + hashlib.sha256(document).hexdigest())


def decode(document: bytes, limits: ManifestLimits = MODEL_LIMITS) -> Manifest:
    """A manifest from its bytes; ArtifactRefused says what is wrong with them."""
    if len(document) > MANIFEST_MAX_BYTES:
        raise ArtifactRefused(f"manifest of {len(document)} bytes is over the limit of {MANIFEST_MAX_BYTES}")
    try:
        manifest = msgspec.json.decode(document, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ArtifactRefused(f"not a manifest: {error}") from error
    check(manifest, limits)
    if encode(manifest) != document:
        raise ArtifactRefused("manifest is not in canonical form: fields in order, files sorted by path, no spaces")
    return manifest


def decode_verified(document: bytes, digest: Digest, limits: ManifestLimits = MODEL_LIMITS) -> Manifest:
    """A manifest whose bytes are those that `digest` names; ArtifactCorrupt where they are others."""
    found = digest_of(document)
    if found != digest:
        raise ArtifactCorrupt(f"manifest {digest} has the content of {found}")
    return decode(document, limits)


def check(manifest: Manifest, limits: ManifestLimits) -> None:
    """Raise ArtifactRefused unless every path is safe and unique and every bound holds."""
    if not 1 <= len(manifest.files) <= limits.max_files:
        raise ArtifactRefused(f"{len(manifest.files)} files; an artifact has 1 to {limits.max_files}")
    seen: set[str] = set()
    for entry in manifest.files:
        check_path(entry.path)
        if entry.size_bytes > limits.max_file_bytes:
            raise ArtifactRefused(
                f"{entry.path} has {entry.size_bytes} bytes, over the limit of {limits.max_file_bytes}"
            )
        folded = entry.path.lower()  # two names that one file system keeps apart and another does not
        if folded in seen:
            raise ArtifactRefused(f"{entry.path} is named twice (upper and lower case count as the same)")
        seen.add(folded)
    _check_no_file_is_a_directory(seen)
    if manifest.total_bytes > limits.max_total_bytes:
        raise ArtifactRefused(f"{manifest.total_bytes} bytes in all, over the limit of {limits.max_total_bytes}")


def check_path(path: str) -> None:
    """Raise ArtifactRefused unless `path` is a plain relative name that we would write to a disk."""
    if _PATH.fullmatch(path) is None:
        raise ArtifactRefused(f"file name {path[:200]!r} is not allowed: letters, digits, `._-`, no leading dot")
    if path.lower() == MANIFEST_NAME:
        raise ArtifactRefused(f"{path} is the manifest's own name")


def check_digest(text: str) -> Digest:
    """`text` as a digest; ArtifactRefused where it is none."""
    if _DIGEST.fullmatch(text) is None:
        raise ArtifactRefused(f"{text[:100]!r} is not a digest: sha256: and 64 hex digits")
    return Digest(text)


def hex_of(digest: Digest) -> str:
    return check_digest(digest).removeprefix("sha256:")


def _check_no_file_is_a_directory(paths: set[str]) -> None:
    for path in paths:
        parts = path.split("/")
        for depth in range(1, len(parts)):
            parent = "/".join(parts[:depth])
            if parent in paths or parent == MANIFEST_NAME:
                raise ArtifactRefused(f"{parent} is named both as a file and as a directory")
