"""Files and modules that pages and module docstrings mention exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, data_files, pages

_OLD = {"CHANGELOG.md"}  # names what existed in earlier versions
_PATH = re.compile(r"(?<![\w./<-])(?:functions|tests|studies|loadtests)/[\w./{},-]*\w[\w./{},*-]*")
_MODULE = re.compile(r"(?<![\w./-])(?:functions|studies|loadtests|tests)(?:\.[a-z_][a-z0-9_]*)+(?![\w(/])")
_ROLE = r"(?:api|artifacts|cli|controller|decisions|engines|fleet|gateway|registry|replica|simulator|telemetry)"
_FILE_OF_A_ROLE = re.compile(rf"(?<=`){_ROLE}/[\w/{{}},*-]+\.py(?=`)")
_MODULE_OF_A_ROLE = re.compile(rf"(?<![\w./-]){_ROLE}(?:\.[a-z_][a-z0-9_]*)+(?![\w(/])")
_MODULE_NEARBY = re.compile(r"(?<=`)[a-z_]\w*(?:\.[a-z_]\w*)+(?=`)")
_BRACES = re.compile(r"\{([^{}]*)\}")


def _expanded(path: str) -> Iterator[str]:
    """Yield the paths of a pattern: `a/{b,c}.py` is two paths."""
    found = _BRACES.search(path)
    if found is None:
        yield path
        return
    for part in found[1].split(","):
        yield from _expanded(path[: found.start()] + part.strip() + path[found.end() :])


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
    short = (one for found in _FILE_OF_A_ROLE.findall(text) for one in _expanded(found))
    gone += [path for path in short if not any(_is_there(f"functions/{folder}{path}") for folder in ("", "*/"))]
    return [*gone, *(name for name in _MODULE.findall(text) if not _module_is_there(name))]


def _missing_in_prologue(text: str) -> list[str]:
    """Return missing names, also of short module names such as `replica.app`, which in pages may be a file or a
    host."""
    short = (name for name in _MODULE_OF_A_ROLE.findall(text) if not _module_is_there(f"functions.{name}"))
    return [*_missing(text), *short]


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
    found = {str(path): [*missing(text), *_missing_nearby(path, text)] for path, text in _prologues(folder)}
    assert {path: gone for path, gone in found.items() if gone} == {}


def test_missing_paths_are_detected() -> None:
    text = "`functions/api/gone.py`, tests/docs/{pages,gone}.py, functions.api.gone and functions.api.loader"
    assert _missing(text) == ["functions/api/gone.py", "tests/docs/gone.py", "functions.api.gone"]
    assert _missing_in_prologue("see api.gone, `api/gone.py`") == ["api/gone.py", "api.gone"]
    assert _missing("functions/api/*.py, functions.api.loader.load_texts, tests/docs/pages.py.") == []


def test_missing_relative_modules_are_detected() -> None:
    text = "`local.pool_conditions`, `local.plan`, `local.plan.replica_ids` and `config.json`"
    assert _missing_nearby(Path("functions/controller/conditions.py"), text) == ["local.pool_conditions"]
