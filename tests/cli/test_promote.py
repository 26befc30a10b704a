"""`shoal promote` with git as the source: it edits, checks and shows the YAML of the working copy."""

import json
from pathlib import Path

import pytest

from functions.cli.promote import promote
from functions.cli.refused import CommandRefused
from tests.fleets import git

PROJECT = Path(__file__).parents[2]
FOLDERS = ("inferenceservices", "policies", "registry")
BOT = "acme/support-bot"


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """Create the parts of a fleet's state directory that a clone needs: the repository and the mark of a fleet."""
    state = tmp_path / "project" / ".shoal"
    (state / "tls").mkdir(parents=True)
    (state / "tls" / "ca.pem").write_text("a certificate")
    git("init", "--quiet", "--bare", "--initial-branch", "main", str(state / "gitops.git"), at=tmp_path)
    return state


@pytest.fixture
def clone(tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Clone the fleet's repository with the shipped configuration and change the working directory to it."""
    clone = tmp_path / "fleet"
    git("clone", "--quiet", str(state_dir / "gitops.git"), str(clone))
    for folder in FOLDERS:
        (clone / folder).mkdir()
        for file in (PROJECT / folder).glob("*.yaml"):
            (clone / folder / file.name).write_bytes(file.read_bytes())
    monkeypatch.delenv("SHOAL_STATE_DIR", raising=False)
    monkeypatch.chdir(clone)
    return clone


def test_the_yaml_is_edited_in_place_and_the_way_to_deploy_it_is_told(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = clone / "registry" / "models.yaml"
    before = file.read_text()
    promote(BOT, "v2", "stable", as_json=False)
    old = 'support-bot/v2"}\n  channels: {stable: v1}'
    assert file.read_text() == before.replace(old, old.replace("stable: v1", "stable: v2"))
    told = capsys.readouterr().out
    assert "-  channels: {stable: v1}\n+  channels: {stable: v2}" in told
    assert f"git commit -m '{BOT}: stable v2' registry/models.yaml && git push" in told


def test_from_a_folder_within_the_clone_it_works_the_same(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (clone / "notes").mkdir()
    monkeypatch.chdir(clone / "notes")
    promote(BOT, "v2", "stable", as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["file"] == str(clone / "registry" / "models.yaml")
    assert "+  channels: {stable: v2}" in told["diff"]
    assert told["next"].startswith("to deploy it: git commit")


def test_promotion_to_the_current_version_writes_nothing(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = clone / "registry" / "models.yaml"
    before = file.stat()
    promote(BOT, "v1", "stable", as_json=False)
    assert "nothing to change" in capsys.readouterr().out
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize(
    ("model", "version", "words"),
    [
        (BOT, "v3", "has no version 'v3' in registry/models.yaml; it has v1, v2"),
        (f"{BOT}:beta", "v2", "is not a model id"),
        (f"{BOT}@v1", "v2", "is not a model id"),
        ("acme/../x", "v2", "is not a model id"),
    ],
)
def test_invalid_promotion_is_rejected_and_writes_nothing(clone: Path, model: str, version: str, words: str) -> None:
    before = (clone / "registry" / "models.yaml").read_bytes()
    with pytest.raises(CommandRefused, match=words):
        promote(model, version, "stable", as_json=False)
    assert (clone / "registry" / "models.yaml").read_bytes() == before


def test_an_edit_that_the_configuration_does_not_bear_is_taken_back(clone: Path) -> None:
    """The loader checks a channel's name, as for a push."""
    before = (clone / "registry" / "models.yaml").read_bytes()
    with pytest.raises(CommandRefused, match="Not_A_Name"):
        promote(BOT, "v2", "Not_A_Name", as_json=False)
    assert (clone / "registry" / "models.yaml").read_bytes() == before
    assert not list((clone / "registry").glob(".*"))


def test_a_configuration_with_mistakes_is_not_edited(clone: Path) -> None:
    (clone / "policies" / "broken.yaml").write_text("apiVersion: shoal.dev/v1alpha1\nkind: Tenant\n")
    with pytest.raises(CommandRefused, match=r"policies/broken\.yaml:1"):
        promote(BOT, "v2", "stable", as_json=False)


def test_away_from_any_yaml_and_any_fleet_it_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_STATE_DIR", str(tmp_path / "nowhere"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        CommandRefused, match="start one with `shoal up`, or set SHOAL_CLI_REGISTRY_URL and SHOAL_CLI_KEY"
    ):
        promote(BOT, "v2", "stable", as_json=False)
