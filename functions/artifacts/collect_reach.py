"""Reachability in the store: every object that a named digest or a pointer needs.

Anything that cannot be read for certain stops the collection instead of being taken for garbage: a manifest with
other content than its digest says, a pointer that is no manifest, a store that does not answer. Only what the store
does not have at all is passed over, and reported: nothing can be kept of it.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from functions.api.ids import Digest
from functions.artifacts import manifest as manifests
from functions.artifacts.errors import ArtifactCorrupt, ArtifactMissing, ArtifactRefused
from functions.artifacts.locations import CHUNKS_PREFIX, MANIFESTS_PREFIX, chunk_key, manifest_key
from functions.artifacts.manifest import MANIFEST_MAX_BYTES, MANIFEST_NAME
from functions.artifacts.s3 import StoredObject
from functions.artifacts.workers import run_all

PARALLEL_READS = 8
COLLECTED_PREFIXES = (CHUNKS_PREFIX, MANIFESTS_PREFIX)

# Digests, or the beginnings of digests: a replica says `sha256:` and 16 hex digits of what its engine holds.
Roots = Callable[[], Iterable[str]]
_DIGEST_CHARS = len("sha256:") + 64


class CollectedStore(Protocol):
    """What collecting needs of a store; `S3Store` has it."""

    def list(self, prefix: str) -> Iterable[StoredObject]: ...

    def read_small(self, key: str, max_bytes: int) -> bytes: ...

    def put(self, key: str, body: bytes) -> None: ...

    def delete(self, keys: Iterable[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class Reach:
    keys: frozenset[str]  # of objects that must stay
    missing: frozenset[Digest]  # named, and not in the store


class _Version(msgspec.Struct):
    schema_version: int


class Reader:
    """Reads manifests once per collection: what a digest names does not change, what a pointer holds may."""

    def __init__(self, store: CollectedStore) -> None:
        self._store = store
        self._known: dict[Digest, frozenset[str]] = {}

    def reach(self, roots: Iterable[str], objects: Collection[StoredObject]) -> Reach:
        """What `roots` need, and what the pointers among `objects`, all that the store holds, need."""
        keys: set[str] = set()
        missing: set[Digest] = set()

        def follow_root(digest: Digest) -> None:
            try:
                keys.update(self._keys_of(digest))
            except ArtifactMissing:
                missing.add(digest)

        def follow_pointer(key: str) -> None:
            try:
                document = self._store.read_small(key, MANIFEST_MAX_BYTES)
            except ArtifactMissing:
                return  # an operator removed it since it was listed
            keys.update(_keys_named(document, key))

        run_all(follow_root, _whole_digests(roots, objects), parallel=PARALLEL_READS)
        run_all(follow_pointer, _pointers_in(objects), parallel=PARALLEL_READS)
        return Reach(frozenset(keys), frozenset(missing))

    def _keys_of(self, digest: Digest) -> frozenset[str]:
        known = self._known.get(digest)
        if known is None:
            key = manifest_key(manifests.hex_of(digest))
            document = self._store.read_small(key, MANIFEST_MAX_BYTES)
            if manifests.digest_of(document) != digest:
                raise ArtifactCorrupt(f"{key} has other content; nothing is collected until it is published again")
            known = self._known[digest] = _keys_named(document, key)
        return known


def _whole_digests(roots: Iterable[str], objects: Iterable[StoredObject]) -> set[Digest]:
    """The digests among `roots`, and those in the store that begin as a root does."""
    named = set(roots)
    beginnings = tuple(root for root in named if len(root) < _DIGEST_CHARS)
    stored = (
        "sha256:" + at.key.removeprefix(MANIFESTS_PREFIX) for at in objects if at.key.startswith(MANIFESTS_PREFIX)
    )
    found = {Digest(digest) for digest in stored if beginnings and digest.startswith(beginnings)}
    return found | {Digest(root) for root in named if len(root) >= _DIGEST_CHARS}


def _pointers_in(objects: Iterable[StoredObject]) -> list[str]:
    return [stored.key for stored in objects if stored.key.endswith("/" + MANIFEST_NAME) and not collected(stored.key)]


def collected(key: str) -> bool:
    """Whether an object is of a kind that is collected at all."""
    return key.startswith(COLLECTED_PREFIXES)


def _keys_named(document: bytes, where: str) -> frozenset[str]:
    """The manifest's own object and its chunks; for a manifest of schema 1, which nobody reads, its object alone."""
    own = manifest_key(manifests.hex_of(manifests.digest_of(document)))
    try:
        manifest = manifests.decode(document)
    except ArtifactRefused as error:
        if _is_schema_1(document):
            return frozenset({own})
        raise ArtifactCorrupt(f"{where} cannot be read, so nothing is collected: {error}") from error
    return frozenset({own, *(chunk_key(chunk.sha256) for chunk in manifest.chunks())})


def _is_schema_1(document: bytes) -> bool:
    try:
        return msgspec.json.decode(document, type=_Version).schema_version == 1
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
