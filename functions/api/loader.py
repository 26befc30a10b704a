"""Configuration: folders of YAML in, checked objects with their places out, or every problem at once.

    loaded = load_directory([config / "policies", config / "registry"], relative_to=config)
    for tenant in loaded.of(Tenant):
        print(tenant.source, tenant.value.spec.tier)

The law is all or nothing: one problem anywhere, and `ConfigInvalid` carries all of them; nobody runs on the readable
half of a configuration. Only documents that are not shoal's (a ServingRuntime, a kustomization, data files) are
passed over, and `Loaded.ignored` names them.

Steps: read (`config_files`), parse (`yaml_parse`), pick the kind (`heads`), validate (`validation`), check what several
objects say together (`consistency`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from functions.api import consistency, yaml_parse
from functions.api.config_files import read_files
from functions.api.declared import Declared, of_kind
from functions.api.heads import Ours, PassedOver, Wrong, read_head
from functions.api.kinds.catalogue import AnyObject
from functions.api.kinds.inference_service import POOL_LABEL, InferenceService
from functions.api.problems import ConfigInvalid, Problem
from functions.api.validation import validate
from functions.api.yaml_tree import Node

Kind = TypeVar("Kind", bound=AnyObject)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Checked objects in the order of their files; `ignored` says what was passed over and why."""

    objects: tuple[Declared[AnyObject], ...]
    ignored: tuple[Problem, ...] = ()

    def of(self, kind: type[Kind]) -> list[Declared[Kind]]:
        """The objects of one kind."""
        return of_kind(self.objects, kind)


def load_directory(paths: Iterable[Path], *, relative_to: Path | None = None) -> Loaded:
    """Every object in these files and folders (and folders below them); ConfigInvalid with all that is wrong.

    Places name files relative to `relative_to`, so that they mean the same on every machine.
    """
    problems: list[Problem] = []
    return _load(read_files(paths, relative_to, problems), problems)


def load_texts(files: Iterable[tuple[str, bytes]]) -> Loaded:
    """The same for contents at hand, as (file name, bytes): what a git hook has."""
    return _load(files, [])


def _load(files: Iterable[tuple[str, bytes]], problems: list[Problem]) -> Loaded:
    objects: list[Declared[AnyObject]] = []
    ignored: list[Problem] = []
    for name, content in files:
        parsed = yaml_parse.parse(name, content)
        problems.extend(parsed.problems)
        for document in parsed.documents:
            _take(document, objects, ignored, problems)
    problems.extend(consistency.problems(objects, complete=not problems))
    if problems:
        raise ConfigInvalid(problems)
    return Loaded(tuple(objects), tuple(ignored))


def _take(document: Node, objects: list[Declared[AnyObject]], ignored: list[Problem], problems: list[Problem]) -> None:
    match read_head(document):
        case Ours(kind):
            value, wrong = validate(kind, document)
            problems.extend(wrong)
            if value is not None:
                objects.append(Declared(value, document))
            if isinstance(value, InferenceService) and value.pool is None:
                ignored.append(
                    Problem(document.place, "", f"an InferenceService without the label {POOL_LABEL}: no pool")
                )
        case PassedOver(reason):
            ignored.append(reason)
        case Wrong(problem):
            problems.append(problem)
