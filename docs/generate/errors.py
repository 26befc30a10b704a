"""Error codes of gateway and registry: each refusal that the source makes, with its status and its words."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from docs.generate.markdown import code, page, table
from docs.generate.source import FUNCTIONS, Site, calls

_ABOUT = (
    'Errors are OpenAI\'s shape, `{"error": {"message", "type", "param", "code"}}`, always with the header '
    "`x-request-id`. `code` is for programs; `message` says what to do. In braces stands what the answer fills in. "
    "On `/v1/messages` the gateway answers in Anthropic's shape, without a code."
)
_SHOWN = 3  # messages of one code
_MEANINGS = {
    ("gateway", 400, "invalid_request"): "A field, header or value is malformed or out of range; `param` names it.",
}


@dataclass(frozen=True, slots=True)
class _Maker:
    """A function that makes refusals: where its arguments are, and what it fills in."""

    code: tuple[int, str]
    message: int
    status: int | None = None  # None: the first argument
    default: str = ""


_MAKERS = {
    "ErrorAnswer": _Maker((2, "code"), 3),
    "ApiError": _Maker((1, "code"), 2),
    "bad_request": _Maker((2, "code"), 0, 400, "invalid_request"),
    "forbidden": _Maker((1, "code"), 0, 403, "insufficient_permissions"),
    "unavailable": _Maker((1, "code"), 0, 503),
    "bad_gateway": _Maker((1, "code"), 0, 502, "upstream_failed"),
}


@cache
def refusals(process: str) -> dict[tuple[int, str], list[str]]:
    """Messages of `functions/<process>`, by status and code."""
    found: dict[tuple[int, str], list[str]] = defaultdict(list)
    for site in calls(FUNCTIONS / process, _MAKERS):
        for status, name, message in _made(site):
            if message not in found[status, name]:
                found[status, name].append(message)
    return dict(sorted(found.items()))


def errors_page() -> str:
    sql = _section("Registry, from its database", _of_the_database(), "registry")
    return page(
        "Error codes",
        _ABOUT,
        _section("Gateway", refusals("gateway"), "gateway"),
        _section("Registry", refusals("registry"), "registry"),
        sql,
    )


def _section(title: str, found: dict[tuple[int, str], list[str]], process: str) -> str:
    rows = [
        (str(status), code(name), _MEANINGS.get((process, status, name)) or _words(messages))
        for (status, name), messages in found.items()
    ]
    return f"## {title}\n\n" + table(("status", "code", "message"), rows)


def _words(messages: list[str]) -> str:
    shown = [message for message in messages if message][:_SHOWN]
    return (" · ".join(shown) or "What is wrong, in words.") + (" · …" if len(messages) > _SHOWN else "")


def _made(site: Site) -> Iterator[tuple[int, str, str]]:
    maker = _MAKERS[site.name]
    if getattr(site.function, "name", "") in _MAKERS:
        return  # its callers say what it is called with
    status = maker.status or getattr(site.argument(0, "status"), "value", None)
    codes = site.texts(site.argument(*maker.code)) or ([maker.default] if maker.default else [])
    messages = site.texts(site.argument(maker.message, "message")) or [""]
    if isinstance(status, int):
        yield from ((status, name, message) for name in codes for message in messages)


def _of_the_database() -> dict[tuple[int, str], list[str]]:
    """Refusals of the registry's database layer say a kind, which the edge turns into a status."""
    from functions.registry import app as edge

    found: dict[tuple[int, str], list[str]] = defaultdict(list)
    for site in calls(FUNCTIONS / "registry" / "sql", {"Refused"}):
        for kind in site.texts(site.argument(0, "kind")):
            for name in site.texts(site.argument(1, "code")):
                messages = found[edge._STATUS[kind], name]  # type: ignore[index]
                messages += [one for one in site.texts(site.argument(2, "message")) if one not in messages]
    found |= {
        (status, name): [(kind.__doc__ or "").partition("\n")[0]] for kind, (status, name) in edge._ARTIFACTS.items()
    }
    return dict(sorted(found.items()))
