"""Publishing and fetching against a real S3 server."""

import dataclasses
import json
import os
import threading
import time
from collections.abc import Iterator
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
    CacheFailed,
    StoreUnavailable,
    VersionTaken,
)
from functions.artifacts.fetch import fetch
from functions.artifacts.locations import SWEEPING_KEY, chunk_key, manifest_key, parse_artifact_uri
from functions.artifacts.publish import publish_content, publish_directory, put_content, read_pointer
from functions.artifacts.s3 import CredentialsInvalid, S3Credentials, S3Settings, S3Store, load_credentials
from tests.artifacts.adapter_files import make_adapter
from tests.artifacts.descriptors import no_descriptors
from tests.artifacts.kill_points import killed_at_each_step
from tests.artifacts.test_assembly import MIB, Source, source
from tests.ports import free_ports

pytestmark = pytest.mark.servers


def uri(tmp_path: Path) -> str:
    """A version that no other test of this session publishes."""
    return f"s3://shoal-models/acme/{abs(hash(str(tmp_path)))}/v1"


def nothing_visible(cache: ArtifactCache) -> bool:
    folder = cache.root / "sha256"
    return not folder.exists() or not list(folder.iterdir())


def weights_key(store: S3Store, digest: Digest) -> str:
    document = store.read_small(manifest_key(manifests.hex_of(digest)), 1_000_000)
    files = {entry.path: entry for entry in manifests.decode(document).files}
    return chunk_key(files["adapter_model.safetensors"].sha256)


def test_fetched_artifact_equals_the_published_one(store: S3Store, tmp_path: Path) -> None:
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
    store.put_new(chunk_key(entry.sha256), content)
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


def test_a_pointer_in_the_former_form_is_no_version_and_is_healed(store: S3Store, tmp_path: Path) -> None:
    former = b'{"schema_version":1,"files":[{"path":"a","size_bytes":0,"sha256":"' + b"0" * 64 + b'"}]}'
    pointer = parse_artifact_uri(uri(tmp_path), bucket=store.bucket).pointer_key
    store.put(pointer, former)
    with pytest.raises(ArtifactRefused, match="publish the artifact again"):
        read_pointer(store, uri(tmp_path))
    digest = publish_directory(store, make_adapter(tmp_path / "source"), uri(tmp_path))
    assert read_pointer(store, uri(tmp_path)) == digest
    with pytest.raises(VersionTaken):
        publish_directory(store, make_adapter(tmp_path / "other", seed=9), uri(tmp_path))


def test_objects_swept_during_publish_are_put_again(store: S3Store, tmp_path: Path) -> None:
    """The sweep lists the pointers before this one exists and deletes afterwards."""
    source = make_adapter(tmp_path / "source", seed=41)
    digest = publish_content(store, source)
    pointer = parse_artifact_uri(uri(tmp_path), bucket=store.bucket).pointer_key
    store.put(SWEEPING_KEY, b"1")
    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(publish_directory, store, source, uri(tmp_path))
        give_up_s = time.monotonic() + 60
        while store.size_of(pointer) is None and time.monotonic() < give_up_s:
            assert not publishing.done()
        store.delete([weights_key(store, digest)])
        store.delete([SWEEPING_KEY])
        assert publishing.result() == digest
    assert fetch(store, ArtifactCache(tmp_path / "cache"), digest).is_dir()


def test_content_alone_needs_no_address(store: S3Store, tmp_path: Path) -> None:
    source = make_adapter(tmp_path / "source", seed=30)
    before = {found.key for found in store.list("")}
    digest = publish_content(store, source)
    assert digest == directories.write_manifest(source)
    new = {found.key for found in store.list("")} - before
    assert manifest_key(manifests.hex_of(digest)) in new
    assert {key.rpartition("/")[0] for key in new} == {"chunks/sha256", "manifests/sha256"}
    assert fetch(store, ArtifactCache(tmp_path / "cache"), digest).is_dir()


def test_one_of_two_concurrent_publishers_wins(store: S3Store, tmp_path: Path) -> None:
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


def test_a_chunk_cut_short_in_the_store_is_repaired_by_publishing_again(store: S3Store, tmp_path: Path) -> None:
    source = make_adapter(tmp_path / "source", seed=5)
    digest = publish_directory(store, source, uri(tmp_path))
    store.put(weights_key(store, digest), b"short")
    with pytest.raises(ArtifactCorrupt):
        fetch(store, ArtifactCache(tmp_path / "cache"), digest)
    publish_directory(store, source, uri(tmp_path))
    assert fetch(store, ArtifactCache(tmp_path / "cache"), digest).is_dir()


class Counting(S3Store):
    """The real store; records sent and requested objects."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sent: list[str] = []
        self.asked: list[str] = []

    def put_new(self, key: str, body: bytes, *, sha256: str | None = None) -> bool:
        self.sent.append(key)
        return super().put_new(key, body, sha256=sha256)

    def stream(self, key: str, max_bytes: int) -> Iterator[bytes]:
        self.asked.append(key)
        return super().stream(key, max_bytes)


@pytest.fixture
def counting(s3_settings: S3Settings) -> Iterator[Counting]:
    opened = Counting(s3_settings)
    yield opened
    opened.close()


def write(made: Source, directory: Path) -> Path:
    for path, content in made.files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
    return directory


def test_large_files_travel_in_chunks_and_equal_content_once(counting: Counting, tmp_path: Path) -> None:
    made = source(seed=40)
    directory = write(made, tmp_path / "source")
    assert put_content(counting, directory, made.manifest) == made.digest
    keys = {chunk_key(chunk.sha256) for chunk in made.manifest.chunks()}
    assert len(keys) == 4
    assert sorted(counting.sent) == sorted([*keys, manifest_key(manifests.hex_of(made.digest))])
    counting.sent.clear()
    put_content(counting, directory, made.manifest)
    assert [key for key in counting.sent if key in keys] == []
    counting.asked.clear()
    path = fetch(counting, ArtifactCache(tmp_path / "cache"), made.digest)
    assert sorted(counting.asked) == sorted([*keys, manifest_key(manifests.hex_of(made.digest))])
    assert {name: (path / name).read_bytes() for name in made.files} == made.files


def test_chunks_are_shared_between_artifacts(counting: Counting, tmp_path: Path) -> None:
    first = source(seed=41)
    put_content(counting, write(first, tmp_path / "first"), first.manifest)
    second = Source({**first.files, "config": b"another"})
    counting.sent.clear()
    put_content(counting, write(second, tmp_path / "second"), second.manifest)
    assert len(counting.sent) == 2  # the one new chunk and the manifest


def test_a_fetch_goes_on_where_a_failed_one_stopped(counting: Counting, tmp_path: Path) -> None:
    made = source(seed=42)
    put_content(counting, write(made, tmp_path / "source"), made.manifest)
    last = chunk_key(made.manifest.distinct_chunks()[-1].sha256)
    good = counting.read_small(last, MIB)
    counting.put(last, b"rotten")
    cache = ArtifactCache(tmp_path / "cache")
    with pytest.raises(ArtifactCorrupt, match=last):
        fetch(counting, cache, made.digest)
    assert nothing_visible(cache)
    counting.put(last, good)
    counting.asked.clear()
    assert fetch(counting, cache, made.digest).is_dir()
    assert counting.asked == [manifest_key(manifests.hex_of(made.digest)), last]


def test_chunks_lost_in_a_power_cut_are_fetched_again(counting: Counting, tmp_path: Path) -> None:
    made = source(seed=44)
    put_content(counting, write(made, tmp_path / "source"), made.manifest)
    cache = ArtifactCache(tmp_path / "cache")
    assembly = made.open(cache)
    for chunk in assembly.missing():
        assembly.put(chunk, made.read(chunk))
    with (cache.partial_path(made.digest) / "tree" / "sub" / "weights").open("r+b") as file:
        file.seek(MIB)
        file.write(bytes(100))  # marked as written but never on disk
    rotten = chunk_key(made.manifest.files[-1].chunks[1])
    directories.verify_directory(fetch(counting, cache, made.digest), made.digest)
    assert counting.asked == [manifest_key(manifests.hex_of(made.digest)), rotten]


def test_a_chunk_that_changes_while_it_is_published_is_never_stored(counting: Counting, tmp_path: Path) -> None:
    made = source(seed=43)
    directory = write(made, tmp_path / "source")
    (directory / "config").write_bytes(bytes(50))
    with pytest.raises(ArtifactRefused, match="config changed while it was being published"):
        put_content(counting, directory, made.manifest)
    assert counting.size_of(chunk_key(made.manifest.files[0].sha256)) is None
    assert counting.size_of(manifest_key(manifests.hex_of(made.digest))) is None


def test_a_listing_is_paged_and_what_it_names_can_be_deleted(store: S3Store) -> None:
    began_unix_s = time.time()
    keys = [f"listed/{number:04}" for number in range(1003)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, key.encode()), keys))
    found = list(store.list("listed/"))
    assert [one.key for one in found] == keys
    assert {one.size_bytes for one in found} == {11}
    assert all(began_unix_s - 2 <= one.modified_unix_s <= time.time() + 2 for one in found)
    assert [one.key for one in store.list("listed/000")] == keys[:10]
    store.delete(iter([*keys[1:], "listed/nowhere"]))
    assert [one.key for one in store.list("listed/")] == keys[:1]
    store.delete([])
    store.delete(keys[:1])
    assert list(store.list("listed/")) == []


@pytest.mark.parametrize("there", [None, b"what was there before"])
@pytest.mark.parametrize("size_bytes", [500, 2_000_000])
def test_killed_upload_leaves_existing_objects(
    store: S3Store, s3_settings: S3Settings, tmp_path: Path, there: bytes | None, size_bytes: int
) -> None:
    """The store must not keep a partial body: an empty object under a chunk's name would look published."""
    key = f"killed/{there is None}/{size_bytes}"
    forked = S3Store(s3_settings)

    def prepare() -> None:
        if there is None:
            store.delete([key])
        else:
            store.put(key, there)

    def check() -> None:
        assert store.size_of(key) in (None if there is None else len(there), size_bytes)

    steps = killed_at_each_step(tmp_path, prepare=prepare, work=lambda: forked.put(key, bytes(size_bytes)), check=check)
    assert sum(step.startswith("http.client.send") for step in steps) >= 2
    forked.close()


@pytest.mark.parametrize("how", ["flip", "truncate", "extend", "empty"])
def test_a_corrupt_chunk_is_named_and_never_visible(store: S3Store, tmp_path: Path, how: str) -> None:
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


def test_absent_artifact_is_reported_missing(store: S3Store, tmp_path: Path) -> None:
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


def test_corrupt_artifact_stays_until_replaced(store: S3Store, s3_settings: S3Settings, tmp_path: Path) -> None:
    """An engine that has loaded it may read the directory at any time, also while the store is unavailable."""
    digest = publish_directory(store, make_adapter(tmp_path / "source"), uri(tmp_path))
    cache = ArtifactCache(tmp_path / "cache")
    readme = fetch(store, cache, digest) / "README.md"
    good = readme.read_bytes()
    readme.chmod(0o644)
    readme.write_bytes(b"?" + good[1:])
    nowhere = S3Store(dataclasses.replace(s3_settings, endpoint_url=f"http://127.0.0.1:{free_ports(1)[0]}"))
    with pytest.raises(StoreUnavailable):
        fetch(nowhere, cache, digest)
    nowhere.close()
    assert readme.is_file()
    assert fetch(store, cache, digest) == readme.parent
    assert readme.read_bytes() == good
    assert not list((cache.root / "trash").glob("*"))


def test_a_cache_that_cannot_be_opened_is_no_reason_to_fetch(store: S3Store, tmp_path: Path) -> None:
    digest = publish_directory(store, make_adapter(tmp_path / "source"), uri(tmp_path))
    cache = ArtifactCache(tmp_path / "cache")
    fetched = fetch(store, cache, digest)
    for left in (0, 1):
        with no_descriptors(left=left), pytest.raises(CacheFailed):
            fetch(store, cache, digest)
    assert fetch(store, cache, digest) == fetched


def test_many_fetches_of_one_digest_at_once_all_succeed(store: S3Store, tmp_path: Path) -> None:
    digest = publish_directory(store, make_adapter(tmp_path / "source"), uri(tmp_path))
    cache = ArtifactCache(tmp_path / "cache")
    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(lambda _: fetch(store, cache, digest), range(8)))
    assert paths == {cache.path_of(digest)}
    assert [path.name for path in (cache.root / "sha256").iterdir()] == [manifests.hex_of(digest)]


def test_many_processes_of_a_node_fetch_a_digest_once(store: S3Store, s3_settings: S3Settings, tmp_path: Path) -> None:
    digest = publish_directory(store, make_adapter(tmp_path / "source", seed=60), uri(tmp_path))
    cache = ArtifactCache(tmp_path / "cache")
    reader, writer = os.pipe()
    children = []
    for _ in range(6):
        child = os.fork()
        if child == 0:
            try:
                fetch(S3Store(s3_settings), cache, digest, on_fetch=lambda: os.write(writer, b"fetched "))
                os.write(writer, b"done ")
            finally:
                os._exit(0)
        children.append(child)
    os.close(writer)
    with os.fdopen(reader, "rb") as told:
        words = told.read().split()
    for child in children:
        os.waitpid(child, 0)
    assert (words.count(b"fetched"), words.count(b"done")) == (1, 6)


def test_slow_store_is_unavailable(store: S3Store, tmp_path: Path) -> None:
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


def test_other_bucket_is_never_contacted(store: S3Store, tmp_path: Path) -> None:
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
