"""Syntax of expressions: the grammar, and its errors as messages.

Neighbours: `parse` gives the tree a meaning and checks what a metric may be compared with.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken

from functions.api.problems import shown


class ExpressionInvalid(ValueError):
    """The expression is invalid; `offset_chars` is the position of the error, from 0."""

    def __init__(self, message: str, offset_chars: int) -> None:
        super().__init__(message)
        self.offset_chars = offset_chars


TEXT_MAX_CHARS = 200

GRAMMAR = r"""
halt: METRIC COMPARISON _amount
scale_rule: METRIC COMPARISON _amount [hold] ":" step

_amount: percent | times_control | times_slo | duration | number
percent: NUMBER "%"
times_control: NUMBER "x"
times_slo: NUMBER "*" "slo"
duration: NUMBER UNIT
number: NUMBER

hold: "for" NUMBER UNIT
step: SIGN NUMBER [PERCENT]

METRIC: /[A-Za-z][A-Za-z0-9_.-]{0,60}/
COMPARISON: ">=" | "<=" | ">" | "<"
NUMBER: /[0-9]{1,10}(\.[0-9]{1,6})?/
UNIT: "ms" | "s" | "m" | "h"
SIGN: "+" | "-"
PERCENT: "%"
%ignore " "
"""

# Terminals in messages; those with the same text are listed once.
_WORDS = {
    "METRIC": "the name of a metric",
    "COMPARISON": "> or < (or >=, <=)",
    "NUMBER": "a number",
    "PERCENT": "%",
    "X": "x",
    "STAR": "* slo",
    "SLO": "slo",
    "UNIT": "a unit (ms, s, m, h)",
    "FOR": "for and a duration",
    "COLON": ": and a step such as +10% or -1",
    "SIGN": "+ or -",
    "$END": "the end",
}


def parse_tree(text: str, start: str) -> Tree[Token]:
    """Return the tree of one expression; ExpressionInvalid with the first character that does not fit, or if the text
    is too long. `start` is the grammar's rule."""
    if len(text) > TEXT_MAX_CHARS:
        raise ExpressionInvalid(f"{len(text)} characters; allowed: at most {TEXT_MAX_CHARS}", 0)
    try:
        return _parser().parse(text, start=start)
    except UnexpectedInput as error:
        raise _error_message(text, start, error) from error


@cache
def _parser() -> Lark:
    return Lark(GRAMMAR, parser="lalr", start=["halt", "scale_rule"], maybe_placeholders=True, propagate_positions=True)


def _error_message(text: str, start: str, error: UnexpectedInput) -> ExpressionInvalid:
    offset, expected = len(text.rstrip()), set[str]()
    if isinstance(error, UnexpectedCharacters):
        offset, expected = error.pos_in_stream or 0, set(error.allowed or ())
    elif isinstance(error, UnexpectedToken):
        expected = set(error.accepts or error.expected)
        if error.token.type != "$END" and error.token.start_pos is not None:
            offset = error.token.start_pos
    elif isinstance(error, UnexpectedEOF):
        expected = set(error.expected)
    if start == "halt":
        expected -= {"FOR", "COLON"}  # the two starts share the parser's states
    found = shown(text[offset:]) if offset < len(text.rstrip()) else "the end"
    return ExpressionInvalid(f"found {found}; allowed here: {_listed(expected)}", offset)


def _listed(terminals: Iterable[Any]) -> str:
    """Return the terminals' descriptions as text, in the order of the table, so that an error is always the same text;
    `nothing more` if there are none."""
    names = {str(terminal) for terminal in terminals}
    words = [word for name, word in _WORDS.items() if name in names]
    return ", or ".join(words) or "nothing more"
