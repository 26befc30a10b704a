"""Review of a push before it is accepted: are the references allowed to move, can this machine run the fleet, and
what changes?

    the deployed branch        not to be deleted; its history is rewritten only with `-o allow-rewrite`
    other branches and tags    accepted but not deployed, and the pusher is told so
    `refs/shoal/…`             reserved for the controller

The review uses the same code and caches as the controller that applies the push, so that an accepted push works
there. Blocking: call it from a worker thread.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from functions.api.kinds.autoscaling_policy import AutoscalingPolicy
from functions.api.kinds.inference_service import InferenceService
from functions.api.kinds.model import Model
from functions.api.kinds.tenant import Tenant
from functions.api.loader import Loaded
from functions.api.problems import Problem
from functions.controller.gitops.changes import changes_of, summarize
from functions.controller.gitops.git import Git, GitFailed
from functions.controller.gitops.source import GitSource, Observed
from functions.controller.gitops.words import counted, printable, problem_lines
from functions.controller.local.pools import pools_of
from functions.controller.unobeyed.declared import declared_findings

ALLOW_REWRITE = "allow-rewrite"
ALLOW_EMPTY = "allow-empty"
OPTIONS = (ALLOW_REWRITE, ALLOW_EMPTY)
MAX_UPDATES = 1000


@dataclass(frozen=True, slots=True)
class ReferenceUpdate:
    """One line of a hook's input: object ids in hex, all zeros for none."""

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
    """Verdict over the references; `commit` is the new tip of the deployed branch if it moves."""

    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    commit: str | None = None


def judge_references(
    updates: tuple[ReferenceUpdate, ...], options: frozenset[str], branch: str, is_ancestor: Callable[[str, str], bool]
) -> References:
    """Judge the reference updates; `is_ancestor(older, newer)` queries the repository."""
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
            refusals.append(f"{update.reference} cannot be pushed; only branches and tags can")
        elif not update.deletes:
            notes.append(f"{name} is accepted but not deployed; only {branch} is deployed")
    return References(tuple(refusals), tuple(notes), None if refusals else commit)


def _refusals(
    update: ReferenceUpdate, options: frozenset[str], branch: str, is_ancestor: Callable[[str, str], bool]
) -> list[str]:
    if update.deletes:
        return [f"{branch} is deployed and cannot be deleted. To run less, push a commit that declares less"]
    if update.creates or ALLOW_REWRITE in options or is_ancestor(update.old, update.new):
        return []
    return [
        f"the push would remove commits from {branch}'s history: fetch and merge (or revert) instead, "
        f"or push with --force -o {ALLOW_REWRITE}"
    ]


SHOWN_CHANGES = 40
SHOWN_WARNINGS = 10
ONLY_PROCESSES = "no change to the snapshot, only to processes"

Describe = Callable[[Loaded | None, Loaded], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Push:
    updates: tuple[ReferenceUpdate, ...]
    options: frozenset[str] = frozenset()
    objects: Path | None = None  # quarantine directory of the pushed objects


@dataclass(frozen=True, slots=True)
class PushVerdict:
    accepted: bool
    lines: tuple[str, ...]  # messages for the pusher
    empty_is_meant: str = ""  # commit for which `-o allow-empty` was given


class Reviewer:
    def __init__(self, source: GitSource, check: Callable[[Loaded], tuple[Problem, ...]], describe: Describe) -> None:
        self._source = source
        self._check = check
        self._describe = describe

    def review(self, push: Push, present: Loaded | None) -> PushVerdict:
        """Judge a push; `present` is the fleet's present configuration. Raises GitFailed if the repository cannot be
        read."""
        objects = self._quarantine(push.objects)
        git = Git(self._source.git.repository, objects)
        references = judge_references(push.updates, push.options, self._source.branch, git.is_ancestor)
        if references.refusals:
            return _refused(references.refusals)
        if references.commit is None:
            return PushVerdict(True, tuple(map(printable, references.notes)))
        observed = self._source.read_commit(references.commit, objects)
        if observed.loaded is None:
            return _invalid(observed, observed.problems)
        if problems := self._check(observed.loaded):
            return _invalid(observed, problems)
        allows_empty = ALLOW_EMPTY in push.options
        if not allows_empty and (losses := _removed_kinds(present, observed.loaded)):
            words = f"the push removes {losses}. If that is meant, push with -o {ALLOW_EMPTY}"
            return _refused((words,))
        lines = (*_shortened(self._describe(present, observed.loaded)), *_warnings(observed.loaded))
        return PushVerdict(True, (*map(printable, references.notes), *lines), references.commit if allows_empty else "")

    def _quarantine(self, objects: Path | None) -> Path | None:
        """Return the push's quarantine directory, or None if it has none. Raise GitFailed unless it is inside the
        repository's own objects, so that no caller makes us read elsewhere."""
        if objects is None:
            return None
        own, asked = (self._source.git.repository / "objects").resolve(), objects.resolve()
        if asked == own:
            return None
        if asked.parent != own or not asked.is_dir():
            raise GitFailed(f"{objects} is no quarantine of this repository")
        return asked


def _refused(lines: tuple[str, ...]) -> PushVerdict:
    return PushVerdict(False, tuple(printable(f"refused: {line}") for line in lines))


def _invalid(observed: Observed, problems: tuple[Problem, ...]) -> PushVerdict:
    head = f"refused: {counted(problems, 'problem')} in {observed.commit[:12]}; the fleet runs on unchanged"
    return PushVerdict(False, (head, "", *problem_lines(problems, observed.texts)))


def _removed_kinds(present: Loaded | None, candidate: Loaded) -> str:
    """Return which of pools, models and tenants would lose all their objects, as text; "" if none would."""
    if present is None:
        return ""
    lost = [
        f"all {len(present.objects_of(kind))} {name}"
        for kind, name in ((InferenceService, "pools"), (Model, "models"), (Tenant, "tenants"))
        if present.objects_of(kind) and not candidate.objects_of(kind)
    ]
    return " and ".join(lost)


def _shortened(changes: tuple[str, ...]) -> tuple[str, ...]:
    shown = tuple(printable(change) for change in changes[:SHOWN_CHANGES])
    more = len(changes) - len(shown)
    return (*shown, f"… and {more} more changes") if more > 0 else shown


def _warnings(candidate: Loaded) -> Iterator[str]:
    """Yield warnings about valid policies without effect, at most SHOWN_WARNINGS, then a line that counts the
    others."""
    found = sorted(declared_findings(candidate.objects), key=lambda each: each.problem)
    yield from (printable(f"warning: {each.warning}") for each in found[:SHOWN_WARNINGS])
    if len(found) > SHOWN_WARNINGS:
        yield f"… and {len(found) - SHOWN_WARNINGS} more warnings"


def changes_in_words(present: Loaded | None, candidate: Loaded) -> tuple[str, ...]:
    """Return a headline and the first changes; this machine must be able to run both configurations."""
    changes, processes = changes_of(present, candidate), tuple(changed_processes(present, candidate))
    if not changes and processes:
        return (ONLY_PROCESSES, *processes)
    return (*summarize(changes).lines, *processes)


def changed_processes(present: Loaded | None, candidate: Loaded) -> Iterator[str]:
    """Yield changes that take longer than a snapshot: pools that start or end, replicas that are replaced one at a
    time, and a minReplicas that has no effect under an AutoscalingPolicy. Raises PoolUnusable if this machine cannot
    run one of the configurations."""
    before = {pool.name: pool for pool in (pools_of(present) if present is not None else ())}
    after = {pool.name: pool for pool in pools_of(candidate)}
    scaled = {policy.value.spec.pool for policy in candidate.objects_of(AutoscalingPolicy)}
    for name in sorted({*before, *after}):
        was, is_ = before.get(name), after.get(name)
        if was is None or is_ is None:
            what = "its processes are started" if was is None else "its processes are drained, then ended"
            yield f"pool {name}: {what}"
            continue
        if was.replicas != is_.replicas and name in scaled:
            yield (
                f"pool {name}: minReplicas is what it starts with; once it is scaled, its AutoscalingPolicy owns the "
                "number: to have more at any time, raise replicas.min there"
            )
        if (was.model, was.args, was.env) != (is_.model, is_.args, is_.env):
            yield f"pool {name}: other arguments; its replicas are replaced one at a time, each drained first"


ObjectId = Annotated[str, msgspec.Meta(pattern=r"\A(?:[0-9a-f]{40}|[0-9a-f]{64})\Z")]
Reference = Annotated[str, msgspec.Meta(max_length=1024)]
Option = Annotated[str, msgspec.Meta(max_length=200)]


class PushMalformed(Exception):
    """The order does not have the form that a hook sends."""


class _Order(msgspec.Struct, frozen=True):
    updates: Annotated[tuple[tuple[ObjectId, ObjectId, Reference], ...], msgspec.Meta(max_length=MAX_UPDATES + 1)]
    options: Annotated[tuple[Option, ...], msgspec.Meta(max_length=100)] = ()
    objects: Annotated[str, msgspec.Meta(max_length=4096)] | None = None


def push_from(order: dict[str, Any]) -> Push:
    """Parse the order of a hook, one JSON object; raise PushMalformed if a shape or a length is wrong."""
    try:
        read = msgspec.convert(order, _Order)
    except msgspec.ValidationError as error:
        raise PushMalformed(str(error)) from error
    updates = tuple(ReferenceUpdate(*update) for update in read.updates)
    return Push(updates, frozenset(read.options), Path(read.objects) if read.objects else None)


def verdict_document(verdict: PushVerdict) -> dict[str, Any]:
    return {"accepted": verdict.accepted, "lines": list(verdict.lines)}
