"""A followed branch: the last known state stays while it cannot be read, and every fetch request is served."""

import asyncio
import contextlib
import time

import pytest

from functions.api.problems import Problem, SourceLocation
from functions.controller.gitops.branch import FollowedBranch
from functions.controller.gitops.git import GitFailed
from functions.controller.gitops.source import GitSource
from tests.controller.gitops.conftest import Bench

pytestmark = pytest.mark.servers  # real git processes


async def test_unreachable_remote_keeps_the_last_known_tip(bench: Bench) -> None:
    """If the tip were forgotten, the fleet could not be repaired."""
    away = False

    def fetch() -> None:
        if away:
            raise GitFailed("nobody answers there")

    branch = FollowedBranch(GitSource(bench.repository.path), fetch=fetch)
    commit = bench.force({})
    assert (await branch.refresh_tip()).commit == commit
    away = True
    bench.force({"more.yaml": "kind: Tenant\n"})
    with pytest.raises(GitFailed):
        await branch.refresh_tip()
    assert branch.tip is not None
    assert (branch.tip.commit, branch.trouble) == (commit, "nobody answers there")
    away = False
    assert (await branch.refresh_tip()).commit != commit and branch.trouble == ""


async def test_commit_is_a_revision_if_it_loads_and_the_check_passes(bench: Bench) -> None:
    """Both checks must pass: otherwise a fleet would get a configuration that cannot run or does not validate."""
    wrong = Problem(SourceLocation("pool.yaml", 1, 1), "", "too many replicas")
    found: list[Problem] = []
    branch = FollowedBranch(GitSource(bench.repository.path), check=lambda commit, loaded: tuple(found))
    good = bench.force({})
    revision = branch.judge_commit(await branch.refresh_tip())
    assert revision is not None and (revision.name, branch.refused) == (f"main@{good}", ())
    found.append(wrong)
    assert branch.judge_commit(await branch.refresh_tip()) is None and branch.refused == (wrong,)
    found.clear()
    bench.force({"tenants.yaml": "kind: Tenant\n"})
    assert branch.judge_commit(await branch.refresh_tip()) is None and "tenants.yaml" in str(branch.refused[0])
    assert await branch.load_revision(f"main@{good}") == revision, "it is there still, whatever the tip has become"
    assert await branch.has_revision(branch.revision_of(await branch.refresh_tip())), "good or bad"


async def test_commit_missing_in_the_repository_is_unknown(bench: Bench) -> None:
    branch, elsewhere = FollowedBranch(GitSource(bench.repository.path)), f"main@{'a' * 40}"
    bench.force({})
    assert await branch.load_revision(elsewhere) is None and not await branch.has_revision(elsewhere)
    assert "a" * 40 in branch.trouble or "fail" in branch.trouble


async def test_wakes_are_merged_into_one_fetch_per_interval(bench: Bench) -> None:
    """A git server may send a thousand push notices; the repository must not be fetched a thousand times."""
    branch, looked_s = FollowedBranch(GitSource(bench.repository.path)), list[float]()

    async def record_fetch() -> None:
        looked_s.append(time.monotonic())
        branch.wake()  # another push notice during the fetch

    began_s = time.monotonic()
    watching = asyncio.get_running_loop().create_task(branch.watch(record_fetch, every_s=30.0, apart_s=0.1))
    for _ in range(1000):
        branch.wake()
    await asyncio.sleep(0.35)  # real time: three times apart_s
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    apart_s = [later - former for former, later in zip([began_s, *looked_s], looked_s, strict=False)]
    assert 1 <= len(looked_s) <= 3 and min(apart_s) >= 0.09, looked_s
