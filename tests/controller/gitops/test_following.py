"""The desired revision is the last good one, whatever the branch holds, across restarts and during a suspension."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from functions.api.loader import Loaded
from functions.api.problems import Problem, SourceLocation
from functions.controller.gitops.following import LAST_GOOD, BranchFollower
from functions.controller.gitops.git import Git, GitFailed
from functions.controller.gitops.record import HISTORY_MAX, FormerRevision, RevisionRecord
from functions.controller.gitops.source import GitSource
from tests.controller.configs import tenant
from tests.controller.gitops.conftest import GOOD, Bench
from tests.fleets import git

pytestmark = pytest.mark.servers  # real git processes, dozens of them: too slow for `make check`

BAD: dict[str, str | bytes | None] = {"tenants.yaml": "kind: Tenant\n"}


def nothing_wrong(loaded: Loaded) -> tuple[Problem, ...]:
    return ()


def follow(bench: Bench) -> BranchFollower:
    """Start a follower as a new controller does: only the record on disk survives."""
    return BranchFollower(GitSource(bench.repository.path), bench.socket.with_name("revisions.json"), nothing_wrong)


def desired(following: BranchFollower) -> str:
    assert following.desired is not None
    return following.desired.revision.removeprefix("main@")


def apply(following: BranchFollower) -> None:
    assert following.desired is not None
    following.mark_published(following.desired.revision)
    following.mark_converged(following.desired.revision)


@pytest.fixture
async def following(bench: Bench) -> BranchFollower:
    bench.force({})
    following = follow(bench)
    await following.start()
    return following


def results(following: BranchFollower) -> list[str]:
    return [past.result for past in following.record.history]


async def test_tip_is_desired_and_counts_as_applied_once_converged(bench: Bench, following: BranchFollower) -> None:
    assert desired(following) == bench.tip()
    assert following.desired is not None
    following.mark_published(following.desired.revision)
    assert following.record.last_applied == ""
    following.mark_converged(following.desired.revision)
    assert following.record.last_applied == f"main@{bench.tip()}"
    assert results(following) == ["applied"]


async def test_commit_forced_past_the_hook_is_reported_and_ignored(bench: Bench, following: BranchFollower) -> None:
    good = bench.tip()
    apply(following)
    bad = bench.force(BAD)
    await following.check_branch()
    assert desired(following) == good
    assert any("tenants.yaml:1" in str(problem) for problem in following.branch.refused)
    assert (following.record.last_attempted, following.record.last_good) == (f"main@{bad}", f"main@{good}")
    assert results(following) == ["refused", "applied"]
    for _ in range(3):
        await following.check_branch()
    assert results(following) == ["refused", "applied"], "judged once"


async def test_next_controller_restores_the_last_good_revision(bench: Bench, following: BranchFollower) -> None:
    good = bench.tip()
    apply(following)
    bench.force(BAD)
    successor = follow(bench)
    await successor.start()
    assert desired(successor) == good
    assert successor.branch.refused


async def test_lost_record_keeps_the_last_good_revision(bench: Bench, following: BranchFollower) -> None:
    """A power failure may leave the file empty."""
    good = bench.tip()
    bench.force(BAD)
    bench.socket.with_name("revisions.json").write_bytes(b"")
    successor = follow(bench)
    await successor.start()
    assert desired(successor) == good


async def test_last_good_revision_survives_history_rewrite_and_git_gc(bench: Bench, following: BranchFollower) -> None:
    good = bench.tip()
    git("checkout", "--quiet", "--orphan", "other", at=bench.checkout)
    bench.force(BAD)
    for name in git("for-each-ref", "--format=%(refname)", "refs/heads", at=bench.repository.path).stdout.split():
        git("reflog", "expire", "--expire=now", name, at=bench.repository.path)
    git("gc", "--quiet", "--prune=now", at=bench.repository.path)
    successor = follow(bench)
    await successor.start()
    assert desired(successor) == good


async def test_good_commit_after_a_bad_one_is_desired(bench: Bench, following: BranchFollower) -> None:
    bench.force(BAD)
    await following.check_branch()
    fixed = bench.force({"tenants.yaml": GOOD["tenants.yaml"]}, "fixed")
    await following.check_branch()
    assert (desired(following), following.branch.refused) == (fixed, ())


async def test_a_newer_revision_supersedes_one_that_is_being_applied(bench: Bench, following: BranchFollower) -> None:
    old = desired(following)
    new = bench.force({"more.yaml": tenant("globex", "g")})
    await following.check_branch()
    assert desired(following) == new
    assert (results(following), following.record.history[0].revision) == (["superseded"], f"main@{old}")
    following.mark_published(f"main@{old}")
    assert following.desired is not None
    assert not following.desired.published, "news of the old one is no news"


async def test_suspended_branch_is_followed_only_after_resume(bench: Bench, following: BranchFollower) -> None:
    before = bench.tip()
    apply(following)
    following.suspend("moving house")
    new = bench.force({"more.yaml": tenant("globex", "g")})
    await following.check_branch()
    assert desired(following) == before
    assert following.branch.tip is not None
    assert following.branch.tip.commit == new
    successor = follow(bench)
    await successor.start()
    assert (desired(successor), successor.suspended) == (before, True)
    assert successor.record.suspended is not None
    assert successor.record.suspended.reason == "moving house"
    successor.resume()
    await successor.check_branch()
    assert desired(successor) == new


async def test_revision_the_target_cannot_run_is_refused_until_rechecked(bench: Bench) -> None:
    bench.force({})
    wrong = [Problem(SourceLocation("pool.yaml", 1, 1), "", "too many replicas")]
    following = BranchFollower(
        GitSource(bench.repository.path), bench.socket.with_name("revisions.json"), lambda loaded: tuple(wrong)
    )
    await following.start()
    assert (following.desired, following.branch.refused) == (None, tuple(wrong))
    wrong.clear()
    await following.check_branch()
    assert following.desired is None
    following.reconcile()
    await following.check_branch()
    assert desired(following) == bench.tip()


async def test_removing_everything_needs_consent(bench: Bench, following: BranchFollower) -> None:
    good = bench.tip()
    empty = bench.force(dict.fromkeys(GOOD))
    await following.check_branch()
    assert desired(following) == good
    assert "allow-empty" in str(following.branch.refused[0])
    following.allow_empty(empty)
    following.reconcile()
    await following.check_branch()
    assert desired(following) == empty
    assert following.desired is not None
    assert following.desired.empty_is_meant


async def test_a_repository_that_cannot_be_read_changes_nothing(bench: Bench, following: BranchFollower) -> None:
    before = desired(following)
    away = bench.repository.path.rename(bench.repository.path.with_name("away.git"))
    with pytest.raises(GitFailed):
        await following.check_branch()
    assert (desired(following), bool(following.branch.trouble)) == (before, True)
    away.rename(bench.repository.path)
    await following.check_branch()
    assert following.branch.trouble == ""


async def test_the_last_good_revision_has_a_reference_of_its_own(bench: Bench, following: BranchFollower) -> None:
    named = git("rev-parse", LAST_GOOD, at=bench.repository.path).stdout.strip()
    assert named == desired(following)


async def test_wait_ends_with_news_or_its_timeout(following: BranchFollower) -> None:
    assert not await following.wait_until(lambda: False, 0.01)
    waiting = asyncio.get_running_loop().create_task(following.wait_until(lambda: following.suspended, 30))
    await asyncio.sleep(0)
    following.suspend("")
    assert await waiting


async def test_problems_of_one_commit_are_not_reported_for_the_next(bench: Bench, following: BranchFollower) -> None:
    bench.force(BAD)
    await following.check_branch()
    assert following.branch.refused
    following.suspend("")
    fixed = bench.force({"tenants.yaml": GOOD["tenants.yaml"]}, "fixed")
    await following.check_branch()
    assert following.branch.refused == ()
    following.resume()
    await following.check_branch()
    assert desired(following) == fixed


async def test_refusal_is_reported_again_after_a_suspension(bench: Bench, following: BranchFollower) -> None:
    bad = bench.force(BAD)
    await following.check_branch()
    following.suspend("")
    bench.force({"tenants.yaml": GOOD["tenants.yaml"]}, "fixed")
    await following.check_branch()
    git("update-ref", "refs/heads/main", bad, at=bench.repository.path)
    await following.check_branch()
    following.resume()
    await following.check_branch()
    assert following.branch.refused


async def test_suspension_during_a_check_takes_effect(
    bench: Bench, following: BranchFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = desired(following)
    new = bench.force({"more.yaml": tenant("globex", "g")})
    run = Git.run

    def slowly(git_: Git, *arguments: str, **rest: Any) -> bytes:
        if arguments[0] == "update-ref":
            loop.call_soon_threadsafe(following.suspend, "wait")
        return run(git_, *arguments, **rest)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(Git, "run", slowly)
    await following.check_branch()
    assert (desired(following), following.suspended) == (before, True)
    monkeypatch.setattr(Git, "run", run)
    following.resume()
    await following.check_branch()
    assert desired(following) == new


async def test_revert_before_the_new_revision_was_applied_is_applied(bench: Bench, following: BranchFollower) -> None:
    apply(following)
    first = bench.tip()
    bench.force({"more.yaml": tenant("globex", "g")})
    await following.check_branch()
    git("update-ref", "refs/heads/main", first, at=bench.repository.path)
    await following.check_branch()
    assert following.desired is not None
    assert (desired(following), following.desired.concluded) == (first, False)
    apply(following)
    assert results(following) == ["applied", "superseded", "applied"]


def past(revision: str, result: str = "applied", at_unix_s: float = 1.0) -> FormerRevision:
    return FormerRevision(revision, "words", result, "", at_unix_s, at_unix_s, 0.5)  # type: ignore[arg-type]


def test_history_is_bounded_and_counts_repeats() -> None:
    record = RevisionRecord()
    for number in range(HISTORY_MAX + 3):
        record = record.concluded(past(f"main@{number}"))
    assert [entry.revision for entry in record.history] == ["main@7", "main@6", "main@5", "main@4", "main@3"]
    again = record.concluded(past("main@7", at_unix_s=9.0))
    assert (len(again.history), again.history[0].count) == (HISTORY_MAX, 2)
    assert (again.history[0].first_unix_s, again.history[0].last_unix_s) == (1.0, 9.0)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"history": 3}'])
def test_unreadable_record_counts_as_missing(tmp_path: Path, content: bytes) -> None:
    from functions.controller.gitops import record as records

    (tmp_path / "record").write_bytes(content)
    assert records.read(tmp_path / "record") == RevisionRecord()
