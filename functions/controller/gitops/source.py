"""A branch as a configuration source: its tip and the files of its tree, checked by the loader.

    source = GitSource(Path(".shoal/gitops.git"), "main")
    observed = source.look()       # GitFailed if the repository cannot be read: try again
    observed.loaded                # None: `observed.problems` has the reasons

If the tip did not move, a look costs one `git rev-parse`; otherwise only changed files are read. A tree is read like
a folder by `functions.api.loader`: YAML anywhere, except below hidden names. One rule is stricter than for a folder:
links and submodules are rejected, because their content is not in the commit. Blocking and thread-safe: call it from
worker threads. Neighbours: `git.Remote` fetches into the repository first.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from functions.api.file_result import ParseCache
from functions.api.loader import MAX_FILES, MAX_TOTAL_BYTES, Loaded, load_texts
from functions.api.problems import ConfigInvalid, Problem, SourceLocation, shown
from functions.api.yaml_events import FILE_MAX_BYTES
from functions.controller.gitops.git import Git, GitFailed, OutputTooLarge


class Blobs:
    """Cache of file contents by object id, holding the files of the last commit only. Its size is limited like a
    configuration. Owned by one reader at a time."""

    def __init__(self) -> None:
        self._known: dict[str, bytes] = {}

    def read(self, git: Git, object_ids: Iterable[str]) -> dict[str, bytes]:
        """Return the contents by object id, reading only those that the previous call did not return; raise GitFailed
        if one is missing."""
        wanted = set(object_ids)
        missing = sorted(wanted - self._known.keys())
        contents = {each: self._known[each] for each in wanted & self._known.keys()}
        if missing:
            asked = "".join(f"{each}\n" for each in missing).encode()
            contents |= _parse(git.run("cat-file", "--batch", send=asked), missing)
        self._known = contents
        return contents


def _parse(output: bytes, asked: list[str]) -> dict[str, bytes]:
    """Return the contents by object id from `<id> blob <size>\\n<content>\\n` for each object, in the requested order;
    raise GitFailed if one is missing or no blob."""
    contents: dict[str, bytes] = {}
    position = 0
    for object_id in asked:
        end = output.find(b"\n", position)
        head = output[position:end].split()
        if end < 0 or len(head) != 3 or head[0].decode() != object_id or head[1] != b"blob":
            raise GitFailed(f"the object {object_id} cannot be read: {output[position : max(end, position)][:80]!r}")
        size_bytes = int(head[2])
        contents[object_id] = output[end + 1 : end + 1 + size_bytes]
        position = end + 1 + size_bytes + 1
    return contents


MAX_ENTRIES = 50_000  # entries of any kind: a listing is bounded before it is parsed
LISTING_MAX_BYTES = 16 * 1024 * 1024  # room for MAX_ENTRIES names of 300 bytes
_SUFFIXES = (".yaml", ".yml")
_KINDS = {"120000": "a symbolic link", "160000": "a submodule"}


@dataclass(frozen=True, slots=True)
class SourceListing:
    files: tuple[tuple[str, str], ...]  # (path, object id) of each YAML file, by path
    problems: tuple[Problem, ...]


def read_listing(output: bytes) -> SourceListing:
    """Parse the output of `git ls-tree -r -z -l --full-tree <commit>`: return the configuration files (path and object
    id), and the problems of entries and of exceeded limits."""
    lines = output.split(b"\0")[:-1]
    if len(lines) > MAX_ENTRIES:
        return SourceListing(
            (), (_commit_problem(f"the commit has {len(lines)} files; allowed: at most {MAX_ENTRIES}"),)
        )
    files: list[tuple[str, str]] = []
    problems: list[Problem] = []
    total_bytes = 0
    for line in lines:
        head, _, raw_path = line.partition(b"\t")
        mode, _, object_id, size = head.decode("ascii").split()
        path, problem = _checked_path(raw_path, mode)
        if problem is not None:
            problems.append(problem)
        elif _is_configuration(path):
            total_bytes += int(size)
            files.append((path, object_id))
            if int(size) > FILE_MAX_BYTES:
                problems.append(
                    _file_problem(path, f"has {size} bytes, over the limit of {FILE_MAX_BYTES}: split the file")
                )
    if len(files) > MAX_FILES:
        problems.append(_commit_problem(f"the commit has {len(files)} files of YAML; allowed: at most {MAX_FILES}"))
    if total_bytes > MAX_TOTAL_BYTES:
        problems.append(
            _commit_problem(f"the commit has {total_bytes} bytes of YAML; allowed: at most {MAX_TOTAL_BYTES}")
        )
    return SourceListing(tuple(sorted(files)), tuple(sorted(problems)))


def _checked_path(raw: bytes, mode: str) -> tuple[str, Problem | None]:
    """Return the path as text, and the entry's problem if it has one."""
    try:
        path = raw.decode("utf-8")
    except UnicodeDecodeError:
        path = raw.decode("utf-8", "backslashreplace")
        return path, _file_problem(path, "the name is not UTF-8")
    if not path.isprintable():
        return path, _file_problem(shown(path), "the name holds control characters")
    if mode in _KINDS:
        return path, _file_problem(path, f"is {_KINDS[mode]}; allowed: plain files, whose content is in the commit")
    return path, None


def _is_configuration(path: str) -> bool:
    return path.endswith(_SUFFIXES) and not any(part.startswith(".") for part in path.split("/"))


def _file_problem(path: str, message: str) -> Problem:
    return Problem(SourceLocation(path), "", message)


def _commit_problem(message: str) -> Problem:
    return Problem(SourceLocation("."), "", message)


MESSAGE_MAX_CHARS = 200
_REMEMBERED = 4  # commits: the tip, the last good one, one being pushed, and one more


@dataclass(frozen=True, slots=True)
class Observed:
    """One commit of the branch."""

    commit: str  # 40 hex digits; empty if the branch has no commit
    committed_unix_s: float
    message: str  # first line of the commit message
    loaded: Loaded | None  # None if it is invalid
    problems: tuple[Problem, ...]
    # file contents, for excerpts in messages
    texts: dict[str, bytes] = field(default_factory=dict, compare=False, repr=False)


class GitSource:
    def __init__(self, repository: Path, branch: str = "main") -> None:
        self.git = Git(repository)
        self.branch = branch
        self._blobs = Blobs()
        self._cache = ParseCache()
        self._one_at_a_time = threading.Lock()
        self._seen: dict[str, Observed] = {}  # newest last

    def read_tip(self) -> Observed:
        """Return the present content of the branch's tip; a branch without a commit gives an observation with one
        problem."""
        with self._one_at_a_time:
            commit = self.git.commit_of(f"refs/heads/{self.branch}")
            if commit is None:
                nothing = Problem(SourceLocation("."), "", f"the branch {self.branch} has no commit")
                return Observed("", 0.0, "", None, (nothing,))
            return self._observe(self.git, commit)

    def read_commit(self, commit: str, objects: Path | None = None) -> Observed:
        """Return the content of another commit; `objects` is the quarantine of a push that is not accepted yet."""
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
        except OutputTooLarge:  # a few objects that name each other can expand to billions of files
            too_large = Problem(
                SourceLocation("."), "", f"the commit has too many files; allowed: at most {MAX_ENTRIES}"
            )
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
    """Return the commit time and the first line of its message, without control characters."""
    shown = git.run("log", "-1", "--no-show-signature", "--encoding=UTF-8", "--format=%ct%n%s", commit, "--")
    seconds, _, subject = shown.decode("utf-8", "replace").partition("\n")
    printable = "".join(character if character.isprintable() else " " for character in subject.strip())
    return float(seconds), printable[:MESSAGE_MAX_CHARS]
