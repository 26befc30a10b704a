"""Select the configuration from objects that are delivered one by one, some of them invalid. Pure.

From git, a configuration is all or nothing. Custom resources have no such unit: several authors deliver them
separately, in any order. If one bad object stopped everything, every tenant could stop all others. So an invalid
object is left out alone, and its last good version, if there is one, stands in. That covers objects that are invalid
in themselves, and objects that contradict others (a key id of another tenant, a tier that is not declared).

Seniority decides which object a contradiction is blamed on. Objects that were accepted as they are come first, so
that a newcomer that claims what is taken is refused, never the present owner.

Laws: the result has no contradictions; every refused object has its reasons; and if nothing is wrong, the result is
everything (test_objects_without_blame_are_selected).

Neighbours: `cr_source` remembers the last good versions.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import orjson

from functions.api import consistency
from functions.api.declared import Declared
from functions.api.file_result import Ours, PassedOver, Wrong, read_head
from functions.api.kinds.catalogue import AnyObject
from functions.api.problems import MAX_PROBLEMS, Problem, SourceLocation
from functions.api.validation import validate
from functions.api.yaml_documents import Document, Written

# Validation of one object of the cluster by the loader's own rules.
#
# The API server sends JSON, which is validated directly. Only if something is wrong is it parsed as text, for the
# key path. Places name the object as kubectl would: `tenants/acme`.


class ClusterDocument(Document):
    """A document without lines: every place in it is the object, so none has to be searched for."""

    def locate(self, path: Sequence[str | int]) -> SourceLocation:
        return self.place


@dataclass(frozen=True, slots=True)
class ValidatedObject:
    """A valid object, or the problems that it has by itself."""

    declared: Declared[AnyObject] | None
    problems: tuple[str, ...] = ()


def validate_document(key: str, document: bytes) -> ValidatedObject:
    """Validate an object and return it, or its problems if it has any. `key` is `plural/name`; `document` is the object
    as JSON."""
    written = Written(orjson.loads(document), ClusterDocument(key, 0, 0, 1, document.decode()))
    head = read_head(written)
    match head:
        case Ours(kind):
            value, wrong = validate(kind, written)
        case PassedOver(problem) | Wrong(problem):
            return ValidatedObject(None, (problem_text(problem),))
    if value is None:
        return ValidatedObject(None, tuple(problem_text(problem) for problem in wrong))
    declared: Declared[AnyObject] = Declared(value, written.document)
    found = [declared.problem(path, message) for path, message in islice(value.findings(), MAX_PROBLEMS)]
    return ValidatedObject(None, tuple(map(problem_text, found))) if found else ValidatedObject(declared)


def problem_text(problem: Problem) -> str:
    """Return the problem's key path and message as text. Lines and columns mean nothing here, and the status is on the
    object itself."""
    return f"{problem.key_path}: {problem.message}" if problem.key_path else problem.message


MAX_ROUNDS = 16  # tier -> tenant -> model, each by its new and by its last good version, and a margin


@dataclass(frozen=True, slots=True)
class Candidate:
    judged: ValidatedObject
    last_good: Declared[AnyObject] | None = None
    accepted: bool = False  # its current content was in force before

    @property
    def ladder(self) -> tuple[Declared[AnyObject], ...]:
        """Versions that may stand for the object, the best first: as written if valid, then the last good one if it
        differs."""
        steps = (self.judged.declared, self.last_good)
        known = [step for step in steps if step is not None]
        return tuple(known[:1]) if len(known) == 2 and known[0].value == known[1].value else tuple(known)


@dataclass(frozen=True, slots=True)
class SelectionRefusal:
    problems: tuple[str, ...]
    stands_in: bool  # its last good version is in force


@dataclass(frozen=True, slots=True)
class Selection:
    objects: tuple[Declared[AnyObject], ...]
    refusals: Mapping[str, SelectionRefusal]  # by key; all other objects are in force as written


def select(candidates: Mapping[str, Candidate]) -> Selection:
    """Return a consistent selection: each object as written, or its last good version if that is invalid or contradicts
    others, or neither, and the refusals. `candidates` are by key (`plural/name`), as in their problems."""
    rungs = {key: 0 for key, candidate in candidates.items() if candidate.ladder}
    told = {key: list(candidate.judged.problems) for key, candidate in candidates.items() if candidate.judged.problems}
    for _ in range(MAX_ROUNDS):
        blamed = _blamed(_in_force(candidates, rungs))
        if not blamed:
            break
        for key, problems in blamed.items():
            told.setdefault(key, []).extend(problem for problem in problems if problem not in told.get(key, []))
            _step_down(key, candidates, rungs)
    else:
        _drop_all(blamed, rungs)
    refusals = {
        key: SelectionRefusal(tuple(problems), stands_in=key in rungs) for key, problems in sorted(told.items())
    }
    return Selection(tuple(_in_force(candidates, rungs)), refusals)


def _in_force(candidates: Mapping[str, Candidate], rungs: Mapping[str, int]) -> list[Declared[AnyObject]]:
    """Return the selected versions by seniority, then by name: the order in which contradictions are blamed."""

    def seniority(key: str) -> tuple[bool, str]:
        candidate = candidates[key]
        senior = rungs[key] > 0 or candidate.accepted or candidate.judged.declared is None
        return (not senior, key)

    return [candidates[key].ladder[rungs[key]] for key in sorted(rungs, key=seniority)]


def _blamed(objects: list[Declared[AnyObject]]) -> dict[str, list[str]]:
    by_key: dict[str, list[str]] = {}
    for problem in consistency.problems(objects, complete=True):
        by_key.setdefault(problem.place.file, []).append(problem_text(problem))
    return by_key


def _step_down(key: str, candidates: Mapping[str, Candidate], rungs: dict[str, int]) -> None:
    if key in rungs:
        rungs[key] += 1
        if rungs[key] >= len(candidates[key].ladder):
            del rungs[key]


def _drop_all(keys: Iterable[str], rungs: dict[str, int]) -> None:
    for key in keys:
        rungs.pop(key, None)
