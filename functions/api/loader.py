"""Configuration loader: folders of YAML in, checked objects with their locations out, or every problem together.

    loaded = load_directory([config / "policies", config / "registry"], relative_to=config)
    for tenant in loaded.of(Tenant):
        print(tenant.source, tenant.value.spec.tier)

A load is all or nothing: if there is any problem, `ConfigInvalid` has all of them, up to MAX_PROBLEMS. Part of a
configuration is never used. Only documents that are not shoal's (a ServingRuntime, a kustomization, data files) are
ignored, and `Loaded.ignored` names them.

Steps: read files under limits (a problem with one does not prevent reading the rest), check each by itself
(`file_result`, with a cache), check objects against each other (`consistency`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

from functions.api import consistency
from functions.api.declared import Declared, of_kind
from functions.api.file_result import ParseCache, judge_file
from functions.api.kinds.catalogue import AnyObject
from functions.api.problems import MAX_PROBLEMS, ConfigInvalid, Problem, SourceLocation
from functions.api.yaml_events import FILE_MAX_BYTES

MAX_FILES = 10_000
MAX_TOTAL_BYTES = 64 * 1024 * 1024
_SUFFIXES = (".yaml", ".yml")


def read_files(paths: Iterable[Path], relative_to: Path | None, problems: list[Problem]) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of each file, by name; a folder stands for all YAML files below it. What cannot be read or
    exceeds the total size is added to `problems` instead."""
    total_bytes = 0
    for file in _find(paths, problems):
        name = _name(file, relative_to)
        try:
            with file.open("rb") as opened:
                content = opened.read(FILE_MAX_BYTES + 1)  # one more than allowed, so that the parser can reject it
        except OSError as error:
            problems.append(Problem(SourceLocation(name), "", f"cannot be read: {error.strerror}"))
            continue
        total_bytes += len(content)
        if total_bytes > MAX_TOTAL_BYTES:
            problems.append(Problem(SourceLocation(name), "", f"more than {MAX_TOTAL_BYTES} bytes of YAML in all"))
            return
        yield name, content


def _find(paths: Iterable[Path], problems: list[Problem]) -> list[Path]:
    found: set[Path] = set()
    for path in paths:
        if path.is_dir():
            found.update(file for file in path.rglob("*") if file.suffix in _SUFFIXES and _is_plain(file, path))
        elif path.is_file():
            found.add(path)
        else:
            problems.append(Problem(SourceLocation(path.as_posix()), "", "no such file or folder"))
    if len(found) > MAX_FILES:
        problems.append(
            Problem(
                SourceLocation(min(found).as_posix()),
                "",
                f"more than {MAX_FILES} YAML files in all; this is one of them",
            )
        )
    return sorted(found)[:MAX_FILES]


def _is_plain(file: Path, root: Path) -> bool:
    """Return True for a regular file without a hidden path component: editors and Kubernetes mounts hide copies
    that way."""
    return not any(part.startswith(".") for part in file.relative_to(root).parts) and file.is_file()


def _name(file: Path, relative_to: Path | None) -> str:
    if relative_to is not None and file.is_relative_to(relative_to):
        return file.relative_to(relative_to).as_posix()
    return file.as_posix()


Kind = TypeVar("Kind", bound=AnyObject)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Checked objects in the order of their files; `ignored` has ignored documents with the reason."""

    objects: tuple[Declared[AnyObject], ...]
    ignored: tuple[Problem, ...] = ()

    def objects_of(self, kind: type[Kind]) -> list[Declared[Kind]]:
        """Return the objects of one kind, in their order."""
        return of_kind(self.objects, kind)


def load_directory(
    paths: Iterable[Path],
    *,
    relative_to: Path | None = None,
    cache: ParseCache | None = None,
) -> Loaded:
    """Load every object in these files and folders (and folders below them); ConfigInvalid has all problems.

    Locations name files relative to `relative_to`, so that they are the same on every machine. A `cache` that is
    reused between loads makes unchanged files cost a hash.
    """
    problems: list[Problem] = []
    return load_files(read_files(paths, relative_to, problems), problems, cache)


def load_texts(files: Iterable[tuple[str, bytes]], *, cache: ParseCache | None = None) -> Loaded:
    """Load objects from (file name, content), such as those of a git hook; otherwise like `load_directory`."""
    return load_files(files, [], cache)


def load_files(files: Iterable[tuple[str, bytes]], problems: list[Problem], cache: ParseCache | None) -> Loaded:
    """Load files that arrive one by one, until there are too many problems; their reader adds what it could not read to
    `problems`. ConfigInvalid has all problems."""
    judge = cache.result_of if cache is not None else judge_file
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
                Problem(SourceLocation(name), "", f"{MAX_PROBLEMS} problems so far: later files were not read")
            )
            break
    found = consistency.problems(objects, complete=not problems)
    problems.extend([*contradictions, *islice(found, max(0, MAX_PROBLEMS - len(problems) - len(contradictions)))])
    if problems:
        raise ConfigInvalid(problems)
    return Loaded(tuple(objects), tuple(ignored))
