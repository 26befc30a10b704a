"""Error codes of gateway and registry: every error response in the source, with its status and its messages."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from docs.generate.markdown import code, csv_file, link, page, table
from docs.generate.source import FUNCTIONS, Site, calls

_ABOUT = (
    "This page is for developers of clients and for operators. It lists every error code by HTTP status. The messages "
    "of each code are in CSV files; braces mark values that the response fills in. To find a message, search the "
    "folder: `grep -r 'no replica ready' docs/reference/errors`.\n\n"
    'An error has OpenAI\'s format, `{"error": {"message", "type", "param", "code"}}`, and the header `x-request-id`. '
    "Programs should read `code`; `message` says what to do. With `invalid_request`, `param` names the field or header "
    "that is malformed or out of range. On `/v1/messages` the gateway answers in Anthropic's format, without a code. A "
    "response with status 429, and most with 503, has the header `retry-after` ([Headers](headers.md))."
)
_HEAD = ("status", "code", "message")
_PROCESSES = ("gateway", "registry")
_NO_MESSAGE = "(The message is written where the error occurs.)"


@dataclass(frozen=True, slots=True)
class _Maker:
    """Signature of a function that makes error responses: positions of its arguments, and its fixed values."""

    code: tuple[int, str]
    message: int
    status: int | None = None  # if unset, the first argument is the status
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
    """Return the messages that `functions/<process>` makes, by status and code."""
    found: dict[tuple[int, str], list[str]] = defaultdict(list)
    for site in calls(FUNCTIONS / process, _MAKERS):
        for status, name, message in _made(site):
            if message not in found[status, name]:
                found[status, name].append(message)
    return dict(sorted(found.items()))


def documented(process: str) -> dict[tuple[int, str], list[str]]:
    """Return every error of the process, those of its database layer and artifact checks included."""
    found = {key: list(messages) for key, messages in refusals(process).items()}
    for key, messages in (_database_errors() if process == "registry" else {}).items():
        found[key] = list(dict.fromkeys([*found.get(key, []), *messages]))
    return dict(sorted(found.items()))


def errors_files() -> dict[str, str]:
    """Return the page and one CSV file for each service, with one line for each message."""
    sections = [f"## {process.capitalize()}\n\n{_section(process)}" for process in _PROCESSES]
    files = {file_of(process): csv_file(_HEAD, _rows(process)) for process in _PROCESSES}
    return {"errors.md": page("Error codes", _ABOUT, *sections), **files}


def file_of(process: str) -> str:
    """Return the path of the service's CSV file below docs/reference."""
    return f"errors/{process}.csv"


def _section(process: str) -> str:
    codes: dict[int, list[str]] = defaultdict(list)
    for status, name in documented(process):
        codes[status].append(code(name))
    rows = [(str(status), ", ".join(names)) for status, names in codes.items()]
    about = f"{len(_rows(process))} messages of {len(documented(process))} codes: {link(file_of(process))}."
    return f"{about}\n\n{table(('status', 'codes'), rows)}"


def _rows(process: str) -> list[tuple[str, str, str]]:
    return [
        (str(status), name, message)
        for (status, name), messages in documented(process).items()
        for message in ([text for text in messages if text] or [_NO_MESSAGE])
    ]


def _made(site: Site) -> Iterator[tuple[int, str, str]]:
    maker = _MAKERS[site.name]
    if getattr(site.function, "name", "") in _MAKERS:
        return  # its callers are read instead
    status = maker.status or getattr(site.argument(0, "status"), "value", None)
    codes = site.texts(site.argument(*maker.code)) or ([maker.default] if maker.default else [])
    messages = site.texts(site.argument(maker.message, "message")) or [""]
    if isinstance(status, int):
        yield from ((status, name, message) for name in codes for message in messages)


def _database_errors() -> dict[tuple[int, str], list[str]]:
    """Return the errors of the registry's database layer, whose kinds `registry.app` maps to a status."""
    from functions.registry import app as edge
    from functions.registry.sql.errors import CatalogueRefused

    found: dict[tuple[int, str], list[str]] = defaultdict(list)
    for site in calls(FUNCTIONS / "registry" / "sql", {CatalogueRefused.__name__}):
        for kind in site.texts(site.argument(0, "kind")):
            for name in site.texts(site.argument(1, "code")):
                messages = found[edge._STATUS[kind], name]  # type: ignore[index]
                messages += [one for one in site.texts(site.argument(2, "message")) if one not in messages]
    found |= {
        (status, name): [(kind.__doc__ or "").partition("\n")[0]] for kind, (status, name) in edge._ARTIFACTS.items()
    }
    return dict(sorted(found.items()))
