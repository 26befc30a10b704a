"""A branch as a configuration source: `look()` returns its tip, checked by the one loader.

    source = GitSource(Path(".shoal/gitops.git"), "main")
    observed = source.look()       # GitFailed where the repository cannot be read: try again
    observed.loaded                # None: what is wrong stands in `observed.problems`

A tip that did not move costs one `git rev-parse`; one that did costs the files that changed. Blocking and thread-safe:
call it from worker threads. Neighbours: `tree` and `blobs` read, `remote` fetches into the repository first.
"""

import threading
from dataclasses import dataclass, field
from pathlib import Path

from functions.api.loader import Loaded, load_texts
from functions.api.parse_cache import ParseCache
from functions.api.problems import ConfigInvalid, Place, Problem
from functions.controller.gitops.git import Git, OutputTooLarge
from functions.controller.gitops.tree import LISTING_MAX_BYTES, MAX_ENTRIES, Blobs, read_listing

MESSAGE_MAX_CHARS = 200
_REMEMBERED = 4  # commits: the tip, the last good one, what is being pushed, and one more


@dataclass(frozen=True, slots=True)
class Observed:
    """One commit of the branch."""

    commit: str  # 40 hex digits; empty where the branch has no commit
    committed_unix_s: float
    message: str  # its first line
    loaded: Loaded | None  # None where it cannot be used
    problems: tuple[Problem, ...]
    texts: dict[str, bytes] = field(default_factory=dict, compare=False, repr=False)  # by file: to quote from


class GitSource:
    def __init__(self, repository: Path, branch: str = "main") -> None:
        self.git = Git(repository)
        self.branch = branch
        self._blobs = Blobs()
        self._cache = ParseCache()
        self._one_at_a_time = threading.Lock()
        self._seen: dict[str, Observed] = {}  # the newest last

    def look(self) -> Observed:
        """What the branch's tip holds now."""
        with self._one_at_a_time:
            commit = self.git.commit_of(f"refs/heads/{self.branch}")
            if commit is None:
                nothing = Problem(Place("."), "", f"the branch {self.branch} has no commit")
                return Observed("", 0.0, "", None, (nothing,))
            return self._observe(self.git, commit)

    def at(self, commit: str, objects: Path | None = None) -> Observed:
        """What another commit holds; `objects` is the quarantine of a push that has not been accepted yet."""
        with self._one_at_a_time:
            return self._observe(Git(self.git.repository, objects), commit)

    def _observe(self, git: Git, commit: str) -> Observed:
        known = self._seen.pop(commit, None)
        observed = known if known is not None else self._read(git, commit)
        self._seen[commit] = observed
        while len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return observed

    def _read(self, git: Git, commit: str) -> Observed:
        committed_unix_s, message = _head(git, commit)
        try:
            listed = git.run("ls-tree", "-r", "-z", "-l", "--full-tree", commit, max_bytes=LISTING_MAX_BYTES)
        except OutputTooLarge:  # a few objects can name each other into billions of files
            too_large = Problem(Place("."), "", f"the commit has too many files; allowed: at most {MAX_ENTRIES}")
            return Observed(commit, committed_unix_s, message, None, (too_large,))
        listing = read_listing(listed)
        if listing.problems:
            return Observed(commit, committed_unix_s, message, None, listing.problems)
        contents = self._blobs.read(git, (object_id for _, object_id in listing.files))
        texts = {path: contents[object_id] for path, object_id in listing.files}
        try:
            loaded = load_texts(texts.items(), cache=self._cache)
        except ConfigInvalid as error:
            return Observed(commit, committed_unix_s, message, None, error.problems, texts)
        return Observed(commit, committed_unix_s, message, loaded, ())


def _head(git: Git, commit: str) -> tuple[float, str]:
    """When it was committed, and the first line of its message, fit for a terminal."""
    shown = git.run("log", "-1", "--no-show-signature", "--encoding=UTF-8", "--format=%ct%n%s", commit, "--")
    seconds, _, subject = shown.decode("utf-8", "replace").partition("\n")
    printable = "".join(character if character.isprintable() else " " for character in subject.strip())
    return float(seconds), printable[:MESSAGE_MAX_CHARS]
