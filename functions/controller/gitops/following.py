"""Branch follower: the desired revision of the fleet, and its progress.

Rules: an invalid commit changes nothing, however it came onto the branch. The last good revision stays desired, even
over restarts (`refs/shoal/last-good` protects its objects from git's garbage collection). A newer good revision
replaces one that is still being applied. While suspended, no new revision is adopted; running processes continue.

A revision is applied once it is published (`published`) and the target has reached it (`converged`). Neighbours:
`branch` reads and judges, `record` stores the results; the process's loops wait on `subscribe()` and read `desired`.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from functions.api.loader import Loaded
from functions.api.problems import Problem, SourceLocation
from functions.controller.gitops import record as records
from functions.controller.gitops.branch import FollowedBranch, Revision
from functions.controller.gitops.git import GitFailed
from functions.controller.gitops.record import FormerRevision, Result, RevisionRecord, Suspension
from functions.controller.gitops.source import GitSource, Observed

LAST_GOOD = "refs/shoal/last-good"
NOTHING_LEFT = "it declares nothing at all; to remove everything, push with -o allow-empty"

_log = logging.getLogger(__name__)

Check = Callable[[Loaded], tuple[Problem, ...]]


@dataclass(frozen=True, slots=True)
class DesiredRevision:
    revision: str
    message: str
    loaded: Loaded
    empty_is_meant: bool
    began_s: float  # monotonic
    published: bool = False
    converged: bool = False
    concluded: bool = False


class BranchFollower:
    """Follower of one branch. `check` returns what the target cannot run. Owned by one event loop; git runs in worker
    threads."""

    def __init__(
        self,
        source: GitSource,
        record_file: Path,
        check: Check,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.desired: DesiredRevision | None = None
        self.record: RevisionRecord = records.read(record_file)
        self.branch = FollowedBranch(source, check=self._problems)
        self.changed = asyncio.Event()  # set and replaced at each change
        self._record_file = record_file
        self._check = check
        self._clock = clock
        self._wall_clock = wall_clock
        self._subscribers: list[asyncio.Event] = []
        self._judged: str | None = None  # last judged commit

    @property
    def suspended(self) -> bool:
        return self.record.suspended is not None

    def subscribe(self) -> asyncio.Event:
        """Return an event that is set when another revision is desired, or the present one must be checked again."""
        event = asyncio.Event()
        self._subscribers.append(event)
        return event

    async def start(self) -> None:
        """Read the tip; if it is invalid or the branch is suspended, use the last good revision."""
        with contextlib.suppress(GitFailed):  # the branch's `trouble` has the reason, and `watch` tries again
            await self.check_branch()
        if self.desired is None:
            await self._fall_back()

    async def watch(self, every_s: float) -> None:
        """Follow the branch until cancelled; raise GitFailed if it cannot be read."""
        await self.branch.watch(self.check_branch, every_s)

    async def check_branch(self) -> None:
        """Read the tip and judge it if it is new and the branch is not suspended; raise GitFailed if the repository
        cannot be read."""
        had_trouble = bool(self.branch.trouble)
        try:
            observed = await self.branch.refresh_tip()
            if observed.commit != self._judged:
                self.branch.refused = ()  # problems of another commit
                if not self.suspended:
                    await self._judge(observed)
        except GitFailed as error:
            self.branch.trouble = str(error)
            self._notify_waiters()
            raise
        if had_trouble:
            self._notify_waiters()

    async def _judge(self, observed: Observed) -> None:
        if self.desired is None or self.branch.revision_of(observed) != self.desired.revision:
            revision = self.branch.judge_commit(observed)
            if revision is None:
                self._refuse(observed, self.branch.refused)
            elif not await self._adopt(revision):
                return
        self._judged = observed.commit
        self._notify_waiters()

    def _problems(self, commit: str, loaded: Loaded) -> tuple[Problem, ...]:
        if not loaded.objects and commit not in self.record.allowed_empty:
            return (Problem(SourceLocation("."), "", NOTHING_LEFT),)
        return self._check(loaded)

    def _refuse(self, observed: Observed, problems: tuple[Problem, ...]) -> None:
        revision, detail = self.branch.revision_of(observed), f"{len(problems)} problem(s); the first: {problems[0]}"
        now = self._wall_clock()
        self._save_record(
            self.record.concluded(FormerRevision(revision, observed.message, "refused", detail, now, now, 0.0))
        )
        _log.error("%s is refused: %s", revision, detail)

    async def _adopt(self, revision: Revision) -> bool:
        """Point the reference LAST_GOOD to the revision and make it desired; a former one that is not concluded is
        recorded as superseded. Return False, without making it desired, if an operator suspended the branch
        meanwhile."""
        await asyncio.to_thread(self.branch.source.git.run, "update-ref", LAST_GOOD, revision.commit)
        if self.suspended:
            return False
        if self.desired is not None and not self.desired.concluded:
            self._record_result(self.desired, "superseded", f"by {revision.name}")
        self._save_record(self.record.adopted(revision.name))
        self.desired = self._to_desired(revision)
        _log.info("%s: %s", revision.name, revision.message)
        self._notify_subscribers()
        return True

    async def _fall_back(self) -> None:
        """Make the last good revision desired, from the record or else from the reference; do nothing if it cannot be
        loaded."""
        commit: str | None = self.record.last_good.rpartition("@")[2]
        try:
            commit = commit or await asyncio.to_thread(self.branch.source.git.commit_of, LAST_GOOD)
        except GitFailed as error:
            self.branch.trouble = self.branch.trouble or str(error)
        revision = await self.branch.load_revision(f"{self.branch.name}@{commit}") if commit else None
        if revision is not None:
            self.desired = self._to_desired(revision)
            self._notify_subscribers()

    def _to_desired(self, revision: Revision) -> DesiredRevision:
        return DesiredRevision(
            revision=revision.name,
            message=revision.message,
            loaded=revision.loaded,
            empty_is_meant=revision.commit in self.record.allowed_empty,
            began_s=self._clock(),
            # True only at the start: a revision applied before another one was begun must be applied once more.
            concluded=self.desired is None and revision.name == self.record.last_applied,
        )

    # -- what became of it --------------------------------------------------------------------------------------------

    def mark_published(self, revision: str) -> None:
        """Record that gateways and agents can get this revision, unless another one is desired by now."""
        if self.desired is not None and self.desired.revision == revision:
            self.desired = replace(self.desired, published=True)
            self._conclude_if_done()

    def mark_converged(self, revision: str) -> None:
        """Record that the target has reached this revision, unless another one is desired by now."""
        if self.desired is not None and self.desired.revision == revision:
            self.desired = replace(self.desired, converged=True)
            self._conclude_if_done()

    def mark_failed(self, revision: str, detail: str) -> None:
        """Record that this try to reach the revision failed, unless it is concluded or no longer desired; more tries
        follow."""
        if self.desired is not None and self.desired.revision == revision and not self.desired.concluded:
            self._record_result(self.desired, "failed", detail)
            self._notify_waiters()

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until the condition holds; return False if the timeout expired first."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await self.changed.wait()
        return condition()

    def _conclude_if_done(self) -> None:
        desired = self.desired
        if desired is not None and desired.published and desired.converged and not desired.concluded:
            self._record_result(desired, "applied", "")
            self.desired = replace(desired, concluded=True)
            _log.info("%s is applied after %.1f s", desired.revision, self._clock() - desired.began_s)
        self._notify_waiters()

    def _record_result(self, desired: DesiredRevision, result: Result, detail: str) -> None:
        now, took_s = self._wall_clock(), round(self._clock() - desired.began_s, 3)
        past = FormerRevision(desired.revision, desired.message, result, detail, now, now, took_s)
        self._save_record(self.record.concluded(past))

    # -- orders -------------------------------------------------------------------------------------------------------

    def suspend(self, reason: str) -> None:
        self._save_record(self.record.with_suspension(Suspension(reason, self._wall_clock())))
        self._notify_waiters()

    def resume(self) -> None:
        self._save_record(self.record.with_suspension(None))
        self.reconcile()

    def reconcile(self) -> None:
        """Wake the branch's watch, so that its tip is judged again even if it was refused, and notify subscribers to
        check the present state."""
        self._judged = None
        self.branch.wake()
        self._notify_subscribers()
        self._notify_waiters()

    def allow_empty(self, commit: str) -> None:
        self._save_record(self.record.allowing_empty(commit))

    def _save_record(self, record: RevisionRecord) -> None:
        self.record = record
        records.write(self._record_file, record)

    def _notify_subscribers(self) -> None:
        for event in self._subscribers:
            event.set()

    def _notify_waiters(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()
