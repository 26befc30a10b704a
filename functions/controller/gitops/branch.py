"""Branch of declarations: its tip, read and judged, for whoever makes a fleet what it says.

    fetch, where the branch is elsewhere -> look -> judge -> a Revision, or why the tip is none (`refused`)

The laws: what does not validate changes nothing, however it came onto the branch. A branch that cannot be read costs
freshness and never what is known: `tip` stays, and `trouble` says why.

Neighbours: `following` (one machine) and `functions.controller.kubernetes.run.git_reconciler` (a cluster) have one
each; they keep the record of what was good last, and say what else a revision must be (`check`).
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
    """A commit of the branch that is in order."""

    name: str  # `main@<commit>`
    commit: str
    message: str  # its first line
    loaded: Loaded


class Branch:
    """Owned by one event loop; git runs in worker threads."""

    def __init__(
        self,
        source: GitSource,
        *,
        fetch: Callable[[], None] | None = None,
        check: Callable[[str, Loaded], tuple[Problem, ...]] = lambda commit, loaded: (),
    ) -> None:
        """`fetch` brings the tip into the source's repository, and blocks; `check` says what is wrong with a commit
        that can be read."""
        self.source = source
        self.name = source.branch
        self.tip: Observed | None = None
        self.refused: tuple[Problem, ...] = ()  # why what was judged last is no revision
        self.trouble = ""  # why the branch cannot be read
        self._fetch = fetch
        self._check = check
        self._looking = asyncio.Lock()
        self._woken = asyncio.Event()

    def revision_of(self, observed: Observed) -> str:
        return f"{self.name}@{observed.commit}"

    def wake(self) -> None:
        """Look as soon as that may be, once for all that ask meanwhile."""
        self._woken.set()

    async def watch(self, look: Callable[[], Awaitable[None]], every_s: float, apart_s: float = 0.0) -> None:
        """Until cancelled: `look` now and then, and when woken, but never sooner than `apart_s` after the last time."""
        while True:
            await asyncio.sleep(apart_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every_s - apart_s):
                    await self._woken.wait()
            self._woken.clear()
            await look()

    async def look(self) -> Observed:
        """The tip; GitFailed where it cannot be read, and then what was seen before stays."""
        async with self._looking:
            try:
                if self._fetch is not None:
                    await asyncio.to_thread(self._fetch)
                self.tip = await asyncio.to_thread(self.source.look)
            except GitFailed as error:
                if str(error) != self.trouble:
                    _log.warning("the branch cannot be followed: %s", error)
                self.trouble = str(error)
                raise
            self.trouble = ""
            return self.tip

    def judge(self, observed: Observed) -> Revision | None:
        """The revision that the commit is; None where it is none, and `refused` says why."""
        loaded = observed.loaded
        self.refused = observed.problems if loaded is None else self._check(observed.commit, loaded)
        if loaded is None or self.refused:
            return None
        return Revision(self.revision_of(observed), observed.commit, observed.message, loaded)

    async def knows(self, name: str) -> bool:
        """Whether the repository has a revision, good or bad."""
        try:
            await asyncio.to_thread(self.source.at, _commit_of(name))
        except GitFailed:
            return False
        return True

    async def recall(self, name: str) -> Revision | None:
        """A revision that was good once, by its name; None where the repository does not have it any more."""
        commit = _commit_of(name)
        try:
            observed = await asyncio.to_thread(self.source.at, commit)
        except GitFailed as error:
            _log.warning("%s, which was good once, cannot be read: %s", name, error)
            self.trouble = self.trouble or str(error)
            return None
        return Revision(name, commit, observed.message, observed.loaded) if observed.loaded is not None else None


def _commit_of(name: str) -> str:
    return name.rpartition("@")[2]
