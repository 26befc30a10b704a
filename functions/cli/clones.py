"""Which fleet a working copy belongs to: a clone of its repository says so in its remotes.

So `shoal diff` and `shoal status` answer where people edit, without being told where the fleet's state is.
"""

import subprocess
from pathlib import Path

from functions.controller.local.layout import StateLayout

GIT_TIMEOUT_S = 10.0


def remotes_of(root: Path) -> list[Path]:
    """The remotes of a working copy that are directories of this machine; none where it is no working copy."""
    command = ["git", "-C", str(root), "config", "--local", "--get-regexp", r"^remote\..*\.url$"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    urls = [line.partition(" ")[2].removeprefix("file://") for line in done.stdout.splitlines()]
    return [(root / url).resolve() for url in urls if "://" not in url]


def is_clone_of(repository: Path, root: Path) -> bool:
    return repository.resolve() in remotes_of(root)


def state_dir_of_clone(root: Path) -> Path | None:
    """The state directory of the fleet whose repository this is a clone of; None where it is none."""
    layouts = [StateLayout.at(remote.parent) for remote in remotes_of(root)]
    return next((layout.root for layout in layouts if layout.gitops_dir.is_dir() and layout.ca_file.is_file()), None)


def toplevel_of(start: Path) -> Path | None:
    """The top of the working copy that a directory lies in; None where it lies in none."""
    command = ["git", "-C", str(start), "rev-parse", "--show-toplevel"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Path(done.stdout.strip()) if done.returncode == 0 and done.stdout.strip() else None
