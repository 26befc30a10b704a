"""Pushing to the repository of `shoal up` while no controller runs, so that the hook alone judges."""

import os
import subprocess
from pathlib import Path

import pytest

from functions.controller.gitops.git import GitFailed
from functions.controller.gitops.review import Push, ReferenceUpdate, Reviewer
from functions.controller.gitops.source import GitSource
from tests.controller.configs import tenant
from tests.controller.gitops.conftest import GOOD, Bench
from tests.fleets import git
from tests.soak import sampled

pytestmark = pytest.mark.servers  # real git processes, dozens of them: too slow for `make check`


def test_good_push_without_controller_is_accepted_for_the_next_up(bench: Bench) -> None:
    pushed = bench.push()
    assert pushed.returncode == 0, pushed.stderr
    assert "the next `shoal up` applies this push" in pushed.stderr


def test_a_bad_push_is_refused_with_place_line_and_caret(bench: Bench) -> None:
    bench.push()
    before = bench.tip()
    bench.commit({"tenants.yaml": tenant("acme", "ci").replace("tier:", "teir:")})
    pushed = bench.push()
    assert pushed.returncode != 0
    assert "tenants.yaml:4:8: spec.teir: unknown key" in pushed.stderr
    assert 'did you mean "tier"?' in pushed.stderr
    assert "^" in pushed.stderr
    assert bench.tip() == before


@pytest.mark.soak
def test_push_this_machine_cannot_run_is_refused(bench: Bench) -> None:
    elsewhere = ("pvc://shoal-models/base", "s3://elsewhere/base")
    bench.commit({name: GOOD[name].replace(*elsewhere) for name in ("pool.yaml", "models.yaml")})
    pushed = bench.push()
    assert pushed.returncode != 0
    assert "pool.yaml:4" in pushed.stderr
    assert "allowed on one machine: pvc://shoal-models/<name>" in pushed.stderr


def test_removing_all_of_a_kind_is_refused(bench: Bench) -> None:
    bench.push()
    bench.commit({"tenants.yaml": None})
    pushed = bench.push()
    assert pushed.returncode != 0
    assert "the push removes all 1 tenants" in pushed.stderr
    allowed = bench.push("-o", "allow-empty", "origin", "HEAD:refs/heads/main")
    assert "needs the running controller" in allowed.stderr


def test_deletion_and_rewriting_are_refused_by_the_real_hook(bench: Bench) -> None:
    bench.push()
    assert "cannot be deleted" in bench.push("origin", "--delete", "main").stderr
    git("commit", "--quiet", "--amend", "--message", "another", at=bench.checkout)
    assert "-o allow-rewrite" in bench.push("--force", "origin", "HEAD:refs/heads/main").stderr
    assert bench.push("--force", "-o", "allow-rewrite", "origin", "HEAD:refs/heads/main").returncode == 0


@pytest.mark.soak
def test_controller_references_are_hidden_and_closed_to_pushes(bench: Bench) -> None:
    bench.push()
    git("update-ref", "refs/shoal/last-good", "main", at=bench.repository.path)
    assert "refs/shoal" not in git("ls-remote", "origin", at=bench.checkout).stdout
    assert bench.push("--force", "origin", "HEAD:refs/shoal/last-good").returncode != 0


@pytest.mark.parametrize("locale", sampled(["C", "POSIX", "de_DE.ISO-8859-1"], keep=["C"]))
def test_non_ascii_names_and_texts_survive_any_locale(bench: Bench, locale: str) -> None:
    bench.commit({"größe.yaml": tenant("acme", "ci").replace("tier:", "teir:")})
    environment = {**os.environ, "LC_ALL": locale, "LANG": locale, "GIT_CONFIG_GLOBAL": os.devnull}
    pushed = subprocess.run(
        ["git", "-C", str(bench.checkout), "push", "origin", "HEAD:refs/heads/main"],
        env=environment, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert pushed.returncode != 0
    assert "größe.yaml:4:8" in pushed.stderr.decode("utf-8")


@pytest.mark.soak
def test_environment_of_the_pusher_does_not_reach_the_hook(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(0)")  # if imported, it would accept everything
    bench.commit({"tenants.yaml": "kind: Tenant\n"})
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "PYTHONSTARTUP": str(tmp_path / "json.py"),
        "GIT_CONFIG_GLOBAL": os.devnull,
    }
    pushed = subprocess.run(
        ["git", "-C", str(bench.checkout), "push", "origin", "HEAD:refs/heads/main"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert pushed.returncode != 0
    assert "tenants.yaml:1" in pushed.stderr


@pytest.mark.soak
def test_damaged_repository_is_repaired_by_the_next_start(bench: Bench) -> None:
    (bench.repository.path / "hooks" / "pre-receive").unlink()
    (bench.repository.path / "shoal.config").unlink()
    bench.repository.ensure([bench.socket])
    bench.commit({"tenants.yaml": "kind: Tenant\n"})
    assert bench.push().returncode != 0


@pytest.mark.soak
def test_reviewer_refuses_objects_outside_a_quarantine(bench: Bench, tmp_path: Path) -> None:
    source = GitSource(bench.repository.path)
    reviewer = Reviewer(source, lambda loaded: (), lambda present, candidate: ())
    update = ReferenceUpdate("0" * 40, "1" * 40, "refs/heads/main")
    for objects in (tmp_path, bench.repository.path / "objects" / ".." / "..", tmp_path / "none"):
        with pytest.raises(GitFailed, match="no quarantine"):
            reviewer.review(Push((update,), objects=objects), None)


def test_files_of_every_name_are_committed_as_they_are(bench: Bench) -> None:
    names = ["a b.yaml", 'quote".yaml', "back\\slash.yaml", "größe.yaml", "deep/er.yaml"]
    commit = bench.repository.commit("shipped", {name: name.encode() for name in names}, "all of them", parent=None)
    assert bench.repository.files(commit) == {name: name.encode() for name in names}


@pytest.mark.soak
@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_odd_branch_names_do_not_hide_the_update_of_main(bench: Bench, separator: str) -> None:
    """Some characters end a line for Python but are part of a name for git."""
    bench.push()
    good = bench.tip()
    bad = bench.commit({"tenants.yaml": "kind: Tenant\n"})
    other = f"refs/heads/main{separator}x"
    pushed = bench.push("origin", f"{bad}:refs/heads/main", f"{good}:{other}")
    assert "tenants.yaml:1" in pushed.stderr
    assert (pushed.returncode != 0, bench.tip()) == (True, good)
