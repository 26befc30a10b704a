"""Adapters that lie in a real store already: published ones keep their digest, plain files become artifacts."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from functions.api.ids import TenantId
from functions.artifacts import directories
from functions.artifacts import manifest as manifests
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.errors import ArtifactError, ArtifactMissing, ArtifactRefused, StoreUnavailable
from functions.artifacts.fetch import fetch
from functions.artifacts.ingest import Expectation, Ingest, IngestPolicy
from functions.artifacts.manifest import CHUNK_MIN_BYTES, MANIFEST_NAME
from functions.artifacts.publish import publish_directory, put_content
from functions.artifacts.s3 import S3Settings, S3Store
from tests.artifacts.adapter_files import make_adapter
from tests.artifacts.hostile import AGAINST_BASE, BASE, HOSTILE
from tests.ports import free_ports

pytestmark = pytest.mark.servers
EXPECT = Expectation(tenant=TenantId("acme"), base=BASE)


@pytest.fixture
def ingest(store: S3Store, tmp_path: Path) -> Ingest:
    return Ingest(store, tmp_path / "staging")


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """A folder of acme that no other test of this session writes to."""
    return f"acme/{tmp_path.name.replace('_', '-').lower()[:60].rstrip('-')}"


@pytest.fixture
def other_bucket(s3_settings: S3Settings) -> Iterator[S3Store]:
    other = S3Store(replace(s3_settings, bucket="incoming"))
    other.ensure_bucket()
    yield other
    other.close()


def put_files(store: S3Store, prefix: str, directory: Path) -> None:
    for path in directory.rglob("*"):
        if path.is_file():
            store.put(f"{prefix}/{path.relative_to(directory).as_posix()}", path.read_bytes())


def uri(prefix: str, bucket: str = "shoal-models") -> str:
    return f"s3://{bucket}/{prefix}"


def listing(store: S3Store) -> set[str]:
    return {stored.key for stored in store.list("")}


def refused(ingest: Ingest, where: str, words: str, kind: type[ArtifactError] = ArtifactRefused) -> None:
    before = listing(ingest.store)
    with pytest.raises(kind, match=words):
        ingest.from_uri(where, EXPECT)
    assert listing(ingest.store) == before
    assert list(ingest.staging_root.iterdir()) == []


def test_plain_files_become_an_artifact(ingest: Ingest, prefix: str, tmp_path: Path) -> None:
    source = make_adapter(tmp_path / "source", seed=101)
    put_files(ingest.store, prefix, source)
    ingested = ingest.from_uri(uri(prefix), EXPECT)
    fetched = fetch(ingest.store, ArtifactCache(tmp_path / "cache"), ingested.digest)
    for path in source.iterdir():
        assert (fetched / path.name).read_bytes() == path.read_bytes()
    assert list(ingest.staging_root.iterdir()) == []


def test_a_published_adapter_keeps_its_digest(ingest: Ingest, prefix: str, tmp_path: Path) -> None:
    digest = publish_directory(ingest.store, make_adapter(tmp_path / "source", seed=102), uri(prefix))
    before = listing(ingest.store)
    assert ingest.from_uri(uri(prefix), EXPECT).digest == digest
    assert listing(ingest.store) == before


def test_published_adapter_with_other_chunk_size_keeps_its_digest(ingest: Ingest, prefix: str, tmp_path: Path) -> None:
    source = make_adapter(tmp_path / "source", seed=103)
    manifest = replace_chunk_bytes(directories.build_manifest(source))
    digest = put_content(ingest.store, source, manifest)
    ingest.store.put(f"{prefix}/{MANIFEST_NAME}", manifests.encode(manifest))
    assert ingest.from_uri(uri(prefix), EXPECT).digest == digest


def replace_chunk_bytes(manifest: manifests.Manifest) -> manifests.Manifest:
    """Return the manifest with another chunk size: small files keep their single chunk, but the digest changes."""
    assert manifest.chunk_bytes != CHUNK_MIN_BYTES
    return manifests.Manifest(chunk_bytes=CHUNK_MIN_BYTES, files=manifest.files)


def test_another_bucket_of_the_policy(ingest: Ingest, other_bucket: S3Store, prefix: str, tmp_path: Path) -> None:
    put_files(other_bucket, prefix, make_adapter(tmp_path / "source", seed=104))
    allowed = replace(ingest, policy=IngestPolicy(s3_buckets=("incoming",)))
    ingested = allowed.from_uri(uri(prefix, "incoming"), EXPECT)
    assert fetch(ingest.store, ArtifactCache(tmp_path / "cache"), ingested.digest).is_dir()


def test_a_published_one_in_another_bucket_is_copied(
    ingest: Ingest, other_bucket: S3Store, prefix: str, tmp_path: Path
) -> None:
    source = make_adapter(tmp_path / "source", seed=105)
    digest = publish_directory(other_bucket, source, uri(prefix, "incoming"))
    allowed = replace(ingest, policy=IngestPolicy(s3_buckets=("incoming",)))
    assert allowed.from_uri(uri(prefix, "incoming"), EXPECT).digest == digest
    assert fetch(ingest.store, ArtifactCache(tmp_path / "cache"), digest).is_dir()


def test_empty_s3_prefix_is_reported(ingest: Ingest, prefix: str) -> None:
    refused(ingest, uri(prefix), "nothing lies below", ArtifactMissing)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["adapter_config.json", ".hidden.json"], "is not allowed"),
        (["adapter_config.json", "deep/er/adapter_model.safetensors"], "is in a folder"),
        (["adapter_config.json", "adapter_model.bin"], "does not belong"),
        (["adapter_config.json", "Adapter_Config.json"], "is named twice"),
        ([f"f{number}.json" for number in range(17)], "more than 16 objects below"),
        (["SHOAL-manifest.json"], "the manifest's own name"),
    ],
    ids=["hidden", "folder", "pickle", "case", "many", "manifest"],
)
def test_names_in_a_bucket(ingest: Ingest, prefix: str, names: list[str], words: str) -> None:
    for name in names:
        ingest.store.put(f"{prefix}/{name}", b"{}")
    refused(ingest, uri(prefix), words)


def test_an_object_over_the_limit_is_refused_by_its_announced_size(ingest: Ingest, prefix: str) -> None:
    ingest.store.put(f"{prefix}/adapter_model.safetensors", bytes(2000))
    limits = replace(ingest.policy.limits, max_file_bytes=1000)
    small = replace(ingest, policy=IngestPolicy(limits=limits))
    refused(small, uri(prefix), "is announced with 2000 bytes, over the limit of 1000")


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (b"{}", "not a manifest"),
        (b'{"schema_version":1,"files":[]}', "schema"),
        (b"[" * 100_000, "not a manifest"),
    ],
)
def test_a_pointer_that_is_no_manifest(ingest: Ingest, prefix: str, document: bytes, words: str) -> None:
    ingest.store.put(f"{prefix}/{MANIFEST_NAME}", document)
    refused(ingest, uri(prefix), words)


@pytest.mark.parametrize("name", ["pickle as weights", "tensor twice", "header deep", "NaN in BF16", "of another base"])
def test_a_hostile_adapter_is_refused_wherever_it_was_published(
    ingest: Ingest, prefix: str, tmp_path: Path, name: str
) -> None:
    """The store is not trusted: a client with write access to the bucket can publish anything."""
    source = tmp_path / "hostile"
    source.mkdir()
    hostile = {**HOSTILE, **AGAINST_BASE}[name]
    hostile.build(source)
    publish_directory(ingest.store, source, uri(prefix))
    refused(ingest, uri(prefix), hostile.words)


def test_unavailable_store_is_reported(ingest: Ingest, s3_settings: S3Settings, prefix: str) -> None:
    nowhere = S3Store(replace(s3_settings, endpoint_url=f"http://127.0.0.1:{free_ports(1)[0]}"))
    with pytest.raises(StoreUnavailable):
        replace(ingest, store=nowhere).from_uri(uri(prefix), EXPECT)
    assert list(ingest.staging_root.iterdir()) == []
    nowhere.close()
