"""Schema errors in vLLM's words: a count, then one pydantic error a line, bounded, without pydantic's inner names."""

from collections.abc import Mapping, Sequence
from typing import Any

from functions.engines.sim.refusals import Refusal, malformed

_MAX_ERRORS = 10
_MAX_INPUT_CHARS = 200
_MAX_ERROR_CHARS = 1000
_INNER = frozenset(
    {"function-wrap", "function-after", "function-before", "json-or-python", "lax-or-strict", "nullable", "union"}
    | {"str", "int", "float", "bool", "bytes", "list", "tuple", "dict", "set", "none"}
)


def refusal_of(errors: Sequence[Any]) -> Refusal:
    label = "error" if len(errors) == 1 else "errors"
    lines = "".join(f"  {_line(error)}\n" for error in errors[:_MAX_ERRORS])
    more = f"  ...and {len(errors) - _MAX_ERRORS} more {label}\n" if len(errors) > _MAX_ERRORS else ""
    message = f"{len(errors)} validation {label}:\n{lines}{more}".strip()
    return malformed(message, param=_param(errors))


def _param(errors: Sequence[Any]) -> str | None:
    first = errors[0] if errors else None
    return _dotted(first["loc"]) if isinstance(first, Mapping) and first.get("loc") else None


def _line(error: Any) -> str:
    if not isinstance(error, Mapping):
        return str(error)[:_MAX_ERROR_CHARS]
    shown = dict(error)
    shown["loc"] = _dotted(error.get("loc", ()))
    if "input" in shown:
        shown["input"] = _shortened(shown["input"])
    text = str(shown)
    return text if len(text) <= _MAX_ERROR_CHARS else text[:_MAX_ERROR_CHARS] + "...[truncated]"


def _shortened(value: object) -> object:
    if isinstance(value, list | tuple | set | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    if isinstance(value, bytes):
        return f"<bytes of {len(value)} bytes>"
    text = str(value)
    return text if len(text) <= _MAX_INPUT_CHARS else text[:_MAX_INPUT_CHARS] + "...[truncated]"


def _dotted(loc: Sequence[object]) -> str:
    outer = [str(part) for part in loc if not _is_inner(str(part))]
    return ".".join(outer or map(str, loc))


def _is_inner(part: str) -> bool:
    """pydantic's own names: schema kinds, union branches, and our classes (vLLM hides its own likewise)."""
    return part.lower() in _INNER or part.endswith("Body") or any(char in "[](){}" for char in part)
