"""The cache is bounded, holds only whole artifacts, and evicts only unused ones."""

import os
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path

import pytest

from functions.api.ids import Digest
from functions.artifacts import directories
from functions.artifacts.cache import PARTIAL_KEPT_S, TOUCH_EVERY_S, ArtifactCache
from functions.artifacts.errors import ArtifactCorrupt, ArtifactMissing, CacheFailed, FetchUnderway
from tests.artifacts.adapter_files import make_adapter
from tests.artifacts.test_assembly import Source, source

NOW_UNIX_S = 1_800_000_000.0


def install(cache: ArtifactCache, seed: int = 0, *, used_unix_s: float | None = None) -> Digest:
    """Put one adapter into the cache as a fetch would."""
    staged = make_adapter(cache.root / f"staged-{seed}", seed=seed)
    digest = directories.write_manifest(staged)
    path = cache.install(staged, digest)
    if used_unix_s is not None:
        os.utime(path, (used_unix_s, used_unix_s))
    return digest


def leftovers(cache: ArtifactCache) -> list[str]:
    """Return all files that are not part of a whole artifact."""
    folders = ("partial", "locks", "trash")
    return sorted(str(path.relative_to(cache.root)) for name in folders for path in (cache.root / name).glob("*"))


def test_installed_artifact_is_found_verified_and_world_readable(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path)
    digest = install(cache)
    found = cache.verified(digest)
    assert found == tmp_path / "sha256" / digest.removeprefix("sha256:")
    assert found.stat().st_mode & 0o777 == 0o755
    assert cache.held(digest)


def test_an_unknown_digest_is_not_there(tmp_path: Path) -> None:
    unknown = Digest("sha256:" + "0" * 64)
    cache = ArtifactCache(tmp_path)
    assert cache.verified(unknown) is None
    assert not cache.held(unknown)
    assert cache.digests() == []
    assert cache.evict(0) == []
    with pytest.raises(ArtifactMissing, match="not in the cache"), cache.use(unknown):
        pass


def test_bit_rot_is_found_and_discarded(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path)
    digest = install(cache)
    (cache.path_of(digest) / "README.md").write_text("# another\n")
    with pytest.raises(ArtifactCorrupt, match=r"README\.md"):
        cache.verified(digest)
    cache.discard(digest)
    assert cache.verified(digest) is None
    assert leftovers(cache) == []


def test_a_directory_without_a_manifest_is_discarded(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path)
    digest = Digest("sha256:" + "0" * 64)
    cache.path_of(digest).mkdir(parents=True)
    (cache.path_of(digest) / "x").write_text("x")
    assert cache.verified(digest) is None
    assert not cache.path_of(digest).exists()


def test_the_second_of_two_installs_is_as_good(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path)
    first = install(cache)
    assert install(cache) == first
    assert cache.verified(first) is not None


def test_the_list_is_in_the_order_of_use_and_survives_a_restart(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path)
    old, middle, new = (install(cache, seed, used_unix_s=NOW_UNIX_S + seed) for seed in (1, 2, 3))
    (tmp_path / "sha256" / "not-a-digest").mkdir()
    assert [found.digest for found in ArtifactCache(tmp_path).digests()] == [old, middle, new]
    cache.touch(old, NOW_UNIX_S + 1000)
    listed = ArtifactCache(tmp_path).digests()
    assert [found.digest for found in listed] == [middle, new, old]
    assert listed[-1].last_used_unix_s == NOW_UNIX_S + 1000
    assert all(found.size_bytes >= sum(f.stat().st_size for f in cache.path_of(old).iterdir()) for found in listed)


def test_use_is_recorded_at_most_once_a_minute(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path)
    digest = install(cache, used_unix_s=NOW_UNIX_S)
    cache.touch(digest, NOW_UNIX_S + TOUCH_EVERY_S - 1)
    assert cache.path_of(digest).stat().st_mtime == NOW_UNIX_S
    cache.touch(digest, NOW_UNIX_S + TOUCH_EVERY_S)
    assert cache.path_of(digest).stat().st_mtime == NOW_UNIX_S + TOUCH_EVERY_S
    cache.touch(Digest("sha256:" + "0" * 64))  # evicted meanwhile: no use to record


def test_least_recently_used_are_evicted_until_the_rest_fits(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path)
    digests = [install(cache, seed, used_unix_s=NOW_UNIX_S + seed) for seed in range(5)]
    size_bytes = cache.digests()[0].size_bytes
    assert cache.evict(5 * size_bytes) == []
    assert cache.evict(3 * size_bytes) == digests[:2]
    assert cache.evict(3 * size_bytes - 1) == [digests[2]]
    assert [found.digest for found in cache.digests()] == digests[3:]
    assert leftovers(cache) == []


def test_pinned_or_used_artifacts_are_never_evicted(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path)
    pinned, used, idle = (install(cache, seed, used_unix_s=NOW_UNIX_S + seed) for seed in range(3))
    with ArtifactCache(tmp_path).use(used) as path:
        assert cache.evict(0, pinned={pinned}) == [idle]
        assert (path / "adapter_config.json").is_file()
        with cache.use(used):
            assert cache.evict(0, pinned={pinned}) == []
    assert cache.evict(0, pinned={pinned}) == [used]
    assert cache.held(pinned)


def test_unfinished_fetch_is_evicted_first_unless_running(tmp_path: Path) -> None:
    cache, unfinished = ArtifactCache(tmp_path), source()
    digest = install(cache)
    size_bytes = cache.digests()[0].size_bytes
    assembly = unfinished.open(cache)
    for chunk in assembly.missing():
        assembly.put(chunk, unfinished.read(chunk))
    with cache.single_flight(unfinished.digest):
        assert cache.evict(size_bytes, pinned={digest}) == []
        assert cache.partial_path(unfinished.digest).exists()
    assert cache.evict(size_bytes, pinned={unfinished.digest}) == [digest]
    assert cache.partial_path(unfinished.digest).exists()
    assert cache.evict(size_bytes) == []
    assert not cache.partial_path(unfinished.digest).exists()


def test_concurrent_evictions_evict_each_artifact_once(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path)
    digests = {install(cache, seed, used_unix_s=NOW_UNIX_S + seed) for seed in range(8)}
    half = sum(found.size_bytes for found in cache.digests()) // 2
    barrier = threading.Barrier(4)
    evicted: list[Digest] = []

    def evict() -> None:
        barrier.wait()
        evicted.extend(ArtifactCache(tmp_path).evict(half))

    threads = [threading.Thread(target=evict) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(evicted) == 4
    assert {found.digest for found in cache.digests()} == digests - set(evicted)


def test_single_flight_per_digest(tmp_path: Path) -> None:
    digest, other = Digest("sha256:" + "1" * 64), Digest("sha256:" + "2" * 64)
    cache = ArtifactCache(tmp_path)
    ticks = count()
    with cache.single_flight(digest), cache.single_flight(other):
        second = ArtifactCache(tmp_path).single_flight(
            digest, timeout_s=3.0, clock=lambda: float(next(ticks)), sleep=lambda _: None
        )
        with pytest.raises(FetchUnderway, match=f"{digest} for 3 s"), second:
            pass
    with cache.single_flight(digest):
        pass
    assert leftovers(cache) == []


def test_waiting_flights_run_one_after_the_other(tmp_path: Path) -> None:
    """Twelve threads enter one flight; at most one is inside at a time."""
    digest = Digest("sha256:" + "1" * 64)
    inside: list[int] = []
    most = 0

    def fly() -> None:
        nonlocal most
        with ArtifactCache(tmp_path).single_flight(digest, timeout_s=60.0):
            inside.append(1)
            most = max(most, len(inside))
            inside.pop()

    threads = [threading.Thread(target=fly) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert leftovers(ArtifactCache(tmp_path)) == []


_HOLD = """
import sys
from pathlib import Path
from functions.artifacts.cache import ArtifactCache
cache = ArtifactCache(Path(sys.argv[1]))
with cache.single_flight(sys.argv[2]), cache.use(sys.argv[3]):
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_killed_process_releases_its_locks(tmp_path: Path) -> None:
    cache, unfinished = ArtifactCache(tmp_path), source()
    used = install(cache)
    unfinished.open(cache)
    arguments = [sys.executable, "-c", _HOLD, str(tmp_path), unfinished.digest, used]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            assert cache.evict(0) == []
            assert cache.clean_garbage(NOW_UNIX_S * 2) == 0
            assert len(leftovers(cache)) == 2  # its lock and its partial
        finally:
            process.kill()
    assert cache.evict(0) == [used]
    assert not cache.partial_path(unfinished.digest).exists()
    cache.clean_garbage()
    assert leftovers(cache) == []


def test_cleaning_keeps_resumable_partials_for_a_day(tmp_path: Path) -> None:
    cache, unfinished = ArtifactCache(tmp_path), source()
    assembly = unfinished.open(cache)
    changed_unix_s = (cache.partial_path(unfinished.digest) / "progress").stat().st_mtime
    (tmp_path / "trash" / "left").mkdir(parents=True)
    (tmp_path / "sha256" / ".fetch-old").mkdir(parents=True)
    (tmp_path / "partial" / ("0" * 64)).mkdir()  # killed before any file was written
    assert cache.clean_garbage(changed_unix_s + PARTIAL_KEPT_S - 1) == 3
    assert len(assembly.missing()) == len(unfinished.open(cache).missing())
    assert cache.clean_garbage(changed_unix_s + PARTIAL_KEPT_S + 10) == 1
    assert leftovers(cache) == []


def test_cleaning_removes_partials_of_installed_artifacts(tmp_path: Path) -> None:
    cache, made = ArtifactCache(tmp_path), source()
    _assemble(cache, made)
    made.open(cache)
    assert cache.clean_garbage() == 1
    assert cache.held(made.digest)


def _assemble(cache: ArtifactCache, made: Source) -> None:
    assembly = made.open(cache)
    for chunk in assembly.missing():
        assembly.put(chunk, made.read(chunk))
    assembly.finish()


def test_unwritable_cache_is_reported(tmp_path: Path) -> None:
    (tmp_path / "locks").write_text("a file where the folder should be")
    digest = Digest("sha256:" + "0" * 64)
    with pytest.raises(CacheFailed, match="cannot be written"), ArtifactCache(tmp_path).single_flight(digest):
        pass
