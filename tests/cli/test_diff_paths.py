"""Files that `shoal diff` compares: those that a push, or `shoal up`, would read."""

from pathlib import Path

import pytest

from functions.api.loader import load_directory
from functions.cli.context import current_context
from functions.cli.diff import paths_below
from tests.fleets import git


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    checkout = tmp_path / "checkout"
    for name in ("policies/top.yaml", "policies/deep/er.yaml", "elsewhere.yaml"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("")
    git("init", "--quiet", str(checkout))
    return checkout


def test_of_a_project_the_top_of_each_folder_is_compared(checkout: Path, tmp_path: Path) -> None:
    assert paths_below(checkout, tmp_path / "gitops.git") == [checkout / "policies" / "top.yaml"]


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_of_a_clone_of_the_fleets_repository_everything_is_compared_as_a_push_would(
    checkout: Path, tmp_path: Path, form: str
) -> None:
    git("remote", "add", "origin", form.format(tmp_path / "gitops.git"), at=checkout)
    assert paths_below(checkout, tmp_path / "gitops.git") == [checkout]
    assert load_directory([checkout], relative_to=checkout).objects == ()


def test_in_a_clone_it_is_the_fleet_of_its_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "project" / ".shoal"
    git("init", "--quiet", "--bare", str(state / "gitops.git"), at=tmp_path)
    git("clone", "--quiet", str(state / "gitops.git"), "fleet", at=tmp_path)
    monkeypatch.delenv("SHOAL_STATE_DIR", raising=False)
    monkeypatch.chdir(tmp_path / "fleet")
    assert current_context(clones=True).layout.root != state  # before the first fleet
    (state / "tls").mkdir()
    (state / "tls" / "ca.pem").write_text("a certificate")
    assert current_context(clones=True).layout.root == state
    assert current_context().layout.root != state  # `up` and `down` use the current directory
    monkeypatch.setenv("SHOAL_STATE_DIR", str(tmp_path / "other"))
    assert current_context(clones=True).layout.root == tmp_path / "other"
