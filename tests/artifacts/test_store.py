"""Publishing and fetching against a real S3 server."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from functions.api.ids import Digest
from functions.artifacts import directories
from functions.artifacts import manifest as manifests
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.errors import (
    ArtifactCorrupt,
    ArtifactMissing,
    ArtifactRefused,
    StoreUnavailable,
    VersionTaken,
)
from functions.artifacts.fetch import fetch
from functions.artifacts.locations import blob_key, manifest_key
from functions.artifacts.publish import publish_directory, read_pointer
from functions.artifacts.s3 import CredentialsInvalid, S3Credentials, S3Settings, S3Store, load_credentials
from tests.artifacts.adapter_files import make_adapter
from tests.artifacts.conftest import free_ports

pytestmark = pytest.mark.servers


def uri(tmp_path: Path) -> str:
    """A version nobody else of this session publishes."""
    return f"s3://shoal-models/acme/{abs(hash(str(tmp_path)))}/v1"


def nothing_visible(cache: ArtifactCache) -> bool:
    folder = cache.root / "sha256"
    return not folder.exists() or not list(folder.iterdir())


def weights_key(store: S3Store, digest: Digest) -> str:
    document = store.read_small(manifest_key(manifests.hex_of(digest)), 1_000_000)
    files = {entry.path: entry for entry in manifests.decode(document).files}
    return blob_key(files["adapter_model.safetensors"].sha256)


def test_what_was_published_is_what_is_fetched(store: S3Store, tmp_path: Path) -> None:
    source = make_adapter(tmp_path / "source")
    digest = publish_directory(store, source, uri(tmp_path))
    assert read_pointer(store, uri(tmp_path)) == digest
    cache = ArtifactCache(tmp_path / "cache")
    fetched = fetch(store, cache, digest)
    assert fetched == cache.path_of(digest)
    for name in ("adapter_config.json", "adapter_model.safetensors", "README.md"):
        assert (fetched / name).read_bytes() == (source / name).read_bytes()
    directories.verify_directory(fetched, digest)


def test_publishing_again_changes_nothing(store: S3Store, tmp_path: Path) -> None:
    source = make_adapter(tmp_path / "source")
    digest = publish_directory(store, source, uri(tmp_path))
    assert publish_directory(store, source, uri(tmp_path)) == digest


def test_a_killed_publish_is_finished_by_the_next(store: S3Store, tmp_path: Path) -> None:
    source = make_adapter(tmp_path / "source", seed=3)
    content = (source / "README.md").read_bytes()
    entry = directories.build_manifest(source).files[0]
    assert entry.path == "README.md"
    store.put_new(blob_key(entry.sha256), content)
    with pytest.raises(ArtifactMissing):
        read_pointer(store, uri(tmp_path))
    digest = publish_directory(store, source, uri(tmp_path))
    assert fetch(store, ArtifactCache(tmp_path / "cache"), digest).is_dir()


def test_a_version_does_not_change_unless_told_so(store: S3Store, tmp_path: Path) -> None:
    first = publish_directory(store, make_adapter(tmp_path / "one", seed=1), uri(tmp_path))
    other = make_adapter(tmp_path / "two", seed=2)
    with pytest.raises(VersionTaken, match=first):
        publish_directory(store, other, uri(tmp_path))
    assert read_pointer(store, uri(tmp_path)) == first
    second = publish_directory(store, other, uri(tmp_path), replace=True)
    assert read_pointer(store, uri(tmp_path)) == second != first


def test_of_two_publishers_at_once_one_wins(store: S3Store, tmp_path: Path) -> None:
    sources = [make_adapter(tmp_path / str(seed), seed=seed) for seed in range(4)]
    barrier = threading.Barrier(len(sources))

    def publish(source: Path) -> Digest | None:
        barrier.wait()
        try:
            return publish_directory(store, source, uri(tmp_path))
        except VersionTaken:
            return None

    with ThreadPoolExecutor(len(sources)) as pool:
        winners = [digest for digest in pool.map(publish, sources) if digest is not None]
    assert winners == [read_pointer(store, uri(tmp_path))]


def test_a_blob_cut_short_in_the_store_is_repaired_by_publishing_again(store: S3Store, tmp_path: Path) -> None:
    source = make_adapter(tmp_path / "source", seed=5)
    digest = publish_directory(store, source, uri(tmp_path))
    store.put(weights_key(store, digest), b"short")
    with pytest.raises(ArtifactCorrupt):
        fetch(store, ArtifactCache(tmp_path / "cache"), digest)
    publish_directory(store, source, uri(tmp_path))
    assert fetch(store, ArtifactCache(tmp_path / "cache"), digest).is_dir()


@pytest.mark.parametrize("how", ["flip", "truncate", "extend", "empty"])
def test_a_corrupt_blob_is_named_and_never_visible(store: S3Store, tmp_path: Path, how: str) -> None:
    seed = 10 + ["flip", "truncate", "extend", "empty"].index(how)
    source = make_adapter(tmp_path / "source", seed=seed)
    digest = publish_directory(store, source, uri(tmp_path))
    key = weights_key(store, digest)
    good = (source / "adapter_model.safetensors").read_bytes()
    bad = {"flip": good[:-1] + b"\x01", "truncate": good[:-1], "extend": good + b"\0", "empty": b""}[how]
    store.put(key, bad)
    cache = ArtifactCache(tmp_path / "cache")
    with pytest.raises(ArtifactCorrupt, match=key):
        fetch(store, cache, digest)
    assert nothing_visible(cache)
    store.put(key, good)
    assert fetch(store, cache, digest).is_dir()


def test_a_manifest_of_another_artifact_is_corrupt(store: S3Store, tmp_path: Path) -> None:
    digest = publish_directory(store, make_adapter(tmp_path / "one", seed=20), uri(tmp_path))
    other = manifests.encode(directories.build_manifest(make_adapter(tmp_path / "two", seed=21)))
    store.put(manifest_key(manifests.hex_of(digest)), other)
    cache = ArtifactCache(tmp_path / "cache")
    with pytest.raises(ArtifactCorrupt, match=digest):
        fetch(store, cache, digest)
    assert nothing_visible(cache)


def test_what_is_not_in_the_store_is_missing(store: S3Store, tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache")
    with pytest.raises(ArtifactMissing):
        fetch(store, cache, Digest("sha256:" + "1" * 64))
    assert nothing_visible(cache)


def test_a_cached_artifact_needs_no_store(store: S3Store, s3_settings: S3Settings, tmp_path: Path) -> None:
    digest = publish_directory(store, make_adapter(tmp_path / "source"), uri(tmp_path))
    cache = ArtifactCache(tmp_path / "cache")
    fetched = fetch(store, cache, digest)
    nowhere = S3Store(
        S3Settings(
            endpoint_url=f"http://127.0.0.1:{free_ports(1)[0]}", credentials=s3_settings.credentials, max_attempts=1
        )
    )
    assert fetch(nowhere, cache, digest) == fetched
    with pytest.raises(StoreUnavailable):
        fetch(nowhere, ArtifactCache(tmp_path / "other"), digest)
    nowhere.close()


def test_bit_rot_in_the_cache_is_fetched_again(store: S3Store, tmp_path: Path) -> None:
    digest = publish_directory(store, make_adapter(tmp_path / "source"), uri(tmp_path))
    cache = ArtifactCache(tmp_path / "cache")
    weights = fetch(store, cache, digest) / "adapter_model.safetensors"
    good = weights.read_bytes()
    weights.chmod(0o644)
    weights.write_bytes(good[:-1] + b"\x01")
    assert (fetch(store, cache, digest) / "adapter_model.safetensors").read_bytes() == good


def test_many_fetches_of_one_digest_at_once_all_succeed(store: S3Store, tmp_path: Path) -> None:
    digest = publish_directory(store, make_adapter(tmp_path / "source"), uri(tmp_path))
    cache = ArtifactCache(tmp_path / "cache")
    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(lambda _: fetch(store, cache, digest), range(8)))
    assert paths == {cache.path_of(digest)}
    assert [path.name for path in (cache.root / "sha256").iterdir()] == [manifests.hex_of(digest)]


def test_a_store_that_is_too_slow_is_given_up(store: S3Store, tmp_path: Path) -> None:
    digest = publish_directory(store, make_adapter(tmp_path / "source"), uri(tmp_path))
    cache = ArtifactCache(tmp_path / "cache")
    ticks = iter([0.0, *[1000.0] * 100])
    with pytest.raises(StoreUnavailable, match="too slow"):
        fetch(store, cache, digest, timeout_s=10.0, clock=lambda: next(ticks))
    assert nothing_visible(cache)


def test_wrong_credentials_are_an_unavailable_store(s3_settings: S3Settings) -> None:
    wrong = S3Store(
        S3Settings(
            endpoint_url=s3_settings.endpoint_url, credentials=S3Credentials("shoal-tests", "wrong"), max_attempts=1
        )
    )
    with pytest.raises(StoreUnavailable, match="SignatureDoesNotMatch"):
        wrong.read_small("ready", 10)
    wrong.close()


def test_ensuring_the_bucket_twice_is_fine(s3_settings: S3Settings, store: S3Store) -> None:
    store.ensure_bucket()
    settings = S3Settings(s3_settings.endpoint_url, s3_settings.credentials, bucket="second-bucket", max_attempts=1)
    second = S3Store(settings)
    second.ensure_bucket()
    second.ensure_bucket()
    assert second.put_new("a", b"1")
    assert not second.put_new("a", b"2")
    assert second.read_small("a", 10) == b"1"
    assert second.size_of("nowhere") is None
    second.close()


def test_an_object_over_the_cap_is_cut_off(store: S3Store) -> None:
    store.put("large", bytes(2_000_000))
    with pytest.raises(ArtifactCorrupt, match="more than the 1000000 bytes"):
        store.read_small("large", 1_000_000)


def test_a_foreign_bucket_is_never_asked(store: S3Store, tmp_path: Path) -> None:
    with pytest.raises(ArtifactRefused, match="only shoal-models is allowed"):
        publish_directory(store, make_adapter(tmp_path), "s3://other-bucket/acme/bot/v1")


def test_credentials_are_read_strictly_and_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "s3.json"
    file.write_text(json.dumps({"access_key_id": "me", "secret_access_key": "hush"}))
    credentials = load_credentials(file)
    assert credentials.secret_access_key == "hush"
    assert "hush" not in repr(S3Settings("http://127.0.0.1:1", credentials))
    file.write_text(json.dumps({"access_key_id": "me"}))
    with pytest.raises(CredentialsInvalid, match="secret_access_key"):
        load_credentials(file)
    with pytest.raises(CredentialsInvalid):
        load_credentials(tmp_path / "nowhere")
