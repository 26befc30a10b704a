"""The fence: who led before may not publish again, not even after the registry was restarted."""

from pathlib import Path

import pytest

from functions.registry.fence import Fence, Fenced


def fence(folder: Path) -> Fence:
    made = Fence(folder / "state" / "fence")
    made.load()
    return made


def test_where_nobody_names_a_leadership_nothing_is_fenced(tmp_path: Path) -> None:
    it = fence(tmp_path)
    it.check(0)
    it.admit(0)
    assert not (tmp_path / "state").exists()


def test_a_former_leader_is_refused_in_words(tmp_path: Path) -> None:
    it = fence(tmp_path)
    it.admit(4)
    for token in (4, 5):
        it.check(token)
    with pytest.raises(Fenced, match="leadership 3: leadership 4 has published"):
        it.check(3)
    with pytest.raises(Fenced, match="no leadership named"):
        it.check(0)


def test_a_restart_forgets_nobody(tmp_path: Path) -> None:
    fence(tmp_path).admit(4)
    with pytest.raises(Fenced):
        fence(tmp_path).check(3)
    fence(tmp_path).check(4)


def test_a_lower_leadership_never_lowers_it(tmp_path: Path) -> None:
    it = fence(tmp_path)
    it.admit(4)
    it.admit(2)
    assert (it.highest, fence(tmp_path).highest) == (4, 4)
