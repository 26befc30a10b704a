"""Bytes to YAML events: the border to ruamel, where its errors become ours.

Neighbours: `yaml_parse` folds the events into trees.
"""

from collections.abc import Iterator
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import Event
from ruamel.yaml.reader import ReaderError

from functions.api.problems import Place, Problem

FILE_MAX_BYTES = 1024 * 1024


class YamlInvalid(Exception):
    """From here on the file cannot be read; what came before may be sound."""

    def __init__(self, place: Place, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(place, "", message)


def events(file: str, content: bytes) -> Iterator[Event]:
    """The events of one file as they are parsed; YamlInvalid where it is no YAML."""
    text = _text(file, content)
    try:
        yield from YAML(typ="safe", pure=True).parse(text)
    except ReaderError as error:
        before = text[: error.position]
        place = Place(file, before.count("\n") + 1, error.position - (before.rfind("\n") + 1) + 1)
        code = error.character if isinstance(error.character, int) else ord(error.character)
        raise YamlInvalid(place, f"the character U+{code:04X} is not allowed in YAML") from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = " ".join(part for part in (error.problem, error.context) if part)
        raise YamlInvalid(place_of(file, mark) if mark else Place(file), f"not YAML: {reason}") from error
    except (YAMLError, ValueError, ArithmeticError) as error:  # such as an escape beyond Unicode
        raise YamlInvalid(Place(file), f"not YAML: {error}") from error


def place_of(file: str, mark: Any) -> Place:
    return Place(file, mark.line + 1, mark.column + 1)


def _text(file: str, content: bytes) -> str:
    if len(content) > FILE_MAX_BYTES:
        raise YamlInvalid(Place(file), f"{len(content)} bytes is over the limit of {FILE_MAX_BYTES}; split the file")
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        place = Place(file, before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1)
        raise YamlInvalid(place, f"not UTF-8: the byte 0x{content[error.start]:02x} cannot stand here") from error
