"""What the fleet's branch holds, read as the controller will read it: before one runs."""

from dataclasses import dataclass

from functions.cli.refused import Refused
from functions.cli.status_revision import SHORT_COMMIT
from functions.controller.gitops import record as records
from functions.controller.gitops.following import LAST_GOOD
from functions.controller.gitops.git import GitFailed
from functions.controller.gitops.source import GitSource
from functions.controller.gitops.words import problem_lines
from functions.controller.local.config_source import PoolUnusable, pools_of
from functions.controller.local.layout import StateLayout
from functions.controller.local.pools import Pool


@dataclass(frozen=True, slots=True)
class Branch:
    pools: tuple[Pool, ...]
    notes: list[str]


def read_branch(layout: StateLayout) -> Branch:
    """The pools of the branch's tip, or of what was good last; Refused where there is neither."""
    source = GitSource(layout.gitops_dir)
    try:
        tip = source.look()
        if tip.loaded is not None:
            return Branch(pools_of(tip.loaded), [])
        good = records.read(layout.revisions_file).last_good
        commit = good.rpartition("@")[2] or source.git.commit_of(LAST_GOOD)
        former = source.at(commit) if commit else None
        if former is not None and former.loaded is not None:
            good = f"{source.branch}@{former.commit[:SHORT_COMMIT]}"
            note = f"{source.branch} has mistakes, so that {good} goes on: `shoal status` shows them"
            return Branch(pools_of(former.loaded), [note])
    except GitFailed as error:
        raise Refused(f"{layout.gitops_dir} cannot be read: {error}") from error
    except PoolUnusable as error:
        raise Refused(f"this machine cannot run the configuration: {error}") from error
    lines = "\n".join(problem_lines(tip.problems, tip.texts))
    raise Refused(f"the configuration in {layout.gitops_dir} has mistakes:\n{lines}")
