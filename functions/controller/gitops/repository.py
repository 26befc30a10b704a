"""The bare repository: created once, configured at every `shoal up`, and written by commits only.

A commit is made by `git fast-import`: one process, no working tree, and readers never see a partial commit.
"""

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from functions.controller.gitops import hook
from functions.controller.gitops.git import Git
from functions.controller.gitops.source import Blobs
from functions.controller.local.files import replace_file

BRANCH = "main"
AUTHOR = "shoal <shoal@localhost>"
HOOKS = ("pre-receive", "post-receive")
CONFIG_FILE = "shoal.config"  # included by the repository's own configuration
CONFIG = """\
# Written by `shoal up`.
[receive]
	advertisePushOptions = true
	denyDeleteCurrent = ignore ; the hook explains why
	fsckObjects = true
	maxInputSize = 256m
[transfer]
	hideRefs = refs/shoal ; the controller's own
[core]
	logAllRefUpdates = true
"""


@dataclass(frozen=True, slots=True)
class Repository:
    path: Path

    @property
    def git(self) -> Git:
        return Git(self.path)

    def ensure(self, control_sockets: Sequence[Path]) -> None:
        """Create the repository or repair missing parts; raise GitFailed or OSError if that fails. `control_sockets`:
        sockets of the controllers that follow it, in the order in which the hook tries them."""
        if not (self.path / "HEAD").is_file():
            self.path.mkdir(parents=True, exist_ok=True)
            self.git.run("init", "--quiet", "--bare", f"--initial-branch={BRANCH}", "--template=", str(self.path))
        replace_file(self.path / CONFIG_FILE, CONFIG.encode())
        self.git.run("config", "include.path", CONFIG_FILE)
        for name in HOOKS:
            self._install(name, control_sockets)

    def files(self, reference: str) -> dict[str, bytes]:
        """Return the content of every plain file of a commit, by path; raise GitFailed if the commit cannot be read."""
        listed = self.git.run("ls-tree", "-r", "-z", "--full-tree", reference)
        found: dict[str, str] = {}
        for line in listed.split(b"\0")[:-1]:
            head, _, path = line.partition(b"\t")
            mode, _, object_id = head.decode().split()
            if mode.startswith("100"):
                found[path.decode("utf-8", "surrogateescape")] = object_id
        contents = Blobs().read(self.git, found.values())
        return {path: contents[object_id] for path, object_id in found.items()}

    def point(self, branch: str, commit: str, former: str | None) -> None:
        """Move a branch from `former` (None: it must not exist) to `commit`; raise GitFailed if it is elsewhere by
        now."""
        self.git.run("update-ref", f"refs/heads/{branch}", commit, former or "0" * 40)

    def commit(self, branch: str, files: Mapping[str, bytes], message: str, parent: str | None) -> str:
        """Commit exactly these files on top of `parent` (None: nothing) and move the branch there, wherever it was;
        return the commit's id."""
        stream = [
            b"commit refs/heads/%b\n" % branch.encode(),
            b"committer %b %d +0000\n" % (AUTHOR.encode(), int(time.time())),
            _data(message.encode()),
            *([b"from %b\n" % parent.encode()] if parent is not None else []),
            b"deleteall\n",
        ]
        for path, content in sorted(files.items()):
            stream += [b"M 100644 inline %b\n" % _quoted(path), _data(content)]
        self.git.run("fast-import", "--quiet", "--force", "--done", send=b"".join([*stream, b"done\n"]))
        return self.git.commit_of(f"refs/heads/{branch}") or ""

    def _install(self, name: str, control_sockets: Sequence[Path]) -> None:
        python = shlex.quote(sys.executable)
        words = [name, str(self.path), sys.executable, *map(str, control_sockets)]
        line = f"exec {python} -I -S {shlex.quote(str(Path(hook.__file__)))} {shlex.join(words)}"
        script = f"#!/bin/sh\n# Written by `shoal up`; the program that it runs is documented in its file.\n{line}\n"
        (self.path / "hooks").mkdir(exist_ok=True)
        replace_file(self.path / "hooks" / name, script.encode(), mode=0o755)


def _data(content: bytes) -> bytes:
    return b"data %d\n%b\n" % (len(content), content)


def _quoted(path: str) -> bytes:
    """Quote a path for fast-import, with the three special characters escaped."""
    raw = path.encode("utf-8", "surrogateescape")
    for character, escaped in ((b"\\", b"\\\\"), (b'"', b'\\"'), (b"\n", b"\\n")):
        raw = raw.replace(character, escaped)
    return b'"' + raw + b'"'
