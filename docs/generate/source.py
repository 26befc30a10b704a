"""Reader of the product's source: calls, and the texts of their arguments, written in the call or named before it."""

import ast
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FUNCTIONS = ROOT / "functions"
_DEEPEST = 4  # assignments of one name to another that are followed

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Site:
    """One call, and the function and module that contain it."""

    call: ast.Call
    function: ast.AST
    module: ast.Module
    beside: tuple[ast.Module, ...]  # all modules that were read together

    @property
    def name(self) -> str:
        return _name(self.call)

    def argument(self, position: int, *names: str) -> ast.expr | None:
        named = next((one.value for one in self.call.keywords if one.arg in names), None)
        return named or (self.call.args[position] if len(self.call.args) > position else None)

    def texts(self, value: ast.expr | None, depth: int = 0) -> list[str]:
        """Return the texts that an expression may have: its literals, with `{name}` for each value that is filled in.

        A name is resolved in this function, in the function's callers, and in this module. If the source does not
        determine the text, the list is empty.
        """
        found: list[str] = []
        if depth > _DEEPEST:
            return found
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            found = [value.value]
        elif isinstance(value, ast.JoinedStr):
            found = ["".join(self._piece(one, depth) for one in value.values)]
        elif isinstance(value, ast.IfExp):
            found = self.texts(value.body, depth) + self.texts(value.orelse, depth)
        elif isinstance(value, ast.BoolOp):
            found = [text for one in value.values for text in self.texts(one, depth)]
        elif isinstance(value, ast.Name):
            found = self._named(value.id, depth)
        return found

    def _piece(self, part: ast.expr, depth: int) -> str:
        if isinstance(part, ast.Constant):
            return str(part.value)
        assert isinstance(part, ast.FormattedValue)
        inner = part.value
        known = self._assigned(inner.id, self.function, depth) if isinstance(inner, ast.Name) else []
        is_word = len(known) == 1 and "{" not in known[0] and " " not in known[0]
        return known[0] if is_word else "{" + _last_name(inner) + "}"

    def _named(self, name: str, depth: int) -> list[str]:
        here = self._assigned(name, self.function, depth) or list(self._from_callers(name, depth))
        return here or self._assigned(name, ast.Module(_constants(self.module), []), depth)

    def _assigned(self, name: str, within: ast.AST, depth: int) -> list[str]:
        """Return the texts of the last assignment before the call whose texts are known."""
        found = [
            (node.lineno, value)
            for node in ast.walk(within)
            if isinstance(node, ast.Assign)
            and (node.lineno <= (self.call.end_lineno or 0) or isinstance(within, ast.Module))
            for target, value in _pairs(node)
            if isinstance(target, ast.Name) and target.id == name
        ]
        for _, value in sorted(found, key=lambda one: -one[0]):
            texts = self.texts(value, depth + 1)
            if texts:
                return texts
        return []

    def _from_callers(self, name: str, depth: int) -> Iterator[str]:
        if not isinstance(self.function, Function):
            return
        parameters = [one.arg for one in (*self.function.args.posonlyargs, *self.function.args.args)]
        if name not in parameters or name == "self":
            return
        position = parameters.index(name) - (1 if parameters[0] == "self" else 0)
        for module in self.beside:
            for site in _sites(module, self.beside, {self.function.name}):
                yield from site.texts(site.argument(position, name), depth + 1)


def calls(folder: Path, names: Container[str], without: Sequence[Path] = ()) -> Iterator[Site]:
    """Yield calls of functions and classes of these names in modules below the folder, except below `without`."""
    files = [path for path in sorted(folder.rglob("*.py")) if not any(map(path.is_relative_to, without))]
    modules = tuple(ast.parse(path.read_text()) for path in files)
    for module in modules:
        yield from _sites(module, modules, names)


def _sites(module: ast.Module, beside: tuple[ast.Module, ...], names: Container[str]) -> Iterator[Site]:
    found = [one for one in _calls_of(module) if _name(one) in names]
    functions = [node for node in ast.walk(module) if isinstance(node, Function)] if found else []
    for call in found:
        around = [one for one in functions if one.lineno <= call.lineno <= (one.end_lineno or 0)]
        yield Site(call, max(around, key=lambda one: one.lineno, default=module), module, beside)


@lru_cache(maxsize=1000)
def _calls_of(module: ast.Module) -> tuple[ast.Call, ...]:
    return tuple(node for node in ast.walk(module) if isinstance(node, ast.Call))


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _constants(module: ast.Module) -> list[ast.stmt]:
    return [node for node in module.body if isinstance(node, ast.Assign)]


def _pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each target with its value, also for `a, b = x, y`."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=True)
        else:
            yield target, node.value


def _last_name(value: ast.expr) -> str:
    """Return the word in braces: body_bytes for `limits.body_bytes`, name for `quote(name)` and `name.decode()`."""
    name = "…"
    if isinstance(value, ast.Call):
        inner = value.func.value if isinstance(value.func, ast.Attribute) else next(iter(value.args), None)
        name = _last_name(inner) if inner is not None else name
    elif isinstance(value, ast.Subscript):
        name = _last_name(value.slice if isinstance(value.slice, ast.Attribute) else value.value)
    elif isinstance(value, ast.BinOp):
        name = _last_name(value.left)
    elif isinstance(value, ast.Attribute):
        name = value.attr
    elif isinstance(value, ast.Name):
        name = value.id
    return name.strip("_").lower()
