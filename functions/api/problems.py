"""Problems of a configuration, in a form that its author can act upon.

A problem has a location (file, line, column, key path), what was found there, what is allowed, and the nearest
valid name if it is similar. All problems of a load are in one `ConfigInvalid`, so that they can be fixed together.
"""

import difflib
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_PROBLEMS = 1000  # per load: locating a problem costs a millisecond, and more are not useful

_FOUND_MAX_CHARS = 80
_LISTED_PROBLEMS = 100  # in the exception's text; `problems` has them all
_COMPARED_NAMES = 200  # comparing two names costs 10 us, and a fleet has 50,000 of them


@dataclass(frozen=True, slots=True, order=True)
class SourceLocation:
    """A point in a file; lines and columns count from 1. Line 0 means the file as a whole."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    place: SourceLocation
    key_path: str  # `spec.keys[0].maxClass`; empty for the document
    message: str  # found value, allowed values, and the nearest valid name

    def __str__(self) -> str:
        return f"{self.place}: {self.key_path}: {self.message}" if self.key_path else f"{self.place}: {self.message}"


class ConfigInvalid(Exception):
    """The configuration is unusable; fix every problem listed. The running configuration stays."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(set(problems)))
        lines = [str(problem) for problem in self.problems[:_LISTED_PROBLEMS]]
        if len(self.problems) > _LISTED_PROBLEMS:
            lines.append(f"… and {len(self.problems) - _LISTED_PROBLEMS} more")
        super().__init__("\n".join(lines))


def near_miss(found: object, allowed: Sequence[str]) -> str:
    """Return `; did you mean "x"?` if one of the allowed names is close to `found`, else an empty text. If there are
    more than _COMPARED_NAMES, they must be sorted, and only the nearest in that order are compared."""
    if not isinstance(found, str) or len(found) > _FOUND_MAX_CHARS:
        return ""
    if len(allowed) > _COMPARED_NAMES:
        at = bisect_left(allowed, found)
        allowed = allowed[max(0, at - _COMPARED_NAMES // 2) : at + _COMPARED_NAMES // 2]
    folded = {name.lower(): name for name in allowed}
    close = difflib.get_close_matches(found.lower(), list(folded), n=1, cutoff=0.6)
    return f'; did you mean "{folded[close[0]]}"?' if close else ""


def shown(found: object) -> str:
    """Return the value in short form, in one line, for a message: text in quotes, cut if it is long; `nothing`, `a
    mapping`, `a list`, `the number 3`."""
    if found is None:
        return "nothing"
    if isinstance(found, dict):
        return "a mapping"
    if isinstance(found, (list, tuple)):
        return "a list"
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, (int, float)):
        return f"the number {found}"
    text = str(found)
    if len(text) > _FOUND_MAX_CHARS:
        text = text[: _FOUND_MAX_CHARS - 1] + "…"
    return '"' + text.encode("unicode_escape").decode("ascii").replace('"', '\\"') + '"'


def path_text(path: Sequence[str | int]) -> str:
    """Return `("spec", "keys", 0, "id")` as `spec.keys[0].id`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text
