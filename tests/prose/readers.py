"""Readers of the prose in one file: docstrings, comments, help texts and names in Python, comments in YAML, pages."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["docstring", "comment", "help", "page", "function", "class", "test"]

_METRICS = re.compile(r"(Counter|Gauge|Histogram)((Metric)?Family)?$")
_COMMENT_OF_YAML = re.compile(r"^(?P<indent>\s*)#(?P<text>.*)$|\s#(?P<trailing> .*)$")
_NO_PROSE = re.compile(r"^(`{3,}|~{3,}).*?^\1|<!--.*?-->|`[^`\n]*`|\]\([^)]*\)", re.MULTILINE | re.DOTALL)
_TOOL_COMMENT = re.compile(r"(noqa|type:|fmt:|pragma|mypy:|ruff:|!)")


@dataclass(frozen=True, slots=True)
class Text:
    """One piece of prose, or one name, with the line where it begins."""

    kind: Kind
    line: int
    text: str


def texts_of(path: Path) -> list[Text]:
    """Return the prose of a .py, .md, .csv, .yaml or .yml file, and the names that a .py file defines."""
    text = path.read_text()
    if path.suffix == ".py":
        return [*_names_and_docstrings(ast.parse(text)), *_comments(text)]
    return list(_page(text) if path.suffix in (".md", ".csv") else _yaml_comments(text))


def _names_and_docstrings(tree: ast.Module) -> Iterator[Text]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield Text("class", node.lineno, node.name)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Text("test" if node.name.startswith("test_") else "function", node.lineno, node.name)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield Text("docstring", node.body[0].lineno, docstring)
        if isinstance(node, ast.Call):
            yield from _help_texts(node)


def _help_texts(call: ast.Call) -> Iterator[Text]:
    """Yield the help of an option or a command, and the second argument of a metric."""
    found = [keyword.value for keyword in call.keywords if keyword.arg in ("help", "documentation")]
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if _METRICS.fullmatch(name) and len(call.args) > 1:
        found.append(call.args[1])
    for value in found:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield Text("help", value.lineno, value.value)


def _comments(text: str) -> Iterator[Text]:
    """Yield comments; consecutive lines in one column are one comment."""
    lines = text.splitlines()
    last: Text | None = None
    last_end = (-1, -1)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        words, (line, column) = token.string.lstrip("# "), token.start
        alone = not lines[line - 1][:column].strip()
        if last is not None and alone and last_end == (line - 1, column):
            last = Text("comment", last.line, f"{last.text} {words}")
        else:
            if last is not None:
                yield last
            last = Text("comment", line, words) if not _TOOL_COMMENT.match(words) else None
        last_end = (line, column) if alone else (-1, -1)
    if last is not None:
        yield last


def _yaml_comments(text: str) -> Iterator[Text]:
    last: Text | None = None
    last_place = (-1, "")
    for line, content in enumerate(text.splitlines(), start=1):
        found = _COMMENT_OF_YAML.search(content)
        if found is None:
            continue
        words = (found["text"] or found["trailing"] or "").strip()
        if last is not None and found["indent"] is not None and last_place == (line - 1, found["indent"]):
            last = Text("comment", last.line, f"{last.text} {words}")
        else:
            if last is not None:
                yield last
            last = Text("comment", line, words)
        last_place = (line, found["indent"]) if found["indent"] is not None else (-1, "")
    if last is not None:
        yield last


def _page(text: str) -> Iterator[Text]:
    """Yield each line of a page or a CSV file without code, links' targets and HTML comments."""
    prose = _NO_PROSE.sub(lambda found: "\n" * found[0].count("\n"), text)
    for line, words in enumerate(prose.splitlines(), start=1):
        if words.strip():
            yield Text("page", line, words)
