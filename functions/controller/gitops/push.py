"""Reference updates of a push, and which are refused whatever the content. Pure.

* the deployed branch: no deletion, and no rewriting of history unless `-o allow-rewrite` says that it is meant;
* other branches and tags: accepted, and not deployed, which the pusher is told;
* `refs/shoal/…` is the controller's own.
"""

from collections.abc import Callable
from dataclasses import dataclass

ALLOW_REWRITE = "allow-rewrite"
ALLOW_EMPTY = "allow-empty"
OPTIONS = (ALLOW_REWRITE, ALLOW_EMPTY)
MAX_UPDATES = 1000


@dataclass(frozen=True, slots=True)
class ReferenceUpdate:
    """One line of what git gives a hook: object ids in hex, all zeros for nothing."""

    old: str
    new: str
    reference: str

    @property
    def creates(self) -> bool:
        return not self.old.strip("0")

    @property
    def deletes(self) -> bool:
        return not self.new.strip("0")


@dataclass(frozen=True, slots=True)
class References:
    """The verdict over the references; `commit` is what the deployed branch would become, if that moves."""

    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    commit: str | None = None


def judge_references(
    updates: tuple[ReferenceUpdate, ...], options: frozenset[str], branch: str, is_ancestor: Callable[[str, str], bool]
) -> References:
    """`is_ancestor(older, newer)` asks the repository."""
    refusals = [
        f"unknown push option {option!r}; known: {', '.join(OPTIONS)}" for option in sorted(options - {*OPTIONS})
    ]
    notes: list[str] = []
    commit: str | None = None
    if len(updates) > MAX_UPDATES:
        return References((f"{len(updates)} references in one push; allowed: at most {MAX_UPDATES}",))
    if len({update.reference for update in updates}) < len(updates):
        return References(("one push moves the same reference twice",))
    for update in updates:
        name = update.reference.removeprefix("refs/heads/").removeprefix("refs/tags/")
        if update.reference == f"refs/heads/{branch}":
            refusals += _refusals(update, options, branch, is_ancestor)
            commit = update.new
        elif not update.reference.startswith(("refs/heads/", "refs/tags/")):
            refusals.append(f"{update.reference} is not for pushing: branches and tags are")
        elif not update.deletes:
            notes.append(f"{name} is kept, and not deployed: only {branch} is")
    return References(tuple(refusals), tuple(notes), None if refusals else commit)


def _refusals(
    update: ReferenceUpdate, options: frozenset[str], branch: str, is_ancestor: Callable[[str, str], bool]
) -> list[str]:
    if update.deletes:
        return [f"{branch} is what the fleet runs: it cannot be deleted. To run less, push a commit that says so"]
    if update.creates or ALLOW_REWRITE in options or is_ancestor(update.old, update.new):
        return []
    return [
        f"the push would take commits out of {branch}'s history: fetch and merge (or revert) instead, "
        f"or push with --force -o {ALLOW_REWRITE}"
    ]
