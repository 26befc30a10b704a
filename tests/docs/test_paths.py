"""Files, modules and settings that pages and module docstrings mention exist.

A page may name a file by its path, by a path below functions/ or one of its folders, or by its bare name (`lane.py`).
A module docstring may also name modules after `Neighbours:` and settings (SHOAL_…). test_reference checks the settings
in pages.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from docs.generate.settings import variables
from tests.docs.pages import ROOT, data_files, pages

_OLD = {"CHANGELOG.md"}  # names what existed in earlier versions
_PATH = re.compile(r"(?<![\w./<-])(?:functions|tests|studies|loadtests)/[\w./{},-]*\w[\w./{},*-]*")
_MODULE = re.compile(r"(?<![\w./-])(?:functions|studies|loadtests|tests)(?:\.[a-z_][a-z0-9_]*)+(?![\w(/])")
_ROLE = r"(?:api|artifacts|cli|controller|decisions|engines|fleet|gateway|registry|replica|simulator|telemetry)"
_FILE_OF_A_ROLE = re.compile(rf"(?<=`){_ROLE}/[\w/{{}},*-]+\.py(?=`)")
_MODULE_OF_A_ROLE = re.compile(rf"(?<![\w./-]){_ROLE}(?:\.[a-z_][a-z0-9_]*)+(?![\w(/])")
_MODULE_NEARBY = re.compile(r"(?<=`)[a-z_]\w*(?:\.[a-z_]\w*)+(?=`)")
_BARE_FILE = re.compile(r"(?<=`)(?:[a-z_][\w-]*/)*[a-z_][\w-]*\.py(?=[`:])")
_SETTING = re.compile(r"(?<![A-Z_])SHOAL_[A-Z0-9_]+[A-Z0-9](?![A-Z0-9_…{*])")
_NEIGHBOURS = re.compile(r"Neighbours:.*?(?:\n\n|\Z)", re.DOTALL)
_NEIGHBOUR = re.compile(r"(?<=`)[a-z_]\w*(?=`)")
_BRACES = re.compile(r"\{([^{}]*)\}")


def _expanded(path: str) -> Iterator[str]:
    """Yield the paths of a pattern: `a/{b,c}.py` is two paths."""
    found = _BRACES.search(path)
    if found is None:
        yield path
        return
    for part in found[1].split(","):
        yield from _expanded(path[: found.start()] + part.strip() + path[found.end() :])


@cache
def _files() -> tuple[Path, ...]:
    """Return the Python files of the project."""
    folders = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
    return tuple(file.relative_to(ROOT) for folder in folders for file in folder.rglob("*.py"))


@cache
def _paths() -> frozenset[str]:
    """Return each file's path and every end of it: `a/b/c.py`, `b/c.py`, `c.py`."""
    return frozenset("/".join(file.parts[start:]) for file in _files() for start in range(len(file.parts)))


@cache
def _modules() -> frozenset[str]:
    """Return the names of all modules and packages."""
    return frozenset(part for file in _files() for part in (file.stem, *file.parts[:-1]))


@cache
def _settings() -> frozenset[str]:
    """Return the settings, and the variables that code or the Makefile names in quotes."""
    code = "\n".join((ROOT / file).read_text() for file in _files() if file.name != "test_paths.py")
    quoted = re.findall(r"[\"'](SHOAL_[A-Z0-9_]+)", code)
    return frozenset(variables()).union(quoted, _SETTING.findall((ROOT / "Makefile").read_text()))


def _is_there(path: str) -> bool:
    return any(ROOT.glob(path)) if "*" in path else (ROOT / path).exists()


def _module_is_there(name: str) -> bool:
    """Return True if `name` is a module, or a name that occurs in one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:count])
        if path.with_suffix(".py").is_file():
            return count == len(parts) or parts[count] in path.with_suffix(".py").read_text()
        if path.is_dir():
            init = path / "__init__.py"
            return count == len(parts) or (init.is_file() and parts[count] in init.read_text())
    return False


def _missing(text: str) -> list[str]:
    """Return the missing files and modules. `gateway/lane.py` may be below functions/ or below one of its folders."""
    paths = (one for found in _PATH.findall(text) for one in _expanded(found.rstrip(".,:/")))
    gone = [path for path in paths if not _is_there(path)]
    short = [one for found in _FILE_OF_A_ROLE.findall(text) for one in _expanded(found)]
    gone += [path for path in short if not any(_is_there(f"functions/{folder}{path}") for folder in ("", "*/"))]
    gone += [name for name in _BARE_FILE.findall(text) if name not in {*_paths(), *gone}]
    return [*gone, *(name for name in _MODULE.findall(text) if not _module_is_there(name))]


def _missing_in_prologue(text: str) -> list[str]:
    """Return missing names, also of short module names such as `replica.app`, which in pages may be a file or a
    host."""
    short = (name for name in _MODULE_OF_A_ROLE.findall(text) if not _module_is_there(f"functions.{name}"))
    return [*_missing(text), *short]


def _missing_settings(text: str) -> list[str]:
    return [name for name in _SETTING.findall(text) if name not in _settings()]


def _missing_neighbours(path: Path, prologue: str) -> list[str]:
    """Return the words after `Neighbours:` that are neither a module nor a name in the file's own code."""
    named = [name for part in _NEIGHBOURS.findall(prologue) for name in _NEIGHBOUR.findall(part)]
    return [name for name in named if name not in _modules() and name not in _own_names(path)]


def _own_names(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse((ROOT / path).read_text())))
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    read = {node.id for node in nodes if isinstance(node, ast.Name)}
    return defined | read | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def _missing_nearby(path: Path, prologue: str) -> list[str]:
    """Return missing modules with relative names, such as `local.plan` for a module of controller/local."""
    folders = [folder for folder in (ROOT / path).parents if folder.is_relative_to(ROOT)]
    gone = []
    for name in _MODULE_NEARBY.findall(prologue):
        places = [folder for folder in folders if (folder / name.partition(".")[0]).is_dir()]
        if places and not any(_module_is_there(".".join((*place.relative_to(ROOT).parts, name))) for place in places):
            gone.append(name)
    return gone


def _prologues(folder: str) -> Iterator[tuple[Path, str]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        prologue = ast.get_docstring(ast.parse(path.read_text()))
        if prologue:
            yield path.relative_to(ROOT), prologue


@pytest.mark.parametrize("page", [*pages(), *data_files()], ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_in_pages_exist(page: Path) -> None:
    if str(page.relative_to(ROOT)) not in _OLD:
        assert _missing(page.read_text()) == []


@pytest.mark.parametrize("folder", ["functions", "studies", "tests", "loadtests", "docs"])
def test_paths_in_module_docstrings_exist(folder: str) -> None:
    missing = _missing_in_prologue if folder in ("functions", "studies") else _missing
    found = {
        str(path): [
            *missing(text),
            *_missing_nearby(path, text),
            *_missing_settings(text),
            *_missing_neighbours(path, text),
        ]
        for path, text in _prologues(folder)
    }
    assert {path: gone for path, gone in found.items() if gone} == {}


def test_missing_paths_are_detected() -> None:
    text = "`functions/api/gone.py`, tests/docs/{pages,gone}.py, functions.api.gone and functions.api.loader"
    assert _missing(text) == ["functions/api/gone.py", "tests/docs/gone.py", "functions.api.gone"]
    assert _missing_in_prologue("see api.gone, `api/gone.py`") == ["api/gone.py", "api.gone"]
    assert _missing("functions/api/*.py, functions.api.loader.load_texts, tests/docs/pages.py.") == []


def test_missing_relative_modules_are_detected() -> None:
    text = "`local.pool_conditions`, `local.plan`, `local.plan.replica_ids` and `config.json`"
    assert _missing_nearby(Path("functions/controller/conditions.py"), text) == ["local.pool_conditions"]


def test_missing_bare_names_are_detected() -> None:
    assert _missing("`gone_lane.py`, `lane.py`, `http/gone.py`, `http/lane.py:12`") == ["gone_lane.py", "http/gone.py"]
    assert _missing_settings("SHOAL_GATEWAY_PORT, SHOAL_GATEWAY_GONE_S, SHOAL_GATEWAY_…") == ["SHOAL_GATEWAY_GONE_S"]
    path, prologue = Path("functions/gateway/tracing.py"), "`gone`. Neighbours: `trace_row`, `offer`, `gone_row`."
    assert _missing_neighbours(path, prologue) == ["gone_row"]
