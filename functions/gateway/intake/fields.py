"""Allow-list of a route's fields: what a table may say of a field, and what becomes of a body by it.

    a check       the field goes to the engine, if the check finds nothing wrong with its value
    Strip(check)  it is read here (a session), or replaced (the cache salt), and never sent on
    Refuse(why)   400: it would reach past the platform, or what it asks for is not offered

What no table knows is unknown, and the pool's RoutingPolicy says what becomes of it (`unknownFields`): `strip`, the
default, drops it and names it in `x-shoal-ignored`; `refuse` answers 400; `pass` lets the engine judge. Stripping is
what engines do with it themselves (vLLM ignores and logs it), so that no client breaks, while a field that a newer
engine has does nothing until somebody has read what it does (docs/decisions/0033-fields-are-allowed.md).

Neighbours: `field_tables` has the tables, `checks` and `content` their words; `intake` asks.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from functions.api.snapshot import UnknownFields
from functions.gateway.errors import bad_request, quote
from functions.gateway.intake.checks import Check
from functions.gateway.intake.json_body import JsonObject

_IN_A_HEADER = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MOST_NAMED = 16


@dataclass(frozen=True, slots=True)
class Strip:
    check: Check


@dataclass(frozen=True, slots=True)
class Refuse:
    why: str  # what follows the field's name


Rule = Check | Strip | Refuse


class FieldTable:
    """The rules of one route, taken apart for looking at a body by sets."""

    __slots__ = ("checks", "passed", "refused", "rules", "stripped")

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self.rules = dict(rules)
        self.refused = {name: rule.why for name, rule in rules.items() if isinstance(rule, Refuse)}
        self.stripped = frozenset(name for name, rule in rules.items() if isinstance(rule, Strip))
        self.passed = frozenset(rules.keys() - self.refused.keys() - self.stripped) | {"model"}
        self.checks: dict[str, Check] = {}
        for name, rule in rules.items():
            if not isinstance(rule, Refuse):
                self.checks[name] = rule.check if isinstance(rule, Strip) else rule


def check_fields(body: JsonObject, table: FieldTable) -> None:
    """Raises Refused (400, with param) at the table's first field whose value is wrong. Null means absent."""
    if not table.passed.issuperset(body):
        _refuse_what_is_not_taken(body, table)
    checks = table.checks
    if len(body) > len(checks):
        _refuse_first(body, checks)
        return
    for name, value in body.items():  # most have five fields or so, of a table's seventy
        check = checks.get(name)
        if check is not None and value is not None and check(value) is not None:
            _refuse_first(body, checks)


def keep_allowed(body: JsonObject, table: FieldTable, unknown: UnknownFields, path: str) -> tuple[str, ...]:
    """Leave in a checked body what an engine is to have; answers the unknown fields that were dropped, by name.

    Raises Refused (400) where the pool wants no unknown ones.
    """
    dropped = []
    for name in sorted(body.keys() - table.passed):
        if name in table.rules:  # stripped; or refused, and null
            del body[name]
        elif unknown == "refuse" and body[name] is not None:
            raise _not_known(name, path)
        elif unknown != "pass":
            del body[name]
            dropped.append(name)
    return tuple(dropped)


def ignored_header(names: tuple[str, ...]) -> bytes:
    """The names that a header may have; the rest of what a client made up is not repeated to it."""
    fit = [name.encode() for name in names if _IN_A_HEADER.fullmatch(name) is not None]
    return b", ".join(fit[:_MOST_NAMED])


def _refuse_what_is_not_taken(body: JsonObject, table: FieldTable) -> None:
    for name, why in table.refused.items():
        if body.get(name) is not None:
            raise bad_request(f"'{name}' {why}.", param=name)


def _refuse_first(body: JsonObject, checks: dict[str, Check]) -> None:
    """Of several that are wrong, the one named does not depend on the order in which a client wrote them.

    None is wrong that is a whole number and written as 5.0, by a language with one kind of number: it becomes 5.
    """
    for name, check in checks.items():
        value = body.get(name)
        problem = check(value) if value is not None else None
        if problem is not None and type(value) is float and value.is_integer() and check(int(value)) is None:
            body[name] = int(value)
        elif problem is not None:
            raise bad_request(f"'{name}' {problem}.", param=name)


def _not_known(name: str, path: str) -> Exception:
    message = (
        f"{quote(name)} is no field of {path} here: leave it out. "
        "(The pool's RoutingPolicy says so: unknownFields is refuse.)"
    )
    return bad_request(message, param=name[:64], code="unknown_field")
