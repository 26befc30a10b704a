"""Artifacts of a few bytes, for tests of the objects in a store rather than of their content."""

import hashlib
from dataclasses import dataclass

from functions.api.ids import Digest
from functions.artifacts import manifest as manifests
from functions.artifacts.locations import chunk_key, manifest_key
from functions.artifacts.manifest import CHUNK_MIN_BYTES, FileEntry, Manifest


@dataclass(frozen=True, slots=True)
class SmallArtifact:
    manifest: Manifest
    contents: tuple[str, ...]

    @property
    def document(self) -> bytes:
        return manifests.encode(self.manifest)

    @property
    def digest(self) -> Digest:
        return manifests.digest_of(self.document)

    @property
    def chunks(self) -> dict[str, bytes]:
        return {chunk_key(_sha256(content)): content.encode() for content in self.contents}

    @property
    def objects(self) -> dict[str, bytes]:
        """All objects of the artifact, by store key."""
        return {**self.chunks, manifest_key(manifests.hex_of(self.digest)): self.document}

    def chunk_of(self, content: str) -> str:
        return _sha256(content)


def artifact(*contents: str) -> SmallArtifact:
    """One file of one chunk for each content."""
    files = tuple(
        FileEntry(f"file{index}.txt", len(content), _sha256(content), (_sha256(content),))
        for index, content in enumerate(contents)
    )
    return SmallArtifact(Manifest(chunk_bytes=CHUNK_MIN_BYTES, files=files), contents)


def _sha256(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()
