"""Configuration: folders of YAML in, checked objects with their places out, or every problem at once.

    loaded = load_directory([config / "policies", config / "registry"], relative_to=config)
    for tenant in loaded.of(Tenant):
        print(tenant.source, tenant.value.spec.tier)

The law is all or nothing: one problem anywhere, and `ConfigInvalid` carries all of them, up to MAX_PROBLEMS; nobody
runs on the readable half of a configuration. Only documents that are not shoal's (a ServingRuntime, a kustomization,
data files) are passed over, and `Loaded.ignored` names them.

Steps: read (`config_files`), judge each file by itself (`file_result`, remembered by `parse_cache`), check what several
objects say together (`consistency`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

from functions.api import consistency
from functions.api.config_files import read_files
from functions.api.declared import Declared, of_kind
from functions.api.file_result import judge_file
from functions.api.kinds.catalogue import AnyObject
from functions.api.parse_cache import ParseCache
from functions.api.problems import MAX_PROBLEMS, ConfigInvalid, Place, Problem

Kind = TypeVar("Kind", bound=AnyObject)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Checked objects in the order of their files; `ignored` says what was passed over and why."""

    objects: tuple[Declared[AnyObject], ...]
    ignored: tuple[Problem, ...] = ()

    def of(self, kind: type[Kind]) -> list[Declared[Kind]]:
        """The objects of one kind."""
        return of_kind(self.objects, kind)


def load_directory(
    paths: Iterable[Path],
    *,
    relative_to: Path | None = None,
    cache: ParseCache | None = None,
) -> Loaded:
    """Every object in these files and folders (and folders below them); ConfigInvalid with all that is wrong.

    Places name files relative to `relative_to`, so that they mean the same on every machine. A `cache` that is kept
    from one load to the next makes unchanged files cost a hash.
    """
    problems: list[Problem] = []
    return load_files(read_files(paths, relative_to, problems), problems, cache)


def load_texts(files: Iterable[tuple[str, bytes]], *, cache: ParseCache | None = None) -> Loaded:
    """The same for contents at hand, as (file name, bytes): what a git hook has."""
    return load_files(files, [], cache)


def load_files(files: Iterable[tuple[str, bytes]], problems: list[Problem], cache: ParseCache | None) -> Loaded:
    """The same for files that come one by one, with a list to which their reader adds what it could not read."""
    judge = cache.judged if cache is not None else judge_file
    objects: list[Declared[AnyObject]] = []
    ignored: list[Problem] = []
    contradictions: list[Problem] = []
    for name, content in files:
        result = judge(name, content)
        objects.extend(result.objects)
        ignored.extend(result.ignored)
        problems.extend(result.problems)
        contradictions.extend(result.contradictions)
        if len(problems) + len(contradictions) >= MAX_PROBLEMS:
            problems.append(
                Problem(Place(name), "", f"{MAX_PROBLEMS} problems so far: the files after it were not read")
            )
            break
    found = consistency.problems(objects, complete=not problems)
    problems.extend([*contradictions, *islice(found, max(0, MAX_PROBLEMS - len(problems) - len(contradictions)))])
    if problems:
        raise ConfigInvalid(problems)
    return Loaded(tuple(objects), tuple(ignored))
