"""Fields of requests to models: the allow-list of each route, with the types that its OpenAPI schema has."""

from docs.generate.markdown import code, csv_file, page, slug, table
from docs.generate.openapi import Schema, bodies, gateway_document, type_of
from functions.gateway.intake.checks import anything
from functions.gateway.intake.fields import FieldTable, RejectedField, Rule, Strip
from functions.gateway.intake.routes import ROUTES, Route
from functions.gateway.limits import Limits

_ABOUT = (
    "This page is for developers of clients. It explains the gateway's rules for fields of request bodies and lists "
    "the CSV files that hold every field of every model route: field, rule, type, required, error. To find one field, "
    "search the folder: `grep -r max_tokens docs/reference/fields`.\n\n"
    "| rule | effect |\n| --- | --- |\n"
    "| passes | The gateway checks the value and sends the field to the engine. |\n"
    "| consumed | The gateway reads, replaces or drops the field; the engine never receives the client's value. |\n"
    "| refused | The request fails with status 400, as it does for a wrong value, and `param` names the field. |\n\n"
    "The message of the error is the field's name and the text of the column *error*. A field with the value null "
    "counts as absent.\n\n"
    "A field that is not in the table of its route is unknown. `spec.unknownFields` of the pool's "
    "[RoutingPolicy](kinds/routing-policy.md) decides: `strip`, the default, drops the field and names it in the "
    "header `x-shoal-ignored`; `refuse` fails with 400 `unknown_field`; `pass` sends it to the engine. The reasons are "
    "in [the decision](../decisions/0029-request-fields-are-on-an-allow-list.md). Which ids of a client could connect "
    "tenants in an engine is in [The gateway's API](../explanation/api.md#ids-that-engines-keep)."
)
_HEAD = ("field", "rule", "type", "required", "error")


def fields_files() -> dict[str, str]:
    """Return the page and one CSV file for each route to a model."""
    limits = Limits()
    tables = {route.path: route.table(limits) for route in ROUTES}
    schemas = {route: schema for route, _, schema in bodies(gateway_document())}
    everywhere = _in_all(tables)
    first = next(iter(tables.values()))
    common = table(("field", "rule", "error"), [(code(name), *_rule(first.rules[name])) for name in everywhere])
    files = table(
        ("route", "required fields", "file", "fields"),
        [
            (
                code(f"POST {one.path}"),
                _groups(one),
                f"[{file_of(one)}]({file_of(one)})",
                str(len(tables[one.path].rules) + 1),
            )
            for one in ROUTES
        ],
    )
    text = page("Fields of requests", _ABOUT, f"## Files\n\n{files}", f"## Fields of every route\n\n{common}")
    csv_files = {
        file_of(route): csv_file(_HEAD, _rows(route, tables[route.path], schemas[f"POST {route.path}"]))
        for route in ROUTES
    }
    return {"fields.md": text, **csv_files}


def file_of(route: Route) -> str:
    """Return the path of the route's CSV file below docs/reference."""
    return f"fields/{slug(route.path.removeprefix('/v1/'))}.csv"


def files_by_route() -> dict[str, str]:
    """Return the path of each CSV file by its route, such as `POST /v1/completions`."""
    return {f"POST {route.path}": file_of(route) for route in ROUTES}


def _rows(route: Route, rules: FieldTable, schema: Schema) -> list[tuple[str, str, str, str, str]]:
    properties = schema["properties"]
    rows = [
        (name, rule, type_of(properties[name]), _required(route, name), error)
        for name in sorted(rules.rules)
        for rule, error in [_rule(rules.rules[name])]
    ]
    return [("model", "consumed", type_of(properties["model"]), "required", ""), *rows]


def _groups(route: Route) -> str:
    return "; ".join(["`model`", *(" or ".join(code(name) for name in group) for group in route.required)])


def _required(route: Route, name: str) -> str:
    group = next((group for group in route.required if name in group), ())
    return "required" if len(group) == 1 else "one of " + ", ".join(group) if group else ""


def _in_all(tables: dict[str, FieldTable]) -> list[str]:
    """Return the fields that every route has with the same rule."""
    first, *others = tables.values()
    return sorted(name for name in first.rules if all(_same(first, other, name) for other in others))


def _same(one: FieldTable, other: FieldTable, name: str) -> bool:
    return name in other.rules and _rule(one.rules[name]) == _rule(other.rules[name])


def _rule(rule: Rule) -> tuple[str, str]:
    """Return the rule's name and the text of its error."""
    if isinstance(rule, RejectedField):
        return "refused", rule.why
    check = rule.check if isinstance(rule, Strip) else rule
    error = "" if check is anything or isinstance(check, RejectedField) else check(object()) or ""
    return "consumed" if isinstance(rule, Strip) else "passes", error
