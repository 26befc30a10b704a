"""Fetching an artifact by its digest: nothing is visible under the digest until every byte has been verified.

    1 read the manifest, verify it against the digest
    2 stream each blob into the staging directory, hashing as it comes
    3 compare size and sha256, fsync
    4 rename the whole directory to its digest

A fetch that is killed leaves only staging garbage. Two processes that fetch the same digest at once both finish;
the later rename finds the place taken by equal content. Blocks: run it in a thread.
"""

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from functions.api.ids import Digest
from functions.artifacts import directories
from functions.artifacts import manifest as manifests
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.errors import ArtifactCorrupt, CacheFailed, StoreUnavailable
from functions.artifacts.locations import blob_key, manifest_key
from functions.artifacts.manifest import ADAPTER_LIMITS, MANIFEST_MAX_BYTES, MANIFEST_NAME, FileEntry, ManifestLimits
from functions.artifacts.s3 import S3Store

DEFAULT_TIMEOUT_S = 300.0  # a 200 MB adapter at 1 MB/s, with room; a store that drips must not hold a thread for ever
_READ_ONLY = 0o444


def fetch(
    store: S3Store,
    cache: ArtifactCache,
    digest: Digest,
    *,
    limits: ManifestLimits = ADAPTER_LIMITS,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    clock: Callable[[], float] = time.monotonic,
) -> Path:
    """The artifact's verified directory in the cache, fetched unless it is there."""
    try:
        cached = cache.verified(digest, limits)
    except ArtifactCorrupt:
        cache.discard(digest)
        cached = None
    if cached is not None:
        return cached
    key = manifest_key(manifests.hex_of(digest))
    document = store.read_small(key, MANIFEST_MAX_BYTES)
    manifest = manifests.decode_verified(document, digest, limits)
    deadline = _Deadline(digest, clock() + timeout_s, clock)
    with cache.staging() as staged:
        try:
            for entry in manifest.files:
                _fetch_file(store, staged, entry, deadline)
            directories.write_durably(staged / MANIFEST_NAME, document)
            (staged / MANIFEST_NAME).chmod(_READ_ONLY)
            _sync_tree(staged)
        except OSError as error:
            raise CacheFailed(f"{digest} cannot be written to the cache: {error.strerror}") from error
        return cache.install(staged, digest)


class _Deadline:
    def __init__(self, digest: Digest, at_s: float, clock: Callable[[], float]) -> None:
        self._digest, self._at_s, self._clock = digest, at_s, clock

    def check(self) -> None:
        if self._clock() >= self._at_s:
            raise StoreUnavailable(f"{self._digest} did not arrive in time; the store is too slow")


def _fetch_file(store: S3Store, staged: Path, entry: FileEntry, deadline: _Deadline) -> None:
    target = staged / entry.path
    target.parent.mkdir(parents=True, exist_ok=True)
    key = blob_key(entry.sha256)
    sha256 = hashlib.sha256()
    size_bytes = 0
    with target.open("xb") as file:
        for block in store.stream(key, entry.size_bytes):
            deadline.check()
            sha256.update(block)
            size_bytes += file.write(block)
        if size_bytes != entry.size_bytes or sha256.hexdigest() != entry.sha256:
            raise ArtifactCorrupt(
                f"{key} ({entry.path}) is corrupt in the store: {size_bytes} of {entry.size_bytes} bytes, "
                f"sha256 {sha256.hexdigest()}"
            )
        file.flush()
        os.fsync(file.fileno())
    target.chmod(_READ_ONLY)


def _sync_tree(staged: Path) -> None:
    for directory in {path.parent for path in staged.rglob("*")}:
        directories.sync_directory(directory)
