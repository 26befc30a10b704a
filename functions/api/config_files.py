"""Finding and reading the files of a configuration, under limits.

Every problem is reported and the rest is read on, since the person should see all of them at once.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from functions.api.problems import Place, Problem
from functions.api.yaml_events import FILE_MAX_BYTES

MAX_FILES = 10_000
MAX_TOTAL_BYTES = 64 * 1024 * 1024
_SUFFIXES = (".yaml", ".yml")


def read_files(paths: Iterable[Path], relative_to: Path | None, problems: list[Problem]) -> Iterator[tuple[str, bytes]]:
    """(name, content) of each file, by name; a folder stands for the YAML in it and below it."""
    total_bytes = 0
    for file in _find(paths, problems):
        name = _name(file, relative_to)
        try:
            with file.open("rb") as opened:
                content = opened.read(FILE_MAX_BYTES + 1)  # one more than allowed, so that the parser can tell
        except OSError as error:
            problems.append(Problem(Place(name), "", f"cannot be read: {error.strerror}"))
            continue
        total_bytes += len(content)
        if total_bytes > MAX_TOTAL_BYTES:
            problems.append(Problem(Place(name), "", f"more than {MAX_TOTAL_BYTES} bytes of YAML in all"))
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
            problems.append(Problem(Place(path.as_posix()), "", "no such file or folder"))
    if len(found) > MAX_FILES:
        problems.append(Problem(Place(min(found).as_posix()), "", f"one of more than {MAX_FILES} files of YAML"))
    return sorted(found)[:MAX_FILES]


def _is_plain(file: Path, root: Path) -> bool:
    """A regular file, and nothing on the way is hidden: editors and Kubernetes mounts hide their copies so."""
    return not any(part.startswith(".") for part in file.relative_to(root).parts) and file.is_file()


def _name(file: Path, relative_to: Path | None) -> str:
    if relative_to is not None and file.is_relative_to(relative_to):
        return file.relative_to(relative_to).as_posix()
    return file.as_posix()
