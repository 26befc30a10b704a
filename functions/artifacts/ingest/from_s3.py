"""An adapter from the store: either published there (a pointer) or plain files below a prefix.

Published ones keep their digest: they are fetched and verified into staging, checked like any other, and their
manifest is the one that is put. Plain files are copied into staging one by one, bounded like an upload.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from functions.artifacts import manifest as manifests
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.errors import ArtifactMissing, ArtifactRefused
from functions.artifacts.fetch import fetch
from functions.artifacts.ingest.names import check_name
from functions.artifacts.ingest.places import S3Place
from functions.artifacts.ingest.policy import IngestPolicy
from functions.artifacts.ingest.upload import Upload
from functions.artifacts.manifest import MANIFEST_MAX_BYTES, MANIFEST_NAME
from functions.artifacts.s3 import S3Store, StoredObject


def receive(place: S3Place, upload: Upload, staged: Path, store: S3Store, policy: IngestPolicy) -> Path | None:
    """The directory of a published adapter, verified; None where plain files were written into `upload`."""
    with _source(place, store) as source:
        try:
            document = source.read_small(f"{place.prefix}/{MANIFEST_NAME}", MANIFEST_MAX_BYTES)
        except ArtifactMissing:
            _receive_files(place, upload, source, policy)
            return None
        manifest = manifests.decode(document, policy.limits)
        for entry in manifest.files:
            check_name(entry.path)
        upload.check_space(manifest.total_bytes)
        cache = ArtifactCache(staged / "published")
        digest = manifests.digest_of(document)
        return fetch(source, cache, digest, limits=policy.limits, timeout_s=policy.deadline_s)


@contextmanager
def _source(place: S3Place, store: S3Store) -> Iterator[S3Store]:
    if place.bucket == store.bucket:
        yield store
        return
    other = S3Store(dataclasses.replace(store.settings, bucket=place.bucket))
    try:
        yield other
    finally:
        other.close()


def _receive_files(place: S3Place, upload: Upload, source: S3Store, policy: IngestPolicy) -> None:
    objects: list[StoredObject] = []
    for stored in source.list(place.prefix + "/"):
        objects.append(stored)
        if len(objects) > policy.limits.max_files:
            raise ArtifactRefused(
                f"more than {policy.limits.max_files} objects below s3://{place.bucket}/{place.prefix}/"
            )
    if not objects:
        raise ArtifactMissing(f"nothing lies below s3://{place.bucket}/{place.prefix}/")
    for stored in objects:  # every name before the first byte
        check_name(_name(place, stored))
    for stored in objects:
        with upload.file(_name(place, stored), stored.size_bytes) as writer:
            for block in source.stream(stored.key, stored.size_bytes):
                writer.write(block)


def _name(place: S3Place, stored: StoredObject) -> str:
    return stored.key.removeprefix(place.prefix + "/")
