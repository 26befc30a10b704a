"""Ingest an artifact by digest from another region's store: hashes are verified and all checks apply."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from functions.api.ids import Digest, TenantId
from functions.artifacts.errors import ArtifactCorrupt, ArtifactMissing, ArtifactRefused, StoreUnavailable
from functions.artifacts.ingest import Expectation, Ingest
from functions.artifacts.locations import CHUNKS_PREFIX
from functions.artifacts.publish import publish_content
from tests.artifacts.adapter_files import make_adapter
from tests.artifacts.hostile import HOSTILE
from tests.artifacts.memory_store import MemoryStore

EXPECT = Expectation(tenant=TenantId("acme"))


class CountingStore(MemoryStore):
    """The other region's store; it becomes unavailable after a number of chunks."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks_read = 0
        self.gone_after = 1000

    def stream(self, key: str, max_bytes: int) -> Iterator[bytes]:
        if key.startswith(CHUNKS_PREFIX):
            if self.chunks_read >= self.gone_after:
                raise StoreUnavailable("it is gone")
            self.chunks_read += 1
        yield from super().stream(key, max_bytes)


@pytest.fixture
def there() -> CountingStore:
    return CountingStore()


@pytest.fixture
def here(tmp_path: Path) -> Ingest:
    return Ingest(MemoryStore(), tmp_path / "staging")


def published(store: MemoryStore, folder: Path) -> Digest:
    return publish_content(store, make_adapter(folder))


def left(here: Ingest) -> list[str]:
    return [path.name for path in here.staging_root.rglob("*") if path.is_file() and path.parent.name != "locks"]


def test_ingested_artifact_equals_the_other_regions(here: Ingest, there: CountingStore, tmp_path: Path) -> None:
    digest = published(there, tmp_path / "adapter")
    assert here.from_source(there, digest, EXPECT).digest == digest
    assert here.store.objects == there.objects
    assert left(here) == []


def test_content_with_another_digest_is_rejected(here: Ingest, there: CountingStore, tmp_path: Path) -> None:
    digest = published(there, tmp_path / "adapter")
    for key in [key for key in there.objects if key.startswith(CHUNKS_PREFIX)]:
        there.objects[key] = b"x" * len(there.objects[key])
    with pytest.raises(ArtifactCorrupt):
        here.from_source(there, digest, EXPECT)
    assert here.store.objects == {}
    with pytest.raises(ArtifactMissing):
        here.from_source(there, Digest("sha256:" + "0" * 64), EXPECT)


def test_resumed_ingest_does_not_read_chunks_again(here: Ingest, there: CountingStore, tmp_path: Path) -> None:
    digest = published(there, tmp_path / "adapter")
    chunks = len([key for key in there.objects if key.startswith(CHUNKS_PREFIX)])
    there.gone_after = 1
    with pytest.raises(StoreUnavailable):
        here.from_source(there, digest, EXPECT)
    there.gone_after = 1000
    again = Ingest(here.store, here.staging_root)  # as after a restart
    assert again.from_source(there, digest, EXPECT).digest == digest
    assert there.chunks_read == chunks > 1


@pytest.mark.parametrize("name", ["folder", "code beside", "pickle as weights", "NaN in F32"])
def test_ingest_applies_the_checks_of_uploads(here: Ingest, there: CountingStore, tmp_path: Path, name: str) -> None:
    source = tmp_path / "hostile"
    source.mkdir()
    HOSTILE[name].build(source)
    digest = publish_content(there, source)
    with pytest.raises(ArtifactRefused):
        here.from_source(there, digest, EXPECT)
    assert here.store.objects == {} and left(here) == []
