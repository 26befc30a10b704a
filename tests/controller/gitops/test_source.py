"""A commit as configuration: read from git alone, checked completely, and cheap if nothing changed."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from functions.api.kinds.tenant import Tenant
from functions.controller.gitops.git import Git, GitFailed, Remote
from functions.controller.gitops.source import GitSource
from functions.controller.gitops.words import problem_lines
from tests.controller.configs import tenant
from tests.controller.gitops.conftest import Bench
from tests.fleets import git

pytestmark = pytest.mark.servers  # real git processes, dozens of them: too slow for `make check`


@pytest.fixture
def source(bench: Bench) -> GitSource:
    bench.force({})
    return GitSource(bench.repository.path)


def test_the_tip_is_loaded_with_its_message_and_time(bench: Bench, source: GitSource) -> None:
    commit = bench.force({"more.yaml": tenant("globex", "g")}, "globex joins\n\nand more words")
    observed = source.read_tip()
    assert (observed.commit, observed.message, observed.problems) == (commit, "globex joins", ())
    assert observed.committed_unix_s > 1_600_000_000
    assert observed.loaded is not None
    assert [declared.value.metadata.name for declared in observed.loaded.objects_of(Tenant)] == ["globex", "acme"]


def test_problem_has_its_location_in_the_repository(bench: Bench, source: GitSource) -> None:
    bench.force({"policies/deep/t.yaml": tenant("globex").replace("tier:", "teir:")})
    observed = source.read_tip()
    assert observed.loaded is None
    assert "policies/deep/t.yaml:4:8: spec.teir: unknown key" in "\n".join(str(p) for p in observed.problems)
    assert b"teir" in observed.texts["policies/deep/t.yaml"]


def test_files_no_loader_reads_are_skipped(bench: Bench, source: GitSource) -> None:
    bench.force({"README.md": "tier: none", ".github/x.yaml": "not: [ours", "a/.hidden.yaml": "not: [ours"})
    assert source.read_tip().loaded is not None


def test_branch_without_a_commit_is_reported(bench: Bench) -> None:
    observed = GitSource(bench.repository.path).read_tip()
    assert (observed.commit, observed.loaded) == ("", None)
    assert "the branch main has no commit" in str(observed.problems[0])


def test_missing_repository_is_an_error_not_an_empty_configuration(tmp_path: Path) -> None:
    with pytest.raises(GitFailed):
        GitSource(tmp_path / "nowhere.git").read_tip()


def test_only_files_that_changed_are_read_again(
    bench: Bench, source: GitSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.read_tip()
    asked: list[bytes] = []
    run = Git.run

    def counting(self: Git, *arguments: str, send: bytes = b"", **more: object) -> bytes:
        asked.append(send if arguments[0] == "cat-file" else b"")
        return run(self, *arguments, send=send, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Git, "run", counting)
    bench.force({"more.yaml": tenant("globex", "g")})
    assert source.read_tip().loaded is not None
    assert [len(sent.split()) for sent in asked if sent] == [1]
    asked.clear()
    source.read_tip()
    assert len(asked) == 1, "a tip that did not move costs one question"


@pytest.mark.parametrize("name", ["ä.yaml", "mit leer.yaml", 'quote".yaml', "back\\slash.yaml"])
def test_unusual_file_names_are_read(bench: Bench, source: GitSource, name: str) -> None:
    bench.force({name: tenant("globex", "g").replace("tier:", "teir:")})
    assert {problem.place.file for problem in source.read_tip().problems} == {name}


def test_links_submodules_and_non_text_names_are_refused(bench: Bench, source: GitSource) -> None:
    (bench.checkout / "link.yaml").symlink_to("/etc/passwd")
    (bench.checkout / "new\nline.yaml").write_text("")
    Path(os.fsdecode(os.fsencode(bench.checkout) + b"/\xff.yaml")).write_text("")
    git("init", "--quiet", str(bench.checkout / "sub"))
    git("commit", "--quiet", "--allow-empty", "--message", "x", at=bench.checkout / "sub")
    bench.force({})
    observed = source.read_tip()
    words = "\n".join(str(problem) for problem in observed.problems)
    assert observed.loaded is None
    assert "link.yaml: is a symbolic link; allowed: plain files" in words
    assert "sub: is a submodule" in words
    assert "the name is not UTF-8" in words
    assert "the name holds control characters" in words
    assert words.isprintable() or all(line.isprintable() for line in words.split("\n"))


def test_a_file_over_the_limit_is_refused_without_being_read(bench: Bench, source: GitSource) -> None:
    bench.force({"big.yaml": b"# " + b"x" * (1024 * 1024)})
    (problem,) = source.read_tip().problems
    assert "over the limit of 1048576: split the file" in problem.message


def test_environment_of_the_caller_has_no_effect(
    bench: Bench, source: GitSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GIT_DIR", "GIT_OBJECT_DIRECTORY", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.bare")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "nonsense")
    assert source.read_tip().loaded is not None


def test_a_remotes_branch_is_fetched_and_followed(bench: Bench, source: GitSource, tmp_path: Path) -> None:
    local = tmp_path / "local.git"
    remote = Remote(f"file://{bench.repository.path}")
    remote.fetch(local)
    followed = GitSource(local)
    first = followed.read_tip()
    assert (first.commit, first.loaded is not None) == (source.read_tip().commit, True)
    commit = bench.force({"more.yaml": tenant("globex", "g")})
    remote.fetch(local)
    assert followed.read_tip().commit == commit


@pytest.mark.parametrize("url", ["ext::sh -c true", "--upload-pack=touch /x", "file:///nowhere at all", "git://x/y"])
def test_program_and_invalid_addresses_are_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(GitFailed):
        Remote(url).fetch(tmp_path / "local.git")


def test_unreachable_remote_keeps_the_known_commits(bench: Bench, source: GitSource, tmp_path: Path) -> None:
    local = tmp_path / "local.git"
    Remote(f"file://{bench.repository.path}").fetch(local)
    with pytest.raises(GitFailed):
        Remote(f"file://{tmp_path / 'gone.git'}").fetch(local)
    with pytest.raises(GitFailed, match=r"^git fetch failed: "):
        Remote(f"file://{tmp_path / 'gone.git'}").fetch(local)
    assert GitSource(local).read_tip().commit == source.read_tip().commit


def test_tree_that_expands_to_millions_of_files_is_refused(bench: Bench, source: GitSource, tmp_path: Path) -> None:
    """The listing stops at its limit, long before git has printed all files."""

    def tree(lines: str) -> str:
        written = subprocess.run(
            ["git", "mktree"], cwd=bench.repository.path, input=lines, capture_output=True, text=True, check=True
        )
        return written.stdout.strip()

    (tmp_path / "a.yaml").write_text("a: 1\n")
    blob = git("hash-object", "-w", str(tmp_path / "a.yaml"), at=bench.repository.path).stdout.strip()
    found = tree("".join(f"100644 blob {blob}\tf{number}.yaml\n" for number in range(10)))
    for _ in range(6):
        found = tree("".join(f"040000 tree {found}\td{number}\n" for number in range(10)))
    commit = git("commit-tree", found, "-m", "bomb", at=bench.repository.path).stdout.strip()
    observed = source.read_commit(commit)
    assert observed.loaded is None
    assert "too many files" in str(observed.problems[0])


def test_hanging_command_is_killed_with_its_children(bench: Bench, tmp_path: Path) -> None:
    script = tmp_path / "waits"
    script.write_text("#!/bin/sh\nsleep 600 & wait\n")
    script.chmod(0o755)
    git("config", "alias.waits", f"!{script}", at=bench.repository.path)
    with pytest.raises(GitFailed, match="did not end within"):
        Git(bench.repository.path).run("waits", timeout_s=0.5)


def test_unreadable_repository_is_not_an_empty_branch(bench: Bench, source: GitSource) -> None:
    (bench.repository.path / "HEAD").write_text("nonsense")
    with pytest.raises(GitFailed, match="not a git repository"):
        source.read_tip()


def test_key_in_place_of_its_hash_is_never_printed(bench: Bench, source: GitSource) -> None:
    """Problems are logged, shown by status, and printed by any pipeline that pushes."""
    wrong = re.sub(r'hmacSha256: "[0-9a-f]+"', 'hmacSha256: "sk-plain-text"', tenant("acme", "ci"))
    assert "sk-plain-text" in wrong
    bench.force({"tenants.yaml": wrong})
    observed = source.read_tip()
    told = "\n".join(problem_lines(observed.problems, observed.texts))
    assert "64 hex digits" in told
    assert "sk-plain-text" not in told
