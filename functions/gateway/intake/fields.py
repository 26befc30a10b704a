"""Allow-list of a route's fields: the rules that a table may have, and their effect on a body.

    a check       the field is sent to the engine if its value passes
    Strip(check)  the field is read here (a session) or replaced (the cache salt), and never sent
    Refuse(why)   400: the field would bypass the platform, or its function is not offered

Fields that no table has are unknown. The pool's RoutingPolicy decides about them (`unknownFields`): `strip`, the
default, drops the field and names it in `x-shoal-ignored`; `refuse` answers 400; `pass` sends it to the engine.
Stripping is what engines do themselves (vLLM ignores and logs unknown fields), so no client breaks. A field of a
newer engine has no effect until its effect was reviewed (docs/decisions/0029-request-fields-are-on-an-allow-list.md).

Neighbours: `field_tables` has the tables, `checks` and `content` the checks; `intake` calls this.
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
class RejectedField:
    why: str  # text that follows the field's name in the error message


Rule = Check | Strip | RejectedField


class FieldTable:
    """Rules of one route, also as sets by kind, so that a body is checked with set operations."""

    __slots__ = ("checks", "passed", "refused", "rules", "stripped")

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self.rules = dict(rules)
        self.refused = {name: rule.why for name, rule in rules.items() if isinstance(rule, RejectedField)}
        self.stripped = frozenset(name for name, rule in rules.items() if isinstance(rule, Strip))
        self.passed = frozenset(rules.keys() - self.refused.keys() - self.stripped) | {"model"}
        self.checks: dict[str, Check] = {}
        for name, rule in rules.items():
            if not isinstance(rule, RejectedField):
                self.checks[name] = rule.check if isinstance(rule, Strip) else rule


def check_fields(body: JsonObject, table: FieldTable) -> None:
    """Raise RequestRejected (400, with param) at the table's first field whose value is wrong. Null means absent.

    A whole number written as a float, like 5.0, is replaced by the integer if that is right.
    """
    if not table.passed.issuperset(body):
        _reject_refused_fields(body, table)
    checks = table.checks
    if len(body) > len(checks):
        _refuse_first(body, checks)
        return
    for name, value in body.items():  # most bodies have about five fields; a table has seventy
        check = checks.get(name)
        if check is not None and value is not None and check(value) is not None:
            _refuse_first(body, checks)


def keep_allowed(body: JsonObject, table: FieldTable, unknown: UnknownFields, path: str) -> tuple[str, ...]:
    """Remove fields that the engine must not receive from a checked body; return the names of unknown ones.

    Raises RequestRejected (400) if the pool refuses unknown fields.
    """
    dropped = []
    for name in sorted(body.keys() - table.passed):
        if name in table.rules:  # stripped, or refused and null
            del body[name]
        elif unknown == "refuse" and body[name] is not None:
            raise _not_known(name, path)
        elif unknown != "pass":
            del body[name]
            dropped.append(name)
    return tuple(dropped)


def ignored_header(names: tuple[str, ...]) -> bytes:
    """Return a header's value with the first _MOST_NAMED of these names that are valid in a header, by commas."""
    fit = [name.encode() for name in names if _IN_A_HEADER.fullmatch(name) is not None]
    return b", ".join(fit[:_MOST_NAMED])


def _reject_refused_fields(body: JsonObject, table: FieldTable) -> None:
    for name, why in table.refused.items():
        if body.get(name) is not None:
            raise bad_request(f"'{name}' {why}.", param=name)


def _refuse_first(body: JsonObject, checks: dict[str, Check]) -> None:
    """Raise for the first wrong field in the table's order, so that the error does not depend on the client's order.

    A whole number written as 5.0, by a language with one number type, is not wrong: it becomes 5.
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
        f"{quote(name)} is not a known field of {path}: omit it. "
        "(The RoutingPolicy of the pool rejects unknown fields: unknownFields is refuse.)"
    )
    return bad_request(message, param=name[:64], code="unknown_field")
