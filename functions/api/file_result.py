"""What one file says by itself: its objects, what was passed over, and all that is wrong without looking elsewhere.

A pure function of the file's name and content, so that its result can be remembered (`parse_cache`).
Steps: parse (`yaml_documents`), pick the kind (`heads`), validate (`validation`), the object's own contradictions.
"""

from dataclasses import dataclass
from itertools import islice

from functions.api.declared import Declared
from functions.api.heads import Ours, PassedOver, Wrong, read_head
from functions.api.kinds.catalogue import AnyObject
from functions.api.kinds.inference_service import POOL_LABEL, InferenceService
from functions.api.problems import MAX_PROBLEMS, Problem
from functions.api.validation import validate
from functions.api.yaml_documents import Written, read_documents


@dataclass(frozen=True, slots=True)
class FileResult:
    objects: tuple[Declared[AnyObject], ...]
    ignored: tuple[Problem, ...]
    problems: tuple[Problem, ...]
    contradictions: tuple[Problem, ...]  # of objects that could be read; they keep nobody from judging the others


@dataclass(slots=True)
class _Judged:
    objects: list[Declared[AnyObject]]
    ignored: list[Problem]
    problems: list[Problem]
    contradictions: list[Problem]


def judge_file(file: str, content: bytes) -> FileResult:
    read = read_documents(file, content)
    judged = _Judged([], [], list(read.problems), [])
    for written in read.documents:
        if len(judged.problems) + len(judged.contradictions) >= MAX_PROBLEMS:
            break
        _judge(written, judged)
    return FileResult(
        tuple(judged.objects), tuple(judged.ignored), tuple(judged.problems), tuple(judged.contradictions)
    )


def _judge(written: Written, judged: _Judged) -> None:
    match read_head(written):
        case Ours(kind):
            _take(kind, written, judged)
        case PassedOver(reason):
            judged.ignored.append(reason)
        case Wrong(problem):
            judged.problems.append(problem)


def _take(kind: type[AnyObject], written: Written, judged: _Judged) -> None:
    value, wrong = validate(kind, written)
    judged.problems.extend(wrong)
    if value is None:
        return
    declared: Declared[AnyObject] = Declared(value, written.document)
    judged.objects.append(declared)
    for path, message in islice(value.findings(), MAX_PROBLEMS):
        judged.contradictions.append(declared.problem(path, message))
    if isinstance(value, InferenceService) and value.pool is None:
        message = f"an InferenceService without the label {POOL_LABEL}: no pool"
        judged.ignored.append(Problem(written.document.place, "", message))
