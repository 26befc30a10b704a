"""The cache: whole or absent, and only garbage is ever cleaned away."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from functions.api.ids import Digest
from functions.artifacts import directories
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.errors import ArtifactCorrupt, CacheFailed
from tests.artifacts.adapter_files import make_adapter


def install(cache: ArtifactCache) -> Digest:
    """Put one adapter into the cache as a fetch would."""
    with cache.staging() as staged:
        make_adapter(staged)
        digest = directories.write_manifest(staged)
        cache.install(staged, digest)
    return digest


def leftovers(cache: ArtifactCache) -> list[str]:
    return sorted(path.name for path in (cache.root / "sha256").iterdir() if path.name.startswith("."))


def test_what_is_installed_is_found_verified_and_readable_by_others(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path)
    digest = install(cache)
    found = cache.verified(digest)
    assert found == tmp_path / "sha256" / digest.removeprefix("sha256:")
    assert found.stat().st_mode & 0o777 == 0o755
    assert leftovers(cache) == []


def test_an_unknown_digest_is_not_there(tmp_path: Path) -> None:
    assert ArtifactCache(tmp_path).verified(Digest("sha256:" + "0" * 64)) is None


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
    assert install(cache) == install(cache)
    assert leftovers(cache) == []


def test_a_failed_fetch_leaves_nothing(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path)
    with pytest.raises(RuntimeError, match="broken"), cache.staging() as staged:
        (staged / "half").write_text("x")
        raise RuntimeError("broken")
    assert leftovers(cache) == []


_HOLD_A_STAGING_DIRECTORY = """
import sys, time
from pathlib import Path
from functions.artifacts.cache import ArtifactCache
with ArtifactCache(Path(sys.argv[1])).staging() as staged:
    (staged / "half").write_text("x")
    print("ready", flush=True)
    time.sleep(60)
"""


def test_cleaning_takes_what_a_killed_process_left_and_nothing_else(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path)
    digest = install(cache)
    arguments = [sys.executable, "-c", _HOLD_A_STAGING_DIRECTORY, str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            assert cache.clean_garbage() == 0
            assert len(leftovers(cache)) == 1
        finally:
            process.kill()
    assert cache.clean_garbage() == 1
    assert leftovers(cache) == []
    assert cache.verified(digest) is not None


def test_a_cache_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "sha256").write_text("a file where the folder should be")
    with pytest.raises(CacheFailed, match=os.strerror(errno.EEXIST)), ArtifactCache(tmp_path).staging():
        pass
