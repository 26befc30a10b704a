"""Publish artifacts: chunks first, then the manifest, then the pointer, so that nothing ever points at missing content.

Garbage collection that started before the pointer existed may delete some content; that is put again (`collect`).
Publishing is idempotent and can be killed at any point: missing objects are put, and a second run finishes the first.
Content that the store already has, from any artifact, is not sent again. It is read back, though: an object with
corrupt bytes has the right size and name, and is replaced (test_publishing_again_repairs_corrupt_objects).
"""

import functools
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from functions.api.ids import Digest
from functions.artifacts import directories
from functions.artifacts import manifest as manifests
from functions.artifacts.errors import ArtifactCorrupt, ArtifactMissing, ArtifactRefused, StoreUnavailable, VersionTaken
from functions.artifacts.locations import SWEEPING_KEY, ArtifactLocation, chunk_key, manifest_key, parse_artifact_uri
from functions.artifacts.manifest import ADAPTER_LIMITS, MANIFEST_MAX_BYTES, Chunk, Manifest, ManifestLimits
from functions.artifacts.s3 import S3Store
from functions.artifacts.workers import run_all

PARALLEL_PUTS = 4  # 32 MiB in memory at the default chunk size
_SWEEP_POLL_S = 0.2
_SWEEP_WAIT_S = 60.0  # a sweep takes seconds
_SWEEP_MAX_S = 900.0  # a sweep that began earlier was killed


def publish_directory(
    store: S3Store,
    directory: Path,
    artifact_uri: str,
    *,
    limits: ManifestLimits = ADAPTER_LIMITS,
    replace: bool = False,
) -> Digest:
    """Publish the files of `directory` under `artifact_uri` and return the digest. Blocks: run it in a thread.

    Raise VersionTaken if the URI already points at other content, since versions do not change. With `replace` the
    pointer moves all the same, for a source that is itself authoritative (adapters kept in git).
    """
    location = parse_artifact_uri(artifact_uri, bucket=store.bucket)
    manifest = directories.build_manifest(directory, limits)
    document = manifests.encode(manifest)
    if not replace:
        _check_free(store, location, document)  # avoids uploading in vain
    put_content(store, directory, manifest)
    point(store, location, document, replace=replace)
    return put_content(store, directory, manifest, reread=False)


def point(store: S3Store, location: ArtifactLocation, document: bytes, *, replace: bool = False) -> None:
    """Point the URI at the manifest, then wait for the end of a sweep that may have started before. The caller must put
    the content again, since the sweep may have deleted some. Unless `replace`, raise VersionTaken if the URI points at
    other content."""
    if replace or not (store.put_new(location.pointer_key, document) or _check_free(store, location, document)):
        store.put(location.pointer_key, document)
    _outlast_sweep(store)


def publish_content(store: S3Store, directory: Path, limits: ManifestLimits = ADAPTER_LIMITS) -> Digest:
    """Publish the files of `directory` under their digest alone, without a pointer, and return the digest."""
    return put_content(store, directory, directories.build_manifest(directory, limits))


def put_content(store: S3Store, directory: Path, manifest: Manifest, *, reread: bool = True) -> Digest:
    """Put the objects of `manifest` that the store lacks; the manifest comes last. Its files are in `directory`.
    `reread` is False only if all content has just been put or read: then comparing sizes is enough."""
    put = functools.partial(_put_chunk, store, directory, reread=reread)
    run_all(put, manifest.distinct_chunks(), parallel=PARALLEL_PUTS)
    return put_manifest(store, manifest)


def put_manifest(store: S3Store, manifest: Manifest) -> Digest:
    """Put the manifest under its digest, replacing a corrupt one, and return the digest. Every chunk must be in the
    store already."""
    document = manifests.encode(manifest)
    digest = manifests.digest_of(document)
    key = manifest_key(manifests.hex_of(digest))
    if not store.put_new(key, document) and not _holds(store, key, len(document), manifests.hex_of(digest)):
        store.put(key, document)  # truncated by a store that lost data, or corrupt
    return digest


def read_pointer(store: S3Store, artifact_uri: str) -> Digest:
    """Return the digest that `artifact_uri` points at; raise ArtifactMissing if nothing was published."""
    key = parse_artifact_uri(artifact_uri, bucket=store.bucket).pointer_key
    document = store.read_small(key, MANIFEST_MAX_BYTES)
    manifests.decode(document)
    return manifests.digest_of(document)


def _check_free(store: S3Store, location: ArtifactLocation, document: bytes) -> bool:
    """Return True if the pointer already holds `document`, False if it does not exist or this build cannot read it (an
    older format: it may be replaced). Raise VersionTaken if it names other content."""
    try:
        pointed = store.read_small(location.pointer_key, MANIFEST_MAX_BYTES)
        manifests.decode(pointed)
    except (ArtifactMissing, ArtifactRefused):
        return False
    if pointed != document:
        raise VersionTaken(f"{location.uri} is already {manifests.digest_of(pointed)}; publish under a new version")
    return True


def _outlast_sweep(store: S3Store) -> None:
    """Wait until no sweep is under way that may have started before the pointer existed; ignore one that was killed.
    Raise StoreUnavailable after _SWEEP_WAIT_S."""
    give_up_s = time.monotonic() + _SWEEP_WAIT_S
    while time.monotonic() < give_up_s:
        begun_unix_s = max((at.modified_unix_s for at in store.list(SWEEPING_KEY)), default=0.0)
        if time.time() - begun_unix_s > _SWEEP_MAX_S:
            return
        time.sleep(_SWEEP_POLL_S)
    raise StoreUnavailable("the store's garbage is being collected; publish again in a few minutes")


def _put_chunk(store: S3Store, directory: Path, chunk: Chunk, *, reread: bool) -> None:
    put_chunk(store, chunk, lambda: _read(directory, chunk), reread=reread)


def put_chunk(store: S3Store, chunk: Chunk, read: Callable[[], bytes], *, reread: bool) -> bool:
    """Put the chunk unless the store has it; return True if it was put. `read` returns its verified bytes on demand.
    With `reread`, the stored bytes are compared, else only their number."""
    key = chunk_key(chunk.sha256)
    stored_bytes = store.size_of(key)
    if stored_bytes == chunk.size_bytes and (not reread or _holds(store, key, chunk.size_bytes, chunk.sha256)):
        return False
    content = read()
    if stored_bytes is None:
        store.put_new(key, content, sha256=chunk.sha256)
    else:  # truncated or corrupt: repair it, since the name promises this content
        store.put(key, content, sha256=chunk.sha256)
    return True


def _holds(store: S3Store, key: str, size_bytes: int, sha256: str) -> bool:
    """Return True if the object's bytes have the hash `sha256`, False if they do not or cannot be read. They are read,
    because stores may report wrongly."""
    found = hashlib.sha256()
    try:
        for block in store.stream(key, size_bytes):
            found.update(block)
    except (ArtifactMissing, ArtifactCorrupt, StoreUnavailable):  # a store may fail on a corrupt object; then it is put
        return False
    return found.hexdigest() == sha256


def _read(directory: Path, chunk: Chunk) -> bytes:
    """Return the chunk's bytes from its file in `directory`. Raise ArtifactRefused if their hash is not the chunk's: a
    chunk under a wrong name would break every later publisher."""
    with directories.open_plain(directory / chunk.path) as file:
        file.seek(chunk.offset_bytes)
        content = file.read(chunk.size_bytes)
    if hashlib.sha256(content).hexdigest() != chunk.sha256:
        raise ArtifactRefused(f"{chunk.path} changed while it was being published; publish again")
    return content
