"""Ingest of one artifact: the order of its steps, and its coordination with garbage collection.

    1 open a session with the ledger, and a private directory
    2 receive the files, bounded while reading
    3 check the adapter, verify its signature, check that there is room for it
    4 remove its objects from the candidates for deletion; wait for those that are being deleted
    5 put chunks, then the manifest
    6 close the session: if it had expired, nothing may rely on what was put

The digest is then in the store, but nothing names it yet; a process that names it does so inside `holding(digest)`.
"""

import dataclasses
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from functions.api.ids import Digest, TenantId
from functions.artifacts import directories
from functions.artifacts import manifest as manifests
from functions.artifacts.adapters import LARGE_TEXT_MAX_BYTES, TEXT_MAX_BYTES, check_adapter
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.collect import GcLedger, IngestId
from functions.artifacts.errors import ArtifactMissing, ArtifactRefused, CacheFailed, StoreUnavailable
from functions.artifacts.fetch import ObjectSource, fetch, read_manifest
from functions.artifacts.ingest import from_https
from functions.artifacts.ingest.addresses import Resolver, system_resolver
from functions.artifacts.ingest.policy import Expectation, Ingested, IngestPolicy, check_name
from functions.artifacts.ingest.sources import HttpsSource, S3Source, parse_source
from functions.artifacts.ingest.upload import StagingBudget, Upload
from functions.artifacts.locations import chunk_key, manifest_key
from functions.artifacts.manifest import MANIFEST_MAX_BYTES, MANIFEST_NAME, Manifest
from functions.artifacts.publish import put_content
from functions.artifacts.s3 import S3Store, StoredObject
from functions.artifacts.signatures import SignaturePolicy, verify_signed

# Receive an adapter from the store: either published there (a pointer) or plain files below a prefix.
#
# A published adapter retains its digest: it is fetched and verified into staging, checked like any other, and put with
# its own manifest. Plain files are copied into staging one by one, with the limits of an upload.


def receive(place: S3Source, upload: Upload, staged: Path, store: S3Store, policy: IngestPolicy) -> Path | None:
    """If the source has a manifest, fetch the published adapter below `staged` and return its verified directory;
    otherwise write the source's plain files into `upload` and return None."""
    with _source(place, store) as source:
        try:
            document = source.read_small(f"{place.prefix}/{MANIFEST_NAME}", MANIFEST_MAX_BYTES)
        except ArtifactMissing:
            _receive_files(place, upload, source, policy)
            return None
        manifest = manifests.decode(document, policy.limits)
        for entry in manifest.files:
            check_name(entry.path)
        upload.room.grow_to(manifest.total_bytes)
        upload.check_space(manifest.total_bytes)
        cache = ArtifactCache(staged / "published")
        digest = manifests.digest_of(document)
        return fetch(source, cache, digest, limits=policy.limits, timeout_s=policy.deadline_s)


@contextmanager
def _source(place: S3Source, store: S3Store) -> Iterator[S3Store]:
    if place.bucket == store.bucket:
        yield store
        return
    other = S3Store(dataclasses.replace(store.settings, bucket=place.bucket))
    try:
        yield other
    finally:
        other.close()


def _receive_files(place: S3Source, upload: Upload, source: S3Store, policy: IngestPolicy) -> None:
    objects: list[StoredObject] = []
    for stored in source.list(place.prefix + "/"):
        objects.append(stored)
        if len(objects) > policy.limits.max_files:
            raise ArtifactRefused(
                f"more than {policy.limits.max_files} objects below s3://{place.bucket}/{place.prefix}/"
            )
    if not objects:
        raise ArtifactMissing(f"nothing lies below s3://{place.bucket}/{place.prefix}/")
    for stored in objects:  # check every name before reading the first byte
        check_name(_name(place, stored))
    for stored in objects:
        with upload.file(_name(place, stored), stored.size_bytes) as writer:
            for block in source.stream(stored.key, stored.size_bytes):
                writer.write(block)


def _name(place: S3Source, stored: StoredObject) -> str:
    return stored.key.removeprefix(place.prefix + "/")


# Private staging directory of one ingest; it is deleted when the ingest ends, in any way.
#
# The process that fills a directory holds its lock (flock). An unlocked directory was left by a killed process, and
# `clean` removes it. The mode is 0700, so that no other user reads unchecked content.


_PREFIX = ".ingest-"
_LOCK_TRIES = 5


@contextmanager
def staging(root: Path) -> Iterator[Path]:
    """Yield a fresh, empty, locked directory below `root`, which is deleted at the end. Raise CacheFailed if `root`
    cannot be written."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        path, lock = _locked_directory(root)
    except OSError as error:
        raise CacheFailed(f"the staging directory {root.name} cannot be written: {error.strerror}") from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def clean(root: Path) -> int:
    """Remove the directories below `root` that killed ingests left: those that no process has locked. Return how many
    were removed."""
    removed = 0
    for path in root.glob(_PREFIX + "*"):
        with suppress(OSError):  # locked by a living process, or removed by another cleaner
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
                removed += 1
            finally:
                os.close(descriptor)
    return removed


def _locked_directory(root: Path) -> tuple[Path, int]:
    """Create a directory and lock it; retry if a cleaner removed it before it was locked. Return it and its
    descriptor."""
    for _ in range(_LOCK_TRIES):
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
        with suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if path.exists():
                return path, descriptor
            os.close(descriptor)
    raise CacheFailed(f"{root.name}: another process removes what is being received")


_DELETION_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class HeldArtifact:
    """A stored artifact that garbage collection spares while it is held."""

    digest: Digest
    total_bytes: int
    keys: frozenset[str]
    session: IngestId | None  # must still be open in the transaction that names the digest; None without a ledger


@dataclass(frozen=True, slots=True)
class Ingest:
    """Ingests artifacts into the store. All methods block; one object serves any number of threads."""

    store: S3Store
    staging_root: Path
    policy: IngestPolicy = field(default_factory=IngestPolicy)
    signatures: SignaturePolicy | None = None
    budget: StagingBudget = field(default_factory=StagingBudget)
    ledger: GcLedger | None = None  # None only if garbage is never collected
    resolver: Resolver = system_resolver
    wall_clock: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def from_uri(self, uri: str, expect: Expectation) -> Ingested:
        """Fetch the adapter at `uri` and publish it.

        Raise ArtifactRefused if the source is not allowed or the adapter is invalid, ArtifactMissing if nothing is
        there, StoreUnavailable if the source or the store cannot be reached.
        """
        place = parse_source(uri, self.policy, own_bucket=self.store.bucket, tenant=expect.tenant)
        with self._session(), self._staged(expect.tenant) as (directory, upload):  # `receive` closes what it opens
            if isinstance(place, HttpsSource):
                from_https.receive(place, upload, self.policy, self.resolver, self.clock)
                return upload.finish(expect)
            pointed = receive(place, upload, directory, self.store, self.policy)
            if pointed is None:
                return upload.finish(expect)
            return self._publish(pointed, expect, directories.read_manifest(pointed, self.policy.limits)[1])

    def from_source(self, source: ObjectSource, digest: Digest, expect: Expectation) -> Ingested:
        """Import the artifact of that digest from another store, with the same checks and errors as `from_uri`. Chunks
        that were fetched and verified before a kill are not fetched again."""
        limits, timeout_s = self.policy.limits, self.policy.deadline_s
        cache = ArtifactCache(self.staging_root / "from-elsewhere")
        cache.root.mkdir(parents=True, exist_ok=True)
        cache.clean_garbage()
        with self._session(), self.budget.reservation(expect.tenant) as room:
            manifest = manifests.decode_verified(read_manifest(source, digest), digest, limits)
            for entry in manifest.files:  # check every name before reading the first byte
                check_name(entry.path)
            room.grow_to(manifest.total_bytes)
            Upload(cache.root, self.policy, self._publish, room).check_space(manifest.total_bytes)
            fetched = fetch(source, cache, digest, limits=limits, timeout_s=timeout_s)
            try:
                return self._publish(fetched, expect, manifest)
            finally:
                cache.discard(digest)

    @contextmanager
    def upload(self, tenant: TenantId | None = None) -> Iterator[Upload]:
        """Yield an upload for the caller to write files into and to finish. Files that it has not published are
        discarded at the end."""
        with self._session(), self._staged(tenant) as (_, upload):
            try:
                yield upload
            finally:
                upload.abandon()

    @contextmanager
    def holding(self, digest: Digest) -> Iterator[HeldArtifact]:
        """Protect an artifact from collection while the caller records something that names it.

        The recording transaction must check with the ledger that the session is still open, and fail otherwise: then
        the artifact may be gone. Raise ArtifactMissing if the store does not have the whole artifact.
        """
        with self._session() as session:
            key = manifest_key(manifests.hex_of(digest))
            document = self.store.read_small(key, MANIFEST_MAX_BYTES)
            manifest = manifests.decode_verified(document, digest, self.policy.limits)
            keys = object_keys(digest, manifest)
            self._rely_on(keys)
            if self.store.size_of(key) is None:
                raise ArtifactMissing(f"the store has no {digest}")
            for chunk in manifest.distinct_chunks():
                if self.store.size_of(chunk_key(chunk.sha256)) != chunk.size_bytes:
                    raise ArtifactMissing(f"the store has only a part of {digest}; publish it again")
            yield HeldArtifact(digest, manifest.total_bytes, keys, session)

    def check(self, digest: Digest, expect: Expectation) -> None:
        """Check a stored artifact again, against a base other than the one it was ingested for; nothing is changed.
        Raise ArtifactRefused if it does not fit, ArtifactMissing if the store does not have it."""
        document = self.store.read_small(manifest_key(manifests.hex_of(digest)), MANIFEST_MAX_BYTES)
        manifest = manifests.decode_verified(document, digest, self.policy.limits)
        with self._staged(expect.tenant) as (directory, upload):
            upload.room.grow_to(manifest.total_bytes)
            upload.check_space(manifest.total_bytes)
            cache = ArtifactCache(directory / "published")
            fetched = fetch(self.store, cache, digest, limits=self.policy.limits, timeout_s=self.policy.deadline_s)
            check_adapter(fetched, max_rank=expect.max_rank, base=expect.base)

    def clean_staging(self) -> int:
        """Remove directories left by killed ingests. Return how many were removed."""
        return clean(self.staging_root)

    def _publish(self, directory: Path, expect: Expectation, published: Manifest | None = None) -> Ingested:
        text_max_bytes = TEXT_MAX_BYTES if published is None else LARGE_TEXT_MAX_BYTES
        facts = check_adapter(directory, max_rank=expect.max_rank, base=expect.base, text_max_bytes=text_max_bytes)
        finding = verify_signed(directory, expect.tenant, self.signatures or SignaturePolicy())
        manifest = published or directories.build_manifest(directory, self.policy.limits)
        digest = manifests.digest_of(manifests.encode(manifest))
        if expect.admits is not None:
            expect.admits(digest, manifest.total_bytes)
        self._rely_on(object_keys(digest, manifest))
        put_content(self.store, directory, manifest, reread=published is None)
        return Ingested(digest, manifest.total_bytes, facts, finding)

    @contextmanager
    def _staged(self, tenant: TenantId | None) -> Iterator[tuple[Path, Upload]]:
        """Yield a directory and its upload. At the end the directory is deleted and its reservation released."""
        with self.budget.reservation(tenant) as room, staging(self.staging_root) as directory:
            yield directory, Upload(directory, self.policy, self._publish, room)

    @contextmanager
    def _session(self) -> Iterator[IngestId | None]:
        if self.ledger is None:
            yield None
            return
        now_unix_s = self.wall_clock()
        session = self.ledger.begin_ingest(now_unix_s, now_unix_s + self.policy.session_s)
        try:
            yield session
        except BaseException:
            self.ledger.end_ingest(session)
            raise
        if not self.ledger.end_ingest(session):
            raise StoreUnavailable(f"the ingest took longer than its limit of {self.policy.session_s:.0f} s; try again")

    def _rely_on(self, keys: Collection[str]) -> None:
        if self.ledger is None:
            return
        give_up_s = self.clock() + self.policy.deletion_wait_s
        while self.ledger.unmark(keys):
            if self.clock() >= give_up_s:
                raise StoreUnavailable("parts of this artifact are being deleted; try again in a minute")
            self.sleep(_DELETION_POLL_S)


def object_keys(digest: Digest, manifest: Manifest) -> frozenset[str]:
    """Return the store keys of all objects that an artifact consists of: its manifest and its chunks."""
    chunks = {chunk_key(chunk.sha256) for chunk in manifest.chunks()}
    return frozenset({manifest_key(manifests.hex_of(digest)), *chunks})
