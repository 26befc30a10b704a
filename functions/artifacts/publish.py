"""Publishing: chunks first, then the manifest, then the pointer, so that nothing ever points at what is not there.

What a collector of garbage takes meanwhile, since it looked before the pointer was there, is put again (`collect`).

Idempotent and safe to kill at any line: what is missing is put, what is there is left, and a second run finishes
the first. Content that the store has already, from whichever artifact, is not sent again. It is read back, though: an
object whose bytes have rotted keeps its size and its name, and is put again
(test_publishing_again_repairs_what_has_rotted).
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
_SWEEP_WAIT_S = 60.0  # sweeping takes seconds
_SWEEP_MAX_S = 900.0  # one that began earlier was killed


def publish_directory(
    store: S3Store,
    directory: Path,
    artifact_uri: str,
    *,
    limits: ManifestLimits = ADAPTER_LIMITS,
    replace: bool = False,
) -> Digest:
    """Publish the files of `directory` under `artifact_uri`; the artifact's digest. Blocks: run it in a thread.

    A URI that already points at other content raises VersionTaken: versions do not change. `replace` moves the pointer
    all the same, for a source that is itself the truth (adapters kept in git).
    """
    location = parse_artifact_uri(artifact_uri, bucket=store.bucket)
    manifest = directories.build_manifest(directory, limits)
    document = manifests.encode(manifest)
    if not replace:
        _check_free(store, location, document)  # before anything is uploaded in vain
    put_content(store, directory, manifest)
    point(store, location, document, replace=replace)
    return put_content(store, directory, manifest, reread=False)


def point(store: S3Store, location: ArtifactLocation, document: bytes, *, replace: bool = False) -> None:
    """Make the URI point at the manifest, and wait for the end of a sweep that may have looked before: what it took of
    the content is to be put once more. VersionTaken where the URI points at other content."""
    if replace or not (store.put_new(location.pointer_key, document) or _check_free(store, location, document)):
        store.put(location.pointer_key, document)
    _outlast_sweep(store)


def publish_content(store: S3Store, directory: Path, limits: ManifestLimits = ADAPTER_LIMITS) -> Digest:
    """Publish the files of `directory` under their digest alone, without a pointer."""
    return put_content(store, directory, directories.build_manifest(directory, limits))


def put_content(store: S3Store, directory: Path, manifest: Manifest, *, reread: bool = True) -> Digest:
    """Put what the store lacks of `manifest`, whose files lie in `directory`, and the manifest last.

    `reread` False only where all of it has just been put, or read: sizes are then enough.
    """
    put = functools.partial(_put_chunk, store, directory, reread=reread)
    run_all(put, manifest.distinct_chunks(), parallel=PARALLEL_PUTS)
    return put_manifest(store, manifest)


def put_manifest(store: S3Store, manifest: Manifest) -> Digest:
    """Put the manifest under its digest, once every chunk of it is there."""
    document = manifests.encode(manifest)
    digest = manifests.digest_of(document)
    key = manifest_key(manifests.hex_of(digest))
    if not store.put_new(key, document) and not _holds(store, key, len(document), manifests.hex_of(digest)):
        store.put(key, document)  # cut short by a store that lost its tail, or rotten
    return digest


def read_pointer(store: S3Store, artifact_uri: str) -> Digest:
    """The digest that `artifact_uri` points at; ArtifactMissing where nothing was published."""
    key = parse_artifact_uri(artifact_uri, bucket=store.bucket).pointer_key
    document = store.read_small(key, MANIFEST_MAX_BYTES)
    manifests.decode(document)
    return manifests.digest_of(document)


def _check_free(store: S3Store, location: ArtifactLocation, document: bytes) -> bool:
    """Whether the pointer is `document` already; VersionTaken where it names other content.

    One that this build cannot read (its form is a former one's) names none, and may be replaced.
    """
    try:
        pointed = store.read_small(location.pointer_key, MANIFEST_MAX_BYTES)
        manifests.decode(pointed)
    except (ArtifactMissing, ArtifactRefused):
        return False
    if pointed != document:
        raise VersionTaken(f"{location.uri} is already {manifests.digest_of(pointed)}; publish under a new version")
    return True


def _outlast_sweep(store: S3Store) -> None:
    """Wait for the end of a sweep that may have looked before the pointer was there; not for one that was killed."""
    give_up_s = time.monotonic() + _SWEEP_WAIT_S
    while time.monotonic() < give_up_s:
        begun_unix_s = max((at.modified_unix_s for at in store.list(SWEEPING_KEY)), default=0.0)
        if time.time() - begun_unix_s > _SWEEP_MAX_S:
            return
        time.sleep(_SWEEP_POLL_S)
    raise StoreUnavailable("the store's garbage is just being collected; publish again in a few minutes")


def _put_chunk(store: S3Store, directory: Path, chunk: Chunk, *, reread: bool) -> None:
    put_chunk(store, chunk, lambda: _read(directory, chunk), reread=reread)


def put_chunk(store: S3Store, chunk: Chunk, read: Callable[[], bytes], *, reread: bool) -> bool:
    """Put the chunk unless the store has it; whether it was put. `read` gives its verified bytes where they are needed.

    `reread`: what is there is believed by its bytes, else by its size.
    """
    key = chunk_key(chunk.sha256)
    stored_bytes = store.size_of(key)
    if stored_bytes == chunk.size_bytes and (not reread or _holds(store, key, chunk.size_bytes, chunk.sha256)):
        return False
    content = read()
    if stored_bytes is None:
        store.put_new(key, content, sha256=chunk.sha256)
    else:  # cut short by a store that lost its tail, or rotten: the name promises this content, so this is a repair
        store.put(key, content, sha256=chunk.sha256)
    return True


def _holds(store: S3Store, key: str, size_bytes: int, sha256: str) -> bool:
    """Whether the object is what its name promises; read, since no store's word is better than its bytes."""
    found = hashlib.sha256()
    try:
        for block in store.stream(key, size_bytes):
            found.update(block)
    except (ArtifactMissing, ArtifactCorrupt, StoreUnavailable):  # a store may fail on what has rotted; then it is put
        return False
    return found.hexdigest() == sha256


def _read(directory: Path, chunk: Chunk) -> bytes:
    """The bytes that were hashed; a chunk under a wrong name would poison every later publisher."""
    with directories.open_plain(directory / chunk.path) as file:
        file.seek(chunk.offset_bytes)
        content = file.read(chunk.size_bytes)
    if hashlib.sha256(content).hexdigest() != chunk.sha256:
        raise ArtifactRefused(f"{chunk.path} changed while it was being published; publish again")
    return content
