"""Figures of the source tree: number and size of files, files that only one other imports, and import cycles.

    python -m tests.house            # figures of functions/, as in docs/measurements/README.md

    slip      a file of at most 80 lines that exactly one other imports: it may belong into that file
    circle    modules that import each other, directly or indirectly; imports inside functions do not count, those for
              types (`if TYPE_CHECKING`) do
    large     over 320 lines

`tests/test_house.py` has the limits. import-linter checks the layers (pyproject.toml).
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SLIP_LINES = 80
LARGE_LINES = 320


class Module(NamedTuple):
    name: str
    lines: int
    is_package: bool
    imports: frozenset[str]  # all modules of the tree that it imports, inside functions too
    imports_at_once: frozenset[str]  # modules that its own import imports


class House(NamedTuple):
    modules: Mapping[str, Module]

    @property
    def files(self) -> list[Module]:
        """All modules except the `__init__` of packages, which only describe a folder."""
        return [module for module in self.modules.values() if not module.is_package]

    @property
    def lines(self) -> int:
        return sum(module.lines for module in self.modules.values())

    @property
    def median_lines(self) -> float:
        return median(module.lines for module in self.files)

    def slips(self) -> dict[str, str]:
        """Return each slip with its one importer."""
        importers: dict[str, set[str]] = {}
        for module in self.modules.values():
            for name in module.imports:
                importers.setdefault(name, set()).add(module.name)
        found = {}
        for module in self.files:
            mine = importers.get(module.name, set())
            if module.lines <= SLIP_LINES and len(mine) == 1:
                found[module.name] = next(iter(mine))
        return found

    def large(self, over_lines: int = LARGE_LINES) -> dict[str, int]:
        found = [module for module in self.files if module.lines > over_lines]
        return {module.name: module.lines for module in sorted(found, key=lambda each: -each.lines)}

    def circle(self) -> list[str]:
        """Return one import cycle, or an empty list."""
        graph = {module.name: module.imports_at_once for module in self.modules.values()}
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            return list(error.args[1])
        return []


def house(root: Path = ROOT, package: str = "functions") -> House:
    files = {_name(path.relative_to(root)): path for path in sorted((root / package).rglob("*.py"))}
    return House({name: _module(name, path, files) for name, path in files.items()})


def _name(path: Path) -> str:
    return ".".join(path.parent.parts if path.name == "__init__.py" else path.with_suffix("").parts)


def _module(name: str, path: Path, known: Mapping[str, Path]) -> Module:
    text = path.read_text()
    tree = ast.parse(text)
    lazy = {id(inner) for function in ast.walk(tree) if _is_function(function) for inner in ast.walk(function)}
    found = [(each, id(node) in lazy) for node in ast.walk(tree) for each in _named(node, known) if each != name]
    at_once = frozenset(each for each, is_lazy in found if not is_lazy)
    is_package = path.name == "__init__.py"
    return Module(name, len(text.splitlines()), is_package, frozenset(each for each, _ in found), at_once)


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def _named(node: ast.AST, known: Mapping[str, Path]) -> Iterator[str]:
    """Yield the known modules that an import names; lint bans relative imports."""
    if isinstance(node, ast.Import):
        yield from (each.name for each in node.names if each.name in known)
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        modules = [f"{node.module}.{each.name}" for each in node.names]
        yield from (each for each in modules if each in known)
        if node.module in known and not all(each in known for each in modules):
            yield node.module


def main() -> int:
    own = house()
    large = own.large()
    print(
        f"files {len(own.modules)}, lines {own.lines:,}, median {own.median_lines:g}, over {LARGE_LINES}: {len(large)}"
    )
    print(f"circle: {' -> '.join(own.circle()) or 'none'}")
    for name, importer in sorted((found := own.slips()).items()):
        print(f"slip  {name} ({own.modules[name].lines}) of {importer} ({own.modules[importer].lines})")
    for name, lines in large.items():
        print(f"large {name} ({lines})")
    print(f"slips {len(found)}, over {LARGE_LINES} lines {len(large)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
