"""Publishing: blobs first, then the manifest, then the pointer, so that nothing ever points at what is not there.

Idempotent and safe to kill at any line: what is missing is put, what is there is left, and a second run finishes
the first.
"""

from pathlib import Path
from typing import BinaryIO

from functions.api.ids import Digest
from functions.artifacts import directories
from functions.artifacts import manifest as manifests
from functions.artifacts.errors import ArtifactMissing, ArtifactRefused, VersionTaken
from functions.artifacts.locations import ArtifactLocation, blob_key, manifest_key, parse_artifact_uri
from functions.artifacts.manifest import ADAPTER_LIMITS, MANIFEST_MAX_BYTES, FileEntry, ManifestLimits
from functions.artifacts.s3 import S3Store


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
    digest = manifests.digest_of(document)
    if not replace:
        _check_not_taken(store, location, document)  # before anything is uploaded in vain
    for entry in manifest.files:
        _put_blob(store, directory, entry)
    store.put_new(manifest_key(manifests.hex_of(digest)), document)
    if replace:
        store.put(location.pointer_key, document)
    elif not store.put_new(location.pointer_key, document):
        _check_not_taken(store, location, document)
    return digest


def read_pointer(store: S3Store, artifact_uri: str) -> Digest:
    """The digest that `artifact_uri` points at; ArtifactMissing where nothing was published."""
    key = parse_artifact_uri(artifact_uri, bucket=store.bucket).pointer_key
    document = store.read_small(key, MANIFEST_MAX_BYTES)
    manifests.decode(document)
    return manifests.digest_of(document)


def _check_not_taken(store: S3Store, location: ArtifactLocation, document: bytes) -> None:
    try:
        pointed = store.read_small(location.pointer_key, MANIFEST_MAX_BYTES)
    except ArtifactMissing:
        return
    if pointed != document:
        raise VersionTaken(f"{location.uri} is already {manifests.digest_of(pointed)}; publish under a new version")


def _put_blob(store: S3Store, directory: Path, entry: FileEntry) -> None:
    key = blob_key(entry.sha256)
    stored_bytes = store.size_of(key)
    if stored_bytes == entry.size_bytes:
        return
    with directories.open_plain(directory / entry.path) as file:
        _check_unchanged(file, entry)
        if stored_bytes is None:
            store.put_new(key, file)
        else:  # cut short by a store that lost its tail: the name promises this content, so writing it is a repair
            store.put(key, file)


def _check_unchanged(file: BinaryIO, entry: FileEntry) -> None:
    """The file is still what was hashed; a blob under a wrong name would poison every later publisher."""
    if directories.sha256_of(file) != entry.sha256:
        raise ArtifactRefused(f"{entry.path} changed while it was being published; publish again")
    file.seek(0)
