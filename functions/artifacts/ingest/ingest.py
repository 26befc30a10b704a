"""The steps of every ingest, in their order, and what they agree on with the collector of garbage.

    1 open a session with the ledger, and a private directory
    2 receive the files, bounded while reading
    3 check the adapter, verify its signature, ask whether there is room for it
    4 take its objects out of the candidates for deletion; wait for those that are just being deleted
    5 put chunks, then the manifest
    6 close the session: where it had expired, nothing may rely on what was put

A digest is then in the store but named by nothing; whoever names it does so inside `holding(digest)`.
"""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from functions.api.ids import Digest
from functions.artifacts import directories
from functions.artifacts import manifest as manifests
from functions.artifacts.adapters import LARGE_TEXT_MAX_BYTES, TEXT_MAX_BYTES, check_adapter
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.collect_ledger import GcLedger, IngestId
from functions.artifacts.errors import ArtifactMissing, StoreUnavailable
from functions.artifacts.fetch import fetch
from functions.artifacts.ingest import from_https, from_s3
from functions.artifacts.ingest.addresses import Resolver, system_resolver
from functions.artifacts.ingest.expectation import Expectation, Ingested
from functions.artifacts.ingest.places import HttpsPlace, parse_place
from functions.artifacts.ingest.policy import IngestPolicy
from functions.artifacts.ingest.staging import clean, staging
from functions.artifacts.ingest.upload import Upload
from functions.artifacts.locations import chunk_key, manifest_key
from functions.artifacts.manifest import MANIFEST_MAX_BYTES, Manifest
from functions.artifacts.publish import put_content
from functions.artifacts.s3 import S3Store
from functions.artifacts.signatures import SignaturePolicy, verify_signed

_DELETION_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Held:
    """An artifact of the store that is not collected while it is held."""

    digest: Digest
    total_bytes: int
    keys: frozenset[str]
    session: IngestId | None  # must still be open in the transaction that names the digest; None without a ledger


@dataclass(frozen=True, slots=True)
class Ingest:
    """All of it blocks; one object serves any number of threads."""

    store: S3Store
    staging_root: Path
    policy: IngestPolicy = field(default_factory=IngestPolicy)
    signatures: SignaturePolicy | None = None
    ledger: GcLedger | None = None  # None only where nothing is ever collected
    resolver: Resolver = system_resolver
    wall_clock: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def from_uri(self, uri: str, expect: Expectation) -> Ingested:
        """Fetch the adapter at `uri` and publish it.

        ArtifactRefused for a place that is not allowed and for anything wrong with the adapter; ArtifactMissing where
        nothing lies there; StoreUnavailable where the place or the store cannot be reached now.
        """
        place = parse_place(uri, self.policy, own_bucket=self.store.bucket, tenant=expect.tenant)
        with self._session(), staging(self.staging_root) as directory:
            upload = Upload(directory, self.policy, self._publish)  # whoever receives closes what it opens
            if isinstance(place, HttpsPlace):
                from_https.receive(place, upload, self.policy, self.resolver, self.clock)
                return upload.finish(expect)
            pointed = from_s3.receive(place, upload, directory, self.store, self.policy)
            if pointed is None:
                return upload.finish(expect)
            return self._publish(pointed, expect, directories.read_manifest(pointed, self.policy.limits)[1])

    @contextmanager
    def upload(self) -> Iterator[Upload]:
        """Files that the caller writes; what was not finished is forgotten at the end."""
        with self._session(), staging(self.staging_root) as directory:
            upload = Upload(directory, self.policy, self._publish)
            try:
                yield upload
            finally:
                upload.abandon()

    @contextmanager
    def holding(self, digest: Digest) -> Iterator[Held]:
        """Keep an artifact from being collected while something that names it is written down.

        The transaction that writes it down asks the ledger whether the session is still open, and gives up where it
        is not: then the artifact may be gone. ArtifactMissing where the store does not have it whole.
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
                    raise ArtifactMissing(f"the store has {digest} in part only; publish it again")
            yield Held(digest, manifest.total_bytes, keys, session)

    def check(self, digest: Digest, expect: Expectation) -> None:
        """Check an artifact of the store once more, against a base that it did not come in for; nothing is changed.

        ArtifactRefused says why it does not fit; ArtifactMissing where the store does not have it.
        """
        document = self.store.read_small(manifest_key(manifests.hex_of(digest)), MANIFEST_MAX_BYTES)
        manifest = manifests.decode_verified(document, digest, self.policy.limits)
        with staging(self.staging_root) as directory:
            Upload(directory, self.policy, self._publish).check_space(manifest.total_bytes)
            cache = ArtifactCache(directory / "published")
            fetched = fetch(self.store, cache, digest, limits=self.policy.limits, timeout_s=self.policy.deadline_s)
            check_adapter(fetched, max_rank=expect.max_rank, base=expect.base)

    def clean_staging(self) -> int:
        """Remove what killed ingests left; how many there were."""
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
            raise StoreUnavailable(f"this took longer than {self.policy.session_s:.0f} s; try again")

    def _rely_on(self, keys: Collection[str]) -> None:
        if self.ledger is None:
            return
        give_up_s = self.clock() + self.policy.deletion_wait_s
        while self.ledger.unmark(keys):
            if self.clock() >= give_up_s:
                raise StoreUnavailable("parts of this artifact are just being deleted; try again in a minute")
            self.sleep(_DELETION_POLL_S)


def object_keys(digest: Digest, manifest: Manifest) -> frozenset[str]:
    """Every object of the store that an artifact consists of."""
    chunks = {chunk_key(chunk.sha256) for chunk in manifest.chunks()}
    return frozenset({manifest_key(manifests.hex_of(digest)), *chunks})
