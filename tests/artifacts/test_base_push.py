"""Push base weights into the store: the same digest from any source, little memory, nothing sent or hashed twice."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import cast

import pytest

from functions.artifacts import base_push, directories
from functions.artifacts import manifest as manifests
from functions.artifacts.base_push import JOURNAL_NAME, push
from functions.artifacts.base_sources import BucketSource, FolderSource, SourceFile, WeightSource, parse_source_uri
from functions.artifacts.errors import ArtifactMissing, ArtifactRefused, VersionTaken
from functions.artifacts.locations import WeightsName, chunk_key, manifest_key, parse_weights_name, tokenizer_key
from functions.artifacts.publish import read_pointer
from functions.artifacts.s3 import S3Store
from tests.artifacts.memory_store import MemoryStore
from tests.artifacts.test_base_folder import model

MIB = 1024**2
NAME = WeightsName("llama", "v1")


class Killed(BaseException):
    """Exception that stands for SIGKILL: no `except Exception` block may clean up after it."""


class CountingStore(MemoryStore):
    """Store that counts written chunks; `dies` is called before each write and may kill it."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks_written = 0
        self.dies: Callable[[str], bool] = lambda _: False

    def put(self, key: str, body: bytes, *, sha256: str | None = None) -> None:
        if self.dies(key):
            raise Killed
        self.chunks_written += key.startswith("chunks/")
        super().put(key, body, sha256=sha256)

    @property
    def as_s3(self) -> S3Store:
        return cast(S3Store, self)


@dataclass
class Counted:
    """Source that counts the bytes read from each file and the largest single read."""

    source: WeightSource
    read_bytes: dict[str, int] = field(default_factory=dict)
    most_bytes: int = 0

    def files(self) -> tuple[SourceFile, ...]:
        return self.source.files()

    def read(self, path: str, start: int, length: int) -> bytes:
        content = self.source.read(path, start, length)
        self.read_bytes[path] = self.read_bytes.get(path, 0) + len(content)
        self.most_bytes = max(self.most_bytes, len(content))
        return content


def base(folder: Path, shards: int = 3, shard_bytes: int = 9 * MIB) -> Path:
    """A model whose shards are several chunks each."""
    model(folder)
    for index in range(shards):
        (folder / f"model-{index}.safetensors").write_bytes(Random(index).randbytes(shard_bytes))
    return folder


def pushed(
    store: CountingStore, source: WeightSource, name: WeightsName = NAME, **options: bool
) -> base_push.PushedBase:
    return push(store.as_s3, source, name, source.files(), **options)


def test_pushed_base_has_the_digest_of_its_folder(tmp_path: Path) -> None:
    folder, store = base(tmp_path / "llama"), CountingStore()
    done = pushed(store, FolderSource(folder))
    assert done.digest == manifests.digest_of(manifests.encode(directories.build_manifest(folder)))
    assert read_pointer(store.as_s3, done.artifact_uri) == done.digest
    assert done.artifact_uri == "s3://shoal-models/bases/llama/v1"
    assert {chunk_key(chunk.sha256) for chunk in done.manifest.chunks()} <= store.objects.keys()
    assert all(hashlib.sha256(body).hexdigest() == key.rpartition("/")[2] for key, body in store.objects.items()
               if key.startswith("chunks/"))  # fmt: skip
    hex_ = manifests.hex_of(done.digest)
    assert manifest_key(hex_) in store.objects
    assert tokenizer_key(hex_, "config.json") in store.objects
    assert not [key for key in store.objects if key.endswith(JOURNAL_NAME)]


def test_no_more_than_a_chunk_is_read_at_once(tmp_path: Path) -> None:
    source = Counted(FolderSource(base(tmp_path / "llama")))
    pushed(CountingStore(), source)
    assert source.most_bytes == manifests.CHUNK_DEFAULT_BYTES


def test_a_bucket_gives_the_digest_that_its_folder_has(tmp_path: Path) -> None:
    folder, elsewhere, store = base(tmp_path / "llama"), CountingStore(), CountingStore()
    for path in directories.plain_files(folder):
        elsewhere.put(f"hub/llama/{path}", (folder / path).read_bytes())
    elsewhere.put("hub/llama/.gitattributes", b"what a download left")
    source = BucketSource(_ranged(elsewhere), "hub/llama")
    assert pushed(store, source).digest == pushed(CountingStore(), FolderSource(folder)).digest


@pytest.mark.parametrize("at", ["the second chunk of the second shard", "the journal", "the pointer"])
def test_killed_push_is_resumed(tmp_path: Path, at: str) -> None:
    folder, store = base(tmp_path / "llama"), CountingStore()
    clean = pushed(CountingStore(), FolderSource(folder))
    second = [chunk for chunk in clean.manifest.chunks() if chunk.path == "model-1.safetensors"][1]
    doomed = {
        "the second chunk of the second shard": chunk_key(second.sha256),
        "the journal": f"bases/llama/v1/{JOURNAL_NAME}",
        "the pointer": "bases/llama/v1/shoal-manifest.json",
    }[at]
    writes: list[str] = []

    def dies(key: str) -> bool:
        writes.append(key)
        return key == doomed and (at != "the journal" or writes.count(key) == 4)  # after the fourth file

    store.dies = dies
    with pytest.raises(Killed):
        pushed(store, FolderSource(folder))
    store.dies = lambda _: False
    source = Counted(FolderSource(folder))
    done = pushed(store, source)
    assert done.digest == clean.digest
    assert store.chunks_written == clean.chunks  # in both runs together: no chunk twice
    assert "model-0.safetensors" not in source.read_bytes  # hashed by the first run
    assert done.resumed_files >= 2


def test_a_file_that_changed_meanwhile_is_hashed_anew(tmp_path: Path) -> None:
    folder, store = base(tmp_path / "llama"), CountingStore()
    store.dies = lambda key: key.endswith("/shoal-manifest.json")
    with pytest.raises(Killed):
        pushed(store, FolderSource(folder))
    store.dies = lambda _: False
    (folder / "model-0.safetensors").write_bytes(Random(99).randbytes(9 * MIB))
    done = pushed(store, FolderSource(folder))
    assert done.digest == pushed(CountingStore(), FolderSource(folder)).digest


def test_push_under_an_existing_version_sends_nothing(tmp_path: Path) -> None:
    folder, store = base(tmp_path / "llama"), CountingStore()
    first = pushed(store, FolderSource(folder))
    written = store.chunks_written
    (folder / "model-0.safetensors").write_bytes(Random(99).randbytes(9 * MIB))
    with pytest.raises(VersionTaken, match="never changes"):
        pushed(store, FolderSource(folder))
    assert store.chunks_written == written
    assert read_pointer(store.as_s3, first.artifact_uri) == first.digest


def test_repeated_push_repairs_missing_and_on_request_corrupt_chunks(tmp_path: Path) -> None:
    folder, store = base(tmp_path / "llama"), CountingStore()
    first = pushed(store, FolderSource(folder))
    keys = sorted(key for key in store.objects if key.startswith("chunks/"))
    del store.objects[keys[0]]
    assert pushed(store, FolderSource(folder)).sent_chunks == 1
    store.objects[keys[1]] = bytes(len(store.objects[keys[1]]))
    assert pushed(store, FolderSource(folder)).sent_chunks == 0
    assert pushed(store, FolderSource(folder), reread=True).sent_chunks == 1
    assert hashlib.sha256(store.objects[keys[1]]).hexdigest() == keys[1].rpartition("/")[2]
    assert first.sent_chunks == len(keys)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: [path.unlink() for path in folder.glob("*.safetensors")], "has no safetensors"),
        (lambda folder: (folder / ".cache").mkdir(), "is not part of a model"),
        (lambda folder: (folder / "tokenizer.model").symlink_to("/etc/passwd"), "is a link"),
        (lambda folder: (folder / "-x.safetensors").write_bytes(b"x"), "is not allowed"),
    ],
)
def test_push_without_a_model_is_refused_before_sending(
    tmp_path: Path, spoil: Callable[[Path], object], said: str
) -> None:
    folder = base(tmp_path / "llama", shards=1)
    spoil(folder)
    with pytest.raises(ArtifactRefused, match=said):
        FolderSource(folder).files()


def test_names_are_read_strictly() -> None:
    assert parse_weights_name("shoal://llama-3-8b@v1") == WeightsName("llama-3-8b", "v1")
    assert parse_weights_name("llama-3-8b@v1").uri == "shoal://llama-3-8b@v1"
    for text in ("llama", "acme/llama@v1", "llama@", "llama@../x", "shoal://llama@v1/x", "Llama@v1", "s3://llama@v1"):
        with pytest.raises(ArtifactRefused):
            parse_weights_name(text)
    assert parse_source_uri("s3://hub/a/b/") == ("hub", "a/b")
    with pytest.raises(ArtifactRefused):
        parse_source_uri("https://hub/a")


def test_empty_prefix_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ArtifactMissing, match="holds no files"):
        BucketSource(_ranged(CountingStore()), "nowhere").files()


def _ranged(store: CountingStore) -> S3Store:
    """Return an S3Store whose client serves range requests from `store`."""

    class Body:
        def __init__(self, content: bytes) -> None:
            self.content = content

        def __enter__(self) -> "Body":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def read(self, length: int) -> bytes:
            return self.content[:length]

    class Client:
        def get_object(self, **asked: str) -> dict[str, Body]:
            first, last = (int(text) for text in asked["Range"].removeprefix("bytes=").split("-"))
            return {"Body": Body(store.objects[asked["Key"]][first : last + 1])}

    store.client = Client()  # type: ignore[attr-defined]
    return store.as_s3
