"""Obtain adapters: simultaneous requests cost one fetch, and every request is checked."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from functions.api.ids import TenantId
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.errors import ArtifactRefused
from functions.artifacts.publish import publish_directory
from functions.artifacts.s3 import S3Store
from functions.artifacts.signatures import SignaturePolicy
from functions.replica.source import StoreSource
from tests.artifacts.adapter_files import make_adapter

pytestmark = pytest.mark.servers
TENANT = TenantId("acme")


class CountingStore(S3Store):
    """The real store; counts reads."""

    def stream(self, key: str, max_bytes: int) -> Iterator[bytes]:
        self.reads.append(key)
        return super().stream(key, max_bytes)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reads: list[str] = []


def source_of(store: S3Store, tmp_path: Path) -> StoreSource:
    return StoreSource(store, ArtifactCache(tmp_path / "cache"), max_rank=16, timeout_s=60.0)


async def test_simultaneous_requests_cost_one_fetch(store: S3Store, tmp_path: Path) -> None:
    digest = publish_directory(
        store, make_adapter(tmp_path / "a", seed=71), "s3://shoal-models/acme/once/v1", replace=True
    )
    counting = CountingStore(store.settings)
    source = source_of(counting, tmp_path)
    found = await asyncio.gather(*(source.obtain(digest, TENANT, urgent=turn % 2 == 0) for turn in range(10)))
    assert len({obtained.path for obtained in found}) == 1
    assert len(counting.reads) == len(set(counting.reads)), "each chunk and the manifest once"
    assert found[0].path.is_absolute()
    assert sorted(obtained.tier for obtained in found) == ["disk"] * 9 + ["s3"]
    counting.close()


async def test_an_unsigned_adapter_is_refused_where_signatures_are_required(store: S3Store, tmp_path: Path) -> None:
    source = make_adapter(tmp_path / "a", seed=72)
    digest = publish_directory(store, source, "s3://shoal-models/acme/unsigned/v1", replace=True)
    strict = source_of(store, tmp_path)
    strict.signatures = SignaturePolicy(required=True)
    with pytest.raises(ArtifactRefused, match="sign"):
        await strict.obtain(digest, TENANT)
    assert (await source_of(store, tmp_path).obtain(digest, TENANT)).tier == "disk"


async def test_fetched_artifact_that_is_no_adapter_is_refused(store: S3Store, tmp_path: Path) -> None:
    source = make_adapter(tmp_path / "a", r=32)
    digest = publish_directory(store, source, "s3://shoal-models/acme/wide/v1", replace=True)
    with pytest.raises(ArtifactRefused, match="over the limit of 16"):
        await source_of(store, tmp_path).obtain(digest, TENANT)
    wider = StoreSource(store, ArtifactCache(tmp_path / "cache"), max_rank=32, timeout_s=60.0)
    assert (await wider.obtain(digest, TENANT)).path.is_dir()
