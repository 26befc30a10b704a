"""Parsing of text to YAML events: the interface to ruamel, whose errors become `YamlInvalid`.

Neighbours: `yaml_parse` builds trees from the events.
"""

import re
from collections.abc import Iterator
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import Event
from ruamel.yaml.reader import ReaderError

from functions.api.problems import Problem, SourceLocation

FILE_MAX_BYTES = 1024 * 1024
_CONFLICT = re.compile(r"^(?:<{7}|>{7}|={7}|\|{7})(?:[ \t].*)?$", re.MULTILINE)


class YamlInvalid(Exception):
    """The file cannot be read from here on; documents before it may be valid."""

    def __init__(self, place: SourceLocation, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(place, "", message)


def events(file: str, text: str, first_line: int = 1) -> Iterator[Event]:
    """Yield the events of a text that begins at `first_line`; YamlInvalid if it is not YAML."""
    try:
        yield from YAML(typ="safe", pure=True).parse(text)
    except ReaderError as error:
        before = text[: error.position]
        place = SourceLocation(file, before.count("\n") + first_line, error.position - (before.rfind("\n") + 1) + 1)
        code = error.character if isinstance(error.character, int) else ord(error.character)
        raise YamlInvalid(place, f"the character U+{code:04X} is not allowed in YAML") from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = " ".join(part for part in (error.problem, error.context) if part)
        place = place_of(file, mark, first_line) if mark else SourceLocation(file)
        raise _conflict(file, text, first_line) or YamlInvalid(place, f"not YAML: {reason}") from error
    except (YAMLError, ValueError, ArithmeticError) as error:  # such as an escape beyond Unicode
        raise YamlInvalid(SourceLocation(file), f"not YAML: {error}") from error


def _conflict(file: str, text: str, first_line: int) -> YamlInvalid | None:
    """Return an error for the text's first unresolved merge conflict, which the parser reports a line or more after its
    cause; None if there is none."""
    found = _CONFLICT.search(text)
    if found is None:
        return None
    place = SourceLocation(file, text.count("\n", 0, found.start()) + first_line, 1)
    message = (
        f"a merge conflict ({found.group().strip()}) was not resolved: keep the intended lines and remove the marks"
    )
    return YamlInvalid(place, message)


def place_of(file: str, mark: Any, first_line: int = 1) -> SourceLocation:
    return SourceLocation(file, mark.line + first_line, mark.column + 1)


def decoded(file: str, content: bytes) -> str:
    """Return the file's text without a byte order mark; YamlInvalid if it is too large or not UTF-8."""
    if len(content) > FILE_MAX_BYTES:
        raise YamlInvalid(
            SourceLocation(file), f"{len(content)} bytes is over the limit of {FILE_MAX_BYTES}; split the file"
        )
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        place = SourceLocation(file, before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1)
        raise YamlInvalid(place, f"not UTF-8: the byte 0x{content[error.start]:02x} is not allowed here") from error
