"""A base model's tokenizer in the store and on disk: under the base's digest, and only files in its manifest."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from functions.api.ids import Digest
from functions.artifacts import directories
from functions.artifacts.collect import Collected, collect
from functions.artifacts.errors import ArtifactCorrupt, ArtifactMissing, ArtifactRefused, CacheFailed
from functions.artifacts.s3 import S3Store
from functions.artifacts.tokenizers import TokenizerCache, publish
from tests.artifacts.gc_ledger import FileLedger
from tests.artifacts.memory_store import MemoryStore

ROOM = 10 * 1024**2


@pytest.fixture
def objects() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def store(objects: MemoryStore) -> S3Store:
    return cast(S3Store, objects)


def base(folder: Path, text: str = "one", weights: bytes = b"w" * 100) -> Path:
    """A base model's folder, with its manifest."""
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text(json.dumps({"model": text}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    (folder / "model.safetensors").write_bytes(weights)
    directories.write_manifest(folder)
    return folder


def test_fetched_tokenizer_equals_the_published_one(store: S3Store, objects: MemoryStore, tmp_path: Path) -> None:
    folder = base(tmp_path / "base")
    digest = publish(store, folder)
    assert digest == directories.read_manifest(folder)[0], "the digest that a snapshot has of the base's version"
    found = TokenizerCache(tmp_path / "cache", ROOM).obtain(store, digest, ())
    assert {path.name for path in found.iterdir()} == {"tokenizer.json", "tokenizer_config.json", "manifest.json"}
    assert (found / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    assert not any("safetensors" in key for key in objects.objects), "weights stay where they are"


def test_the_manifest_comes_last(objects: MemoryStore, tmp_path: Path) -> None:
    """A killed publisher leaves nothing that looks like a whole artifact."""

    class Dying(MemoryStore):
        def put(self, key: str, body: bytes, *, sha256: str | None = None) -> None:
            if "tokenizer_config" in key:
                raise OSError("killed")
            super().put(key, body, sha256=sha256)

    dying, folder = Dying(), base(tmp_path / "base")
    with pytest.raises(OSError, match="killed"):
        publish(cast(S3Store, dying), folder)
    with pytest.raises(ArtifactMissing):
        TokenizerCache(tmp_path / "cache", ROOM).obtain(cast(S3Store, dying), directories.read_manifest(folder)[0], ())
    digest = publish(cast(S3Store, objects), folder)
    assert TokenizerCache(tmp_path / "cache", ROOM).obtain(cast(S3Store, objects), digest, ()).is_dir()


def test_a_folder_that_its_manifest_does_not_name_is_not_published(store: S3Store, tmp_path: Path) -> None:
    folder = base(tmp_path / "base")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ArtifactCorrupt):
        publish(store, folder)


def test_a_base_without_a_tokenizer_is_refused(store: S3Store, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "model.safetensors").write_bytes(b"w")
    directories.write_manifest(tmp_path / "base")
    with pytest.raises(ArtifactRefused, match="no tokenizer"):
        publish(store, tmp_path / "base")


@pytest.mark.parametrize("name", ["tokenizer.json", "manifest.json"])
def test_tokenizer_from_the_store_is_verified(store: S3Store, objects: MemoryStore, tmp_path: Path, name: str) -> None:
    digest, cache = publish(store, base(tmp_path / "base")), TokenizerCache(tmp_path / "cache", ROOM)
    (key,) = [key for key in objects.objects if key.endswith(name)]
    sound = objects.objects[key]
    objects.objects[key] = sound[:-2] + b" }"
    with pytest.raises(ArtifactCorrupt):
        cache.obtain(store, digest, ())
    assert cache.held(digest) is None
    publish(store, tmp_path / "base")
    assert objects.objects[key] == sound and cache.obtain(store, digest, ()).is_dir()


def test_cached_tokenizer_needs_no_store_after_a_restart(store: S3Store, tmp_path: Path) -> None:
    digest = publish(store, base(tmp_path / "base"))
    TokenizerCache(tmp_path / "cache", ROOM).obtain(store, digest, ())
    again = TokenizerCache(tmp_path / "cache", ROOM)
    nothing = cast(S3Store, MemoryStore())
    assert again.obtain(nothing, digest, ()) == tmp_path / "cache" / digest.removeprefix("sha256:")


def test_corrupt_tokenizer_on_disk_is_fetched_again(store: S3Store, tmp_path: Path) -> None:
    digest, cache = publish(store, base(tmp_path / "base")), TokenizerCache(tmp_path / "cache", ROOM)
    (cache.obtain(store, digest, ()) / "tokenizer.json").write_text("rot")
    assert cache.held(digest) is None
    assert (cache.obtain(store, digest, ()) / "tokenizer.json").read_bytes() == (
        tmp_path / "base" / "tokenizer.json"
    ).read_bytes()


@pytest.fixture
def three(store: S3Store, tmp_path: Path) -> Iterator[list[Digest]]:
    """Bases whose tokenizers take about 300 kB each."""
    yield [publish(store, base(tmp_path / f"base-{n}", f"{n}" * 300_000)) for n in range(3)]


def test_least_recently_used_tokenizer_is_evicted(store: S3Store, tmp_path: Path, three: list[Digest]) -> None:
    cache = TokenizerCache(tmp_path / "cache", 700_000)
    for at, digest in enumerate(three[:2]):
        os.utime(cache.obtain(store, digest, ()), (at, at))
    assert cache.held(three[0]), "asked for since"
    (tmp_path / "cache" / ".left-by-a-killed-one").mkdir()
    cache.obtain(store, three[2], ())
    assert [cache.held(digest) is not None for digest in three] == [True, False, True]
    assert not (tmp_path / "cache" / ".left-by-a-killed-one").exists()


def test_used_tokenizer_is_not_evicted(store: S3Store, tmp_path: Path, three: list[Digest]) -> None:
    cache = TokenizerCache(tmp_path / "cache", 700_000)
    for digest in three[:2]:
        cache.obtain(store, digest, three[:2])
    with pytest.raises(CacheFailed, match="do not fit"):
        cache.obtain(store, three[2], three)
    assert [cache.held(digest) is not None for digest in three] == [True, True, False]


def test_failed_disk_write_is_reported_as_such(store: S3Store, tmp_path: Path) -> None:
    digest = publish(store, base(tmp_path / "base"))
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(CacheFailed, match="cannot be written"):
        TokenizerCache(tmp_path / "cache", ROOM).obtain(store, digest, ())


def test_garbage_is_collected_around_them(store: S3Store, objects: MemoryStore, tmp_path: Path) -> None:
    publish(store, base(tmp_path / "base"))
    before = dict(objects.objects)
    collected: Collected = collect(objects, list, FileLedger(tmp_path / "ledger"), now_unix_s=10.0**9, grace_s=0.0)
    assert (collected.candidates, objects.objects) == (0, before)
