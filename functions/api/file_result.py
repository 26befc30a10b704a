"""Result of one file: its objects, ignored documents, and every problem that can be found without other files.

It is a pure function of the file's name and content, so it can be cached: an unchanged file costs a hash. Steps:
parse (`yaml_documents`), read the head (`apiVersion`, `kind`), validate (`validation`), check the object for
contradictions. A head has three outcomes, since a folder may have other objects than shoal's: one of shoal's kinds;
another kind, which is ignored; or a misspelt kind of shoal's, which must never be ignored silently.
"""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice

from functions.api.declared import Declared
from functions.api.kinds import inference_service
from functions.api.kinds.base import API_VERSION
from functions.api.kinds.catalogue import KINDS, AnyObject
from functions.api.kinds.inference_service import POOL_LABEL, InferenceService
from functions.api.problems import MAX_PROBLEMS, Problem, near_miss, shown
from functions.api.validation import validate
from functions.api.yaml_documents import Document, Written, read_documents


@dataclass(frozen=True, slots=True)
class Ours:
    kind: type[AnyObject]


@dataclass(frozen=True, slots=True)
class PassedOver:
    reason: Problem


@dataclass(frozen=True, slots=True)
class Wrong:
    problem: Problem


def read_head(written: Written) -> Ours | PassedOver | Wrong:
    value, document = written.value, written.document
    if not isinstance(value, dict):
        return Wrong(document.problem([], f"found {shown(value)}; allowed: an object with apiVersion and kind"))
    if not {"apiVersion", "kind"} & value.keys():
        return PassedOver(Problem(document.place, "", "no apiVersion and no kind: not an object"))
    for key in ("apiVersion", "kind"):
        if key not in value:
            return Wrong(document.problem([key], "is required, and not there"))
        if not isinstance(value[key], str):
            return Wrong(document.problem([key], f"found {shown(value[key])}; allowed: text"))
    version, kind = value["apiVersion"], value["kind"]
    model = KINDS.get((version, kind))
    return Ours(model) if model is not None else _unknown(document, version, kind)


def _unknown(document: Document, version: str, kind: str) -> PassedOver | Wrong:
    ours = [name for api, name in KINDS if api == API_VERSION]
    if version == API_VERSION:
        message = f"found {shown(kind)}; allowed: {', '.join(ours)}{near_miss(kind, ours)}"
        return Wrong(document.problem(["kind"], message))
    if near_miss(version, [API_VERSION]):
        return Wrong(document.problem(["apiVersion"], f"found {shown(version)}; allowed: {API_VERSION}"))
    if kind == "InferenceService":
        message = f"found {shown(version)}; allowed for {kind}: {inference_service.API_VERSION}"
        return Wrong(document.problem(["apiVersion"], message))
    return PassedOver(Problem(document.place, "", f"{_head_text(version, kind)} is not one of shoal's kinds"))


def _head_text(version: str, kind: str) -> str:
    """Return `serving.kserve.io/v1alpha1 ServingRuntime`, in one line whatever the text is."""
    return f"{shown(version)[1:-1]} {shown(kind)[1:-1]}"


@dataclass(frozen=True, slots=True)
class FileResult:
    objects: tuple[Declared[AnyObject], ...]
    ignored: tuple[Problem, ...]
    problems: tuple[Problem, ...]
    contradictions: tuple[Problem, ...]  # within readable objects; the other objects are checked nevertheless


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
            _validate_object(kind, written, judged)
        case PassedOver(reason):
            judged.ignored.append(reason)
        case Wrong(problem):
            judged.problems.append(problem)


def _validate_object(kind: type[AnyObject], written: Written, judged: _Judged) -> None:
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


# Memory of objects per byte of their YAML, measured (docs/explanation/kinds.md has a Tenant's and a Model's).
MEMORY_PER_BYTE = 16
FILE_OVERHEAD_BYTES = 2_000


@dataclass(slots=True)
class ParseCache:
    """Cached results by name and content; the name is part of the key because locations include it.

    The cache is limited by its memory, estimated from the files' sizes; the least recently used results are dropped
    first. It has no lock: only one load at a time may use it.
    """

    max_bytes: int = 1024 * 1024 * 1024
    hits: int = 0
    misses: int = 0
    _used_bytes: int = 0
    _kept: OrderedDict[tuple[str, bytes], tuple[FileResult, int]] = field(default_factory=OrderedDict)

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def result_of(self, file: str, content: bytes) -> FileResult:
        """Return the objects and problems of a file, from the cache (by name and content) or newly computed."""
        key = (file, hashlib.sha256(content).digest())
        known = self._kept.get(key)
        if known is not None:
            self.hits += 1
            self._kept.move_to_end(key)
            return known[0]
        self.misses += 1
        result = judge_file(file, content)
        self._remember(key, result, len(content) * MEMORY_PER_BYTE + FILE_OVERHEAD_BYTES)
        return result

    def _remember(self, key: tuple[str, bytes], result: FileResult, cost_bytes: int) -> None:
        if cost_bytes > self.max_bytes:
            return
        self._kept[key] = (result, cost_bytes)
        self._used_bytes += cost_bytes
        while self._used_bytes > self.max_bytes:
            _, (_, freed_bytes) = self._kept.popitem(last=False)
            self._used_bytes -= freed_bytes
