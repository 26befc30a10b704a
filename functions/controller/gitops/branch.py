"""Branch of declarations: its tip, read and judged, for the controller that applies it.

    fetch, if the branch is remote -> look -> judge -> a Revision, or the reasons why the tip is none (`refused`)

Rules: an invalid commit changes nothing, however it came onto the branch. If the branch cannot be read, `tip` keeps
the last known commit and `trouble` says why.

Neighbours: `following` (one machine) and `functions.controller.kubernetes.run.git_reconciler` (a cluster) each own
one. They record the last good revision and add their own checks of a revision (`check`).
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from functions.api.loader import Loaded
from functions.api.problems import Problem
from functions.controller.gitops.git import GitFailed
from functions.controller.gitops.source import GitSource, Observed

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Revision:
    """A valid commit of the branch."""

    name: str  # `main@<commit>`
    commit: str
    message: str  # first line of the commit message
    loaded: Loaded


class FollowedBranch:
    """Owned by one event loop; git runs in worker threads."""

    def __init__(
        self,
        source: GitSource,
        *,
        fetch: Callable[[], None] | None = None,
        check: Callable[[str, Loaded], tuple[Problem, ...]] = lambda commit, loaded: (),
    ) -> None:
        """`fetch` copies the tip into the source's repository and blocks; `check` returns the problems of a readable
        commit."""
        self.source = source
        self.name = source.branch
        self.tip: Observed | None = None
        self.refused: tuple[Problem, ...] = ()  # problems of the last judged commit
        self.trouble = ""  # reason why the branch cannot be read
        self._fetch = fetch
        self._check = check
        self._looking = asyncio.Lock()
        self._woken = asyncio.Event()

    def revision_of(self, observed: Observed) -> str:
        return f"{self.name}@{observed.commit}"

    def wake(self) -> None:
        """Make `watch` call its function as soon as it may; several requests until then become one call."""
        self._woken.set()

    async def watch(self, look: Callable[[], Awaitable[None]], every_s: float, apart_s: float = 0.0) -> None:
        """Call `look` every `every_s` seconds and sooner if woken, but at least `apart_s` apart, until cancelled."""
        while True:
            await asyncio.sleep(apart_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every_s - apart_s):
                    await self._woken.wait()
            self._woken.clear()
            await look()

    async def refresh_tip(self) -> Observed:
        """Fetch if a `fetch` was given, then read and return the tip. If that fails, set `trouble` and raise GitFailed;
        the last known tip stays."""
        async with self._looking:
            try:
                if self._fetch is not None:
                    await asyncio.to_thread(self._fetch)
                self.tip = await asyncio.to_thread(self.source.read_tip)
            except GitFailed as error:
                if str(error) != self.trouble:
                    _log.warning("the branch cannot be followed: %s", error)
                self.trouble = str(error)
                raise
            self.trouble = ""
            return self.tip

    def judge_commit(self, observed: Observed) -> Revision | None:
        """Return the commit's revision, or None if it is invalid. Set `refused` to its problems, or to none if it is
        valid."""
        loaded = observed.loaded
        self.refused = observed.problems if loaded is None else self._check(observed.commit, loaded)
        if loaded is None or self.refused:
            return None
        return Revision(self.revision_of(observed), observed.commit, observed.message, loaded)

    async def has_revision(self, name: str) -> bool:
        """Return True if the repository has a revision, valid or not; False also if it cannot be read."""
        try:
            await asyncio.to_thread(self.source.read_commit, _commit_of(name))
        except GitFailed:
            return False
        return True

    async def load_revision(self, name: str) -> Revision | None:
        """Return a formerly good revision by its name; None if it is invalid now or cannot be read, which is set as
        `trouble` unless there is one."""
        commit = _commit_of(name)
        try:
            observed = await asyncio.to_thread(self.source.read_commit, commit)
        except GitFailed as error:
            _log.warning("the last good revision %s cannot be read: %s", name, error)
            self.trouble = self.trouble or str(error)
            return None
        return Revision(name, commit, observed.message, observed.loaded) if observed.loaded is not None else None


def _commit_of(name: str) -> str:
    return name.rpartition("@")[2]
