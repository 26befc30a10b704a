"""The fence: a former leader cannot publish again, even after the registry restarts."""

from pathlib import Path

import pytest

from functions.registry.fence import Fence, Fenced
from functions.registry.sql.errors import DatabaseUnavailable


def fence(folder: Path) -> Fence:
    made = Fence(folder / "state" / "fence")
    made.load()
    return made


def test_publication_without_a_token_is_not_fenced(tmp_path: Path) -> None:
    it = fence(tmp_path)
    it.check(0)
    it.admit(0)
    assert not (tmp_path / "state").exists()


def test_former_leader_is_refused_with_a_message(tmp_path: Path) -> None:
    it = fence(tmp_path)
    it.admit(4)
    for token in (4, 5):
        it.check(token)
    with pytest.raises(Fenced, match="leadership 3: leadership 4 has published"):
        it.check(3)
    with pytest.raises(Fenced, match="no leadership named"):
        it.check(0)


def test_fence_survives_a_restart(tmp_path: Path) -> None:
    fence(tmp_path).admit(4)
    with pytest.raises(Fenced):
        fence(tmp_path).check(3)
    fence(tmp_path).check(4)


def test_lower_token_never_lowers_the_fence(tmp_path: Path) -> None:
    it = fence(tmp_path)
    it.admit(4)
    with pytest.raises(Fenced):
        it.admit(2)
    assert (it.highest, fence(tmp_path).highest) == (4, 4)


class Shared:
    """A stand-in for the database's fence (`Database.raise_fence`, see test_a_registry_without_its_disk)."""

    def __init__(self) -> None:
        self.highest, self.asked, self.away = 0, 0, False

    def raise_to(self, token: int) -> int:
        self.asked += 1
        if self.away:
            raise DatabaseUnavailable("away")
        self.highest = max(self.highest, token)
        return self.highest


def shared_fence(folder: Path, shared: Shared) -> Fence:
    it = fence(folder)
    it.use_database(shared.raise_to)
    return it


def test_fence_survives_the_loss_of_the_disk(tmp_path: Path) -> None:
    """A pod's directory ends with the pod; without the database, a former leader could publish over its successor."""
    shared = Shared()
    shared_fence(tmp_path / "first", shared).admit(7)
    for token in (6, 0):
        it = shared_fence(tmp_path / "second", shared)
        with pytest.raises(Fenced, match="leadership 7 has published"):
            it.admit(token)
    it.admit(8)
    assert (shared.highest, fence(tmp_path / "second").highest) == (8, 8)


def test_database_is_queried_for_new_tokens_only(tmp_path: Path) -> None:
    shared = Shared()
    it = shared_fence(tmp_path, shared)
    for _ in range(5):
        it.admit(7)
    assert shared.asked == 1


def test_disk_fence_decides_without_database_and_is_stored_there_later(tmp_path: Path) -> None:
    shared = Shared()
    shared.away = True
    it = shared_fence(tmp_path, shared)
    it.admit(7)
    assert it.highest == 7
    shared.away = False
    it.admit(7)
    assert shared.highest == 7
