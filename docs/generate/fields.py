"""Fields of requests: each route's allow-list, as the gateway obeys it."""

from docs.generate.markdown import code, page, sentence, table
from functions.gateway.intake.checks import anything
from functions.gateway.intake.fields import FieldTable, RejectedField, Rule, Strip
from functions.gateway.intake.routes import ROUTES, Route
from functions.gateway.limits import Limits

_ABOUT = (
    "What becomes of each field of a request's body. *Passes*: the engine gets it, if its value is as it says. *Kept "
    "here*: it is read or replaced by the gateway, and no engine gets it as it came. *Refused*: 400, with the field as "
    "`param`. `model` is on every route; null means absent.\n\n"
    "A field that is in none of these tables is unknown. The pool's RoutingPolicy says what becomes of it "
    "([`spec.unknownFields`](kinds.md#routingpolicy)): `strip`, the default, drops it and names it in the header "
    "`x-shoal-ignored`; `refuse` answers 400 `unknown_field`; `pass` lets the engine have it. Why it is so is in "
    "[the decision](../decisions/0029-request-fields-are-on-an-allow-list.md), and which of a caller's ids would join tenants in an "
    "engine, in [The gateway's API](../explanation/api.md#ids-that-engines-keep)."
)


def fields_page() -> str:
    limits = Limits()
    tables = {route.path: route.table(limits) for route in ROUTES}
    everywhere = _in_all(tables)
    parts = [f"## Every route\n\n{_table(next(iter(tables.values())), everywhere)}"]
    parts += [_section(route, tables[route.path], everywhere) for route in ROUTES]
    return page("Fields of requests", _ABOUT, *parts)


def _in_all(tables: dict[str, FieldTable]) -> list[str]:
    """The fields that each route has, with one rule."""
    first, *others = tables.values()
    return [name for name in first.rules if all(_same(first, other, name) for other in others)]


def _same(one: FieldTable, other: FieldTable, name: str) -> bool:
    return name in other.rules and _words(one.rules[name]) == _words(other.rules[name])


def _section(route: Route, rules: FieldTable, everywhere: list[str]) -> str:
    own = [name for name in rules.rules if name not in everywhere]
    return f"## {code('POST ' + route.path)}\n\n{_table(rules, own)}"


def _table(rules: FieldTable, names: list[str]) -> str:
    return table(("field", "rule", "value"), ((code(name), *_words(rules.rules[name])) for name in sorted(names)))


def _words(rule: Rule) -> tuple[str, str]:
    if isinstance(rule, RejectedField):
        return "refused", sentence(rule.why)
    if isinstance(rule, Strip):
        return "kept here", _value(rule)
    return "passes", _value(rule)


def _value(rule: Rule) -> str:
    check = rule.check if isinstance(rule, Strip) else rule
    if check is anything or isinstance(check, RejectedField):
        return "Anything."
    return sentence(check(object()) or "")
