"""Obtaining adapters: fetched once however many ask, checked every time."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from functions.artifacts.cache import ArtifactCache
from functions.artifacts.errors import ArtifactRefused
from functions.artifacts.publish import publish_directory
from functions.artifacts.s3 import S3Store
from functions.replica.source import StoreSource
from tests.artifacts.adapter_files import make_adapter

pytestmark = pytest.mark.servers


class CountingStore(S3Store):
    """The real store; counts what is read."""

    def stream(self, key: str, max_bytes: int) -> Iterator[bytes]:
        self.reads.append(key)
        return super().stream(key, max_bytes)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reads: list[str] = []


def source_of(store: S3Store, tmp_path: Path) -> StoreSource:
    return StoreSource(store, ArtifactCache(tmp_path / "cache"), max_rank=16, timeout_s=10.0)


async def test_many_who_ask_at_once_cost_one_fetch(store: S3Store, tmp_path: Path) -> None:
    digest = publish_directory(
        store, make_adapter(tmp_path / "a", seed=71), "s3://shoal-models/acme/once/v1", replace=True
    )
    counting = CountingStore(store.settings)
    source = source_of(counting, tmp_path)
    paths = await asyncio.gather(*(source.obtain(digest) for _ in range(10)))
    assert len(set(paths)) == 1
    assert len(counting.reads) == 4  # the manifest and three files
    assert paths[0].is_absolute()
    counting.close()


async def test_what_is_fetched_but_no_adapter_is_refused(store: S3Store, tmp_path: Path) -> None:
    source = make_adapter(tmp_path / "a", r=32)
    digest = publish_directory(store, source, "s3://shoal-models/acme/wide/v1", replace=True)
    with pytest.raises(ArtifactRefused, match="max_lora_rank 16"):
        await source_of(store, tmp_path).obtain(digest)
    wider = StoreSource(store, ArtifactCache(tmp_path / "cache"), max_rank=32, timeout_s=10.0)
    assert (await wider.obtain(digest)).is_dir()
