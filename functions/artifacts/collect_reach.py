"""Reachability in the store: every object that a named digest or a pointer needs.

Any object that cannot be read reliably stops the collection: a manifest whose content does not match its digest, a
pointer that is not a manifest, a store that does not answer. Only objects that the store does not have are skipped
and reported.
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

# Digests, or prefixes of digests: a replica reports `sha256:` and 16 hex digits for what its engine holds.
Roots = Callable[[], Iterable[str]]
_DIGEST_CHARS = len("sha256:") + 64


class CollectedStore(Protocol):
    """Store operations that collection needs; `S3Store` has them."""

    def list(self, prefix: str) -> Iterable[StoredObject]: ...

    def read_small(self, key: str, max_bytes: int) -> bytes: ...

    def put(self, key: str, body: bytes) -> None: ...

    def delete(self, keys: Iterable[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class Reach:
    keys: frozenset[str]  # objects that must stay
    missing: frozenset[Digest]  # digests that are named, but not in the store


class _Version(msgspec.Struct):
    schema_version: int


class ManifestReader:
    """Reads each manifest once per collection. Pointers are read each time, because their content may change."""

    def __init__(self, store: CollectedStore) -> None:
        self._store = store
        self._known: dict[Digest, frozenset[str]] = {}

    def reach(self, roots: Iterable[str], objects: Collection[StoredObject]) -> Reach:
        """Return the keys that `roots` and the pointers among `objects` need, and the roots whose manifest is missing.
        `objects` lists everything in the store."""
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
                return  # removed by an operator since the listing
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
    """Return the digests among `roots`, and the stored digests that start with a root that is a prefix."""
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
    """Return True if the object with this key is of a kind that is collected at all."""
    return key.startswith(COLLECTED_PREFIXES)


def _keys_named(document: bytes, where: str) -> frozenset[str]:
    """Return the keys of the manifest's own object and its chunks; for a manifest of the obsolete schema 1, its object
    alone. Raise ArtifactCorrupt if the document cannot be read."""
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
