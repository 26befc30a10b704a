"""One object of the cluster, judged by the loader's own rules, without its detour over text.

What the API server sends is JSON already, so it is validated as it is; only where something is wrong is it parsed as
text, for the key path. Places name the object as kubectl would: `tenants/acme`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import orjson

from functions.api.declared import Declared
from functions.api.heads import Ours, PassedOver, Wrong, read_head
from functions.api.kinds.catalogue import AnyObject
from functions.api.problems import MAX_PROBLEMS, Place, Problem
from functions.api.validation import validate
from functions.api.yaml_documents import Document, Written


class ClusterDocument(Document):
    """A document without lines: every place in it is the object, so none has to be searched for."""

    def locate(self, path: Sequence[str | int]) -> Place:
        return self.place


@dataclass(frozen=True, slots=True)
class Judged:
    """The object, where it can be used; else what is wrong with it by itself."""

    declared: Declared[AnyObject] | None
    problems: tuple[str, ...] = ()


def judge(key: str, document: bytes) -> Judged:
    """`key` is `plural/name`; `document` the object as JSON."""
    written = Written(orjson.loads(document), ClusterDocument(key, 0, 0, 1, document.decode()))
    head = read_head(written)
    match head:
        case Ours(kind):
            value, wrong = validate(kind, written)
        case PassedOver(problem) | Wrong(problem):
            return Judged(None, (words(problem),))
    if value is None:
        return Judged(None, tuple(words(problem) for problem in wrong))
    declared: Declared[AnyObject] = Declared(value, written.document)
    found = [declared.problem(path, message) for path, message in islice(value.findings(), MAX_PROBLEMS)]
    return Judged(None, tuple(map(words, found))) if found else Judged(declared)


def words(problem: Problem) -> str:
    """Key path and message: lines and columns mean nothing here, and whose status it is says which object."""
    return f"{problem.key_path}: {problem.message}" if problem.key_path else problem.message
