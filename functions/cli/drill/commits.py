"""Changes of the fleet's branch by clone, commit and push, and their reverts. All functions block."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from functions.cli.refused import CommandRefused

GIT_S = 120.0
_WHO = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_AUTHOR_NAME": "shoal drill",
    "GIT_AUTHOR_EMAIL": "drill@localhost",
    "GIT_COMMITTER_NAME": "shoal drill",
    "GIT_COMMITTER_EMAIL": "drill@localhost",
}


def push_change(repository: Path, change: Callable[[Path], None], message: str, before: Callable[[str], None]) -> None:
    """Clone, call `change` to edit the clone, commit and push. `before` gets the commit id before the push."""
    with tempfile.TemporaryDirectory(prefix="shoal-drill-") as folder:
        clone = _clone(repository, Path(folder))
        change(clone)
        _git(clone, "add", "--all", "--force")
        _git(clone, "commit", "--quiet", "--message", message)
        before(_git(clone, "rev-parse", "HEAD"))
        _git(clone, "push", "--quiet", "origin", "HEAD:main")


def revert(repository: Path, commit: str) -> None:
    """Revert a commit if it was pushed and is not reverted yet. Fail if later commits changed the same lines."""
    with tempfile.TemporaryDirectory(prefix="shoal-drill-") as folder:
        clone = _clone(repository, Path(folder))
        if not _is_on_branch(clone, commit) or f"This reverts commit {commit}" in _git(clone, "log", "--format=%B"):
            return
        _git(clone, "revert", "--no-edit", commit)
        _git(clone, "push", "--quiet", "origin", "HEAD:main")


@contextmanager
def read_branch(repository: Path) -> Iterator[Path]:
    """Yield a temporary clone of the branch. Changes of its files are lost."""
    with tempfile.TemporaryDirectory(prefix="shoal-drill-") as folder:
        yield _clone(repository, Path(folder))


def _clone(repository: Path, folder: Path) -> Path:
    clone = folder / "fleet"
    _git(folder, "clone", "--quiet", "--branch", "main", str(repository), str(clone))
    return clone


def _is_on_branch(clone: Path, commit: str) -> bool:
    done = _run(clone, "merge-base", "--is-ancestor", commit, "HEAD")
    return done.returncode == 0


def _git(at: Path, *arguments: str) -> str:
    done = _run(at, *arguments)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise CommandRefused(f"git {arguments[0]} failed for the change of the drill: {said[-1500:]}")
    return done.stdout.strip()


def _run(at: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | _WHO
    try:
        return subprocess.run(
            ["git", "-C", str(at), *arguments],
            env=environment, capture_output=True, text=True, timeout=GIT_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandRefused(f"git {arguments[0]} could not be run for the drill's change: {error}") from error
