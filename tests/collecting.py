"""Faster collection: files that cannot contain a selected test are not imported, and the garbage collector is off.

Each worker of xdist collects all tests by itself, and `make test` has nine workers. If the expression of `-m` selects
only tests with processes (`PROCESSES`), files are left out if neither their text nor a conftest.py of their folders
names one of those markers. A test with a marker from elsewhere would be left out silently, so every run refuses such a
test, and `make check` collects them all. grouping.py orders the collected tests.
"""

import gc
import re
from collections.abc import Generator
from functools import cache
from itertools import chain, combinations
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

PROCESSES = ("servers", "engine", "drill")
_NAMED = re.compile(rf"\bmark\.({'|'.join(PROCESSES)})\b")


@cache
def takes_processes_alone(expression: str) -> bool:
    """Return True if the expression selects only tests with a marker of `PROCESSES`, for all other markers."""
    others = sorted(set(re.findall(r"\w+", expression)) - {"and", "or", "not", *PROCESSES})
    if not expression or len(others) > len(PROCESSES) + 2:
        return False
    compiled = Expression.compile(expression)
    subsets = chain.from_iterable(combinations(others, size) for size in range(len(others) + 1))
    return not any(compiled.evaluate(lambda name, has=has, **_: name in has) for has in subsets)  # type: ignore[misc]


@cache
def names_processes(file: Path, root: Path) -> bool:
    """Return True if the file, or a conftest.py of its folders up to `root`, names a marker of `PROCESSES`."""
    if not file.is_relative_to(root):
        return True
    folders = [folder for folder in file.parents if folder.is_relative_to(root)]
    return any(_names_one(each) for each in (file, *(folder / "conftest.py" for folder in folders)))


@cache
def _names_one(file: Path) -> bool:
    return file.is_file() and _NAMED.search(file.read_text()) is not None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Return True to leave the file out. A file that the command line names is never left out."""
    if not collection_path.name.startswith("test_") or collection_path.suffix != ".py":
        return None
    if not takes_processes_alone(config.option.markexpr) or names_processes(collection_path, config.rootpath):
        return None
    named = (config.invocation_params.dir / each.split("::", 1)[0] for each in config.args)
    return None if collection_path in named else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.get_closest_marker(each) for each in PROCESSES) and not names_processes(item.path, config.rootpath):
            found = f"{item.nodeid} has a marker that neither its file nor a conftest.py names"
            raise pytest.UsageError(f"{found}: `make test` would not find it (tests/collecting.py)")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect with the garbage collector off: ten thousand items live to the end, so scanning them is useless."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
