"""Killed (-9) at every step: nothing partial is visible, the next run completes, and the garbage is cleaned."""

import shutil
from itertools import count
from pathlib import Path

import pytest

from functions.api.ids import Digest
from functions.artifacts import directories
from functions.artifacts.cache import PARTIAL_KEPT_S, ArtifactCache
from functions.artifacts.errors import ArtifactMissing
from functions.artifacts.fetch import fetch
from functions.artifacts.publish import publish_directory, put_content, read_pointer
from functions.artifacts.s3 import S3Settings, S3Store
from tests.artifacts.adapter_files import make_adapter
from tests.artifacts.kill_points import killed_at_each_step
from tests.artifacts.test_assembly import Source, source
from tests.artifacts.test_cache import NOW_UNIX_S, install, leftovers
from tests.soak import every

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]  # a process for each of up to fifty steps


def visible(cache: ArtifactCache) -> list[Digest]:
    """Return the artifacts visible in the cache; fail if one of them is not whole."""
    found = [cached.digest for cached in cache.digests()]
    for digest in found:
        directories.verify_directory(cache.path_of(digest), digest)
    assert [path.name for path in (cache.root / "sha256").glob("*") if f"sha256:{path.name}" not in found] == []
    return found


def clean_and_empty(cache: ArtifactCache) -> bool:
    """Collect garbage as a day later and return whether no leftovers remain."""
    cache.clean_garbage(NOW_UNIX_S + 2 * PARTIAL_KEPT_S)
    return leftovers(cache) == []


def write(made: Source, directory: Path) -> Path:
    for path, content in made.files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
    return directory


@every(7)
def test_assembly_killed_at_every_step(tmp_path: Path, every: int) -> None:
    cache, made = ArtifactCache(tmp_path), source()

    def assemble() -> None:
        with cache.single_flight(made.digest, timeout_s=0.0):
            if cache.held(made.digest):
                return
            assembly = made.open(cache)
            for chunk in assembly.missing():
                assembly.put(chunk, made.read(chunk))
            assembly.finish()

    def check() -> None:
        assert visible(cache) in ([], [made.digest])
        assemble()
        assert visible(cache) == [made.digest]
        assert clean_and_empty(cache)

    def prepare() -> None:
        shutil.rmtree(tmp_path / "sha256", ignore_errors=True)

    steps = killed_at_each_step(tmp_path, prepare=prepare, work=assemble, check=check, every=every)
    assert len(steps) * every > 40
    assert every > 1 or any(step.startswith("os.rename") and "/sha256/" in step for step in steps)


@every(6)
@pytest.mark.parametrize("how", ["evict", "discard"])
def test_removal_killed_at_every_step(tmp_path: Path, how: str, every: int) -> None:
    cache = ArtifactCache(tmp_path)
    digests: list[Digest] = []

    def prepare() -> None:
        digests[:] = [install(cache, seed, used_unix_s=NOW_UNIX_S + seed) for seed in range(2)]

    def remove() -> None:
        if how == "evict":
            cache.evict(0)
        else:
            for digest in digests:
                cache.discard(digest)

    def check() -> None:
        assert visible(cache) in (digests, digests[1:], [])
        remove()
        assert visible(cache) == []
        assert clean_and_empty(cache)

    steps = killed_at_each_step(tmp_path, prepare=prepare, work=remove, check=check, every=every)
    assert steps
    assert every > 1 or sum(step.startswith("os.rename") for step in steps) == 2


@every(7)
def test_killed_fetch_resumes_with_present_chunks(s3_settings: S3Settings, tmp_path: Path, every: int) -> None:
    made = source(seed=900)
    own, forked = S3Store(s3_settings), S3Store(s3_settings)  # a forked child must not share the parent's connections
    put_content(own, write(made, tmp_path / "source"), made.manifest)
    cache = ArtifactCache(tmp_path / "cache")

    def prepare() -> None:
        shutil.rmtree(cache.root, ignore_errors=True)

    def check() -> None:
        assert visible(cache) in ([], [made.digest])
        assert fetch(own, cache, made.digest) == cache.path_of(made.digest)
        assert visible(cache) == [made.digest]
        assert clean_and_empty(cache)

    steps = killed_at_each_step(
        cache.root, prepare=prepare, work=lambda: fetch(forked, cache, made.digest), check=check, every=every
    )
    assert len(steps) * every > 40
    assert every > 1 or any(step.startswith("http.client.send") for step in steps)
    own.close()
    forked.close()


@every(6)
def test_killed_publish_never_points_at_missing_objects(s3_settings: S3Settings, tmp_path: Path, every: int) -> None:
    own, forked = S3Store(s3_settings), S3Store(s3_settings)
    numbers = count(1000)
    current = next(numbers)

    def uri() -> str:
        return f"s3://shoal-models/acme/killed/v{current}"

    def prepare() -> None:
        nonlocal current
        current = next(numbers)
        make_adapter(tmp_path / str(current), seed=current)

    def check() -> None:
        cache = ArtifactCache(tmp_path / f"cache-{current}")
        try:
            digest = read_pointer(own, uri())
        except ArtifactMissing:
            digest = publish_directory(own, tmp_path / str(current), uri())
        assert fetch(own, cache, digest).is_dir()
        assert publish_directory(own, tmp_path / str(current), uri()) == digest

    steps = killed_at_each_step(
        tmp_path,
        prepare=prepare,
        work=lambda: publish_directory(forked, tmp_path / str(current), uri()),
        check=check,
        every=every,
    )
    assert steps
    assert every > 1 or sum(step.startswith("http.client.send") for step in steps) >= 8
    own.close()
    forked.close()
