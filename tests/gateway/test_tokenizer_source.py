"""Tokenizers of a gateway: one for each base that the snapshot names, fetched again with growing pauses."""

import asyncio
import json
import logging
import random
from collections.abc import Callable, Collection
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from functions.api.ids import Digest, ModelId
from functions.api.snapshot import ModelEntry, PoolEntry
from functions.artifacts import directories
from functions.artifacts.errors import ArtifactError, ArtifactMissing, StoreUnavailable
from functions.artifacts.s3 import S3Store
from functions.artifacts.tokenizers import TokenizerCache, publish
from functions.decisions.catalogue import Catalogue
from functions.gateway.prefix.exact_prefixes import ExactPrefixes
from functions.gateway.prefix.metrics import ExactPrefixStats
from functions.gateway.prefix.tokenizer_source import TokenizerSource
from tests.artifacts.memory_store import MemoryStore
from tests.gateway import rig
from tests.gateway.prompt_rig import model_dir
from tests.gateway.rig import POOL
from tests.gateway.test_exact_prefixes import admit, receive_blocks, taught

OLD, NEW = Digest("sha256:" + "a" * 64), Digest("sha256:" + "b" * 64)


class Store:
    """Fetches like the cache, from the artifacts in `there`."""

    def __init__(self, *there: Digest) -> None:
        self.there = {digest: Path("/cache") / digest[-4:] for digest in there}
        self.asked: list[Digest] = []
        self.error: ArtifactError = ArtifactMissing("the store has no such tokenizer")

    def __call__(self, digest: Digest, in_use: Collection[Digest]) -> Path:
        assert digest in in_use, "else it could be deleted at once"
        self.asked.append(digest)
        if digest not in self.there:
            raise self.error
        return self.there[digest]


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def catalogue_of(digest: Digest | None, source: str = "events", task: str = "generate") -> Catalogue:
    models = () if digest is None else (_base(digest),)
    pool = PoolEntry(POOL, context_window_tokens=2048, task=task)  # type: ignore[arg-type]
    return rig.catalogue(models=models, pools=(pool,), routing=(rig.routing(prefix_source=source),))


def _base(digest: Digest) -> ModelEntry:
    versions = (rig.version("v1", Digest("sha256:" + "0" * 64), POOL), rig.version("v2", digest, POOL))
    return ModelEntry(ModelId(POOL), POOL, "base", versions, {"stable": "v2", "canary": "v1"})


def source_of(store: Store, clock: Callable[[], float] = lambda: 0.0) -> TokenizerSource:
    return TokenizerSource(None, store, clock, lambda: 0.5)


async def test_each_base_is_fetched_once() -> None:
    store = Store(OLD)
    source = source_of(store)
    assert source.why_missing(POOL) == "", "nobody has asked yet"
    for _ in range(3):
        assert not await source.refresh(catalogue_of(OLD))
    assert (store.asked, source.directory_of(POOL), source.ready()) == ([OLD], store.there[OLD], {POOL: True})


async def test_changed_digest_changes_the_tokenizer() -> None:
    store = Store(OLD)
    source = source_of(store)
    await source.refresh(catalogue_of(OLD))
    assert await source.refresh(catalogue_of(NEW)), "what was learnt by the old one is worth nothing"
    assert (source.directory_of(POOL), source.ready()) == (None, {POOL: False})
    store.there[NEW] = Path("/cache/new")
    source = source_of(store)
    assert not await source.refresh(catalogue_of(NEW))
    assert source.directory_of(POOL) == Path("/cache/new")


@pytest.mark.parametrize(
    "catalogue", [catalogue_of(OLD, source="sent"), catalogue_of(OLD, task="embed")], ids=["sent", "embed"]
)
async def test_pools_without_exact_prefixes_fetch_no_tokenizer(catalogue: Catalogue) -> None:
    store = Store(OLD)
    source = source_of(store)
    await source.refresh(catalogue)
    assert (store.asked, source.ready()) == ([], {})


async def test_pool_without_a_base_in_force_is_not_ready() -> None:
    source = source_of(Store())
    await source.refresh(catalogue_of(None))
    assert source.ready() == {POOL: False}
    assert source.why_missing(POOL) == f"no version of the base model {POOL} is in force"


async def test_unavailable_store_is_retried_with_backoff(caplog: pytest.LogCaptureFixture) -> None:
    store, clock = Store(), Clock()
    store.error = StoreUnavailable("connection refused")
    source = source_of(store, clock)
    asked_s = []
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            before = len(store.asked)
            await source.refresh(catalogue_of(OLD))
            asked_s += [clock.now_s] * (len(store.asked) - before)
            clock.now_s += 1.0
    waited_s = [after - before for before, after in pairwise(asked_s)]
    assert waited_s == [2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert source.outcomes["unavailable"] == len(store.asked) == 10
    assert len(caplog.records) == 1, "one line, not one a try"
    assert source.why_missing(POOL) == "connection refused"
    store.there[OLD] = Path("/cache/old")
    clock.now_s += 300.0
    await source.refresh(catalogue_of(OLD))
    assert source.why_missing(POOL) == ""
    assert source.ready() == {POOL: True} and source.outcomes["fetched"] == 1


async def test_loop_runs_while_the_store_hangs() -> None:
    hung, ended = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def fetch(digest: Digest, in_use: Collection[Digest]) -> Path:
        loop.call_soon_threadsafe(hung.set)
        asyncio.run_coroutine_threadsafe(ended.wait(), loop).result(60)
        raise StoreUnavailable("timed out")

    source = TokenizerSource(None, fetch, lambda: 0.0, lambda: 0.5)
    task = asyncio.create_task(source.refresh(catalogue_of(OLD)))
    await asyncio.wait_for(hung.wait(), 60)
    assert source.directory_of(POOL) is None
    ended.set()
    await asyncio.wait_for(task, 60)
    assert source.outcomes["unavailable"] == 1


async def test_a_folder_needs_no_store(tmp_path: Path) -> None:
    source = TokenizerSource(tmp_path, None, lambda: 0.0, lambda: 0.5)
    assert not await source.refresh(catalogue_of(OLD))
    assert source.directory_of(POOL) == tmp_path / POOL


async def test_tokenizer_from_the_store_matches_replica_blocks(tmp_path: Path) -> None:
    """A model's files, published and fetched, give the same block names as the model's own directory."""
    objects = cast(S3Store, MemoryStore())
    folder = model_dir(tmp_path / "models") / POOL
    directories.write_manifest(folder)
    digest = publish(objects, folder)
    cache = TokenizerCache(tmp_path / "cache", 10**8)
    source = TokenizerSource(None, lambda one, in_use: cache.obtain(objects, one, in_use), lambda: 0.0, random.random)
    exact = ExactPrefixes(source, lambda: 0.0)
    receive_blocks(exact, "r0", [1])
    assert exact.matched(admit()) is None and len(exact.learner._queue) == 0, "nothing to learn it by"
    await exact.refresh_tokenizers(catalogue_of(digest))
    names = list(taught(exact, admit()).names)
    receive_blocks(exact, "r1", names)
    held = exact.matched(admit())
    assert held is not None and held.tokens == {"r1": len(names) * 16} and len(names) > 20
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    directories.write_manifest(folder)
    await exact.refresh_tokenizers(catalogue_of(publish(objects, folder)))
    assert exact.matched(admit()) is None, "what the former tokenizer settled is forgotten"


async def test_lesson_of_a_replaced_tokenizer_is_dropped() -> None:
    store = Store(OLD, NEW)
    exact = ExactPrefixes(source_of(store), lambda: 0.0)
    await exact.refresh_tokenizers(catalogue_of(OLD))
    receive_blocks(exact, "r0", [1])
    assert exact.matched(admit()) is None
    job = exact.learner._queue.next_job()
    assert job is not None and job.model_dir == store.there[OLD]
    await exact.refresh_tokenizers(catalogue_of(NEW))
    exact.store_learnt(job, None)  # type: ignore[arg-type]  # it would fail if it were kept


async def test_figures() -> None:
    exact = ExactPrefixes(source_of(Store()), lambda: 0.0)
    await exact.refresh_tokenizers(catalogue_of(OLD))
    registry = CollectorRegistry()
    registry.register(ExactPrefixStats(exact))
    page = generate_latest(registry).decode()
    assert f'shoal_prefix_tokenizer_ready{{pool="{POOL}"}} 0.0' in page
    assert 'shoal_prefix_tokenizer_fetches_total{outcome="missing"} 1.0' in page
