"""Locks between processes: one holder, no file left behind, and no lock held by an ended process."""

import os
import signal
from pathlib import Path

from functions.artifacts.node_locks import try_lock_directory, try_lock_file


def test_lock_has_one_holder_and_removes_its_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with try_lock_file(path) as first, try_lock_file(path) as second:
        assert (first, second) == (True, False)
    assert list(tmp_path.iterdir()) == []
    with try_lock_file(path) as again:
        assert again


def test_killed_process_releases_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with try_lock_file(path):
            os.write(writer, b"held")
            signal.pause()
    assert os.read(reader, 4) == b"held"
    with try_lock_file(path) as held:
        assert not held
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert path.exists()
    with try_lock_file(path) as held:
        assert held
    assert not path.exists()
    os.close(reader)
    os.close(writer)


def test_directory_lock_is_shared_or_exclusive(tmp_path: Path) -> None:
    with try_lock_directory(tmp_path, shared=True) as one, try_lock_directory(tmp_path, shared=True) as two:
        assert one
        assert two
        with try_lock_directory(tmp_path) as alone:
            assert not alone
    with try_lock_directory(tmp_path) as alone, try_lock_directory(tmp_path, shared=True) as shared:
        assert (alone, shared) == (True, False)


def test_a_directory_that_is_not_there_is_not_held(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path)
    with try_lock_directory(tmp_path / "nowhere") as nowhere, try_lock_directory(tmp_path / "file") as file:
        assert (nowhere, file) == (False, False)
