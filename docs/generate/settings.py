"""Settings of every process: all pydantic-settings classes of the product, found by walking its packages."""

import importlib
import inspect
import pkgutil
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

import functions
from docs.generate.markdown import code, csv_file, link, number, page, sentence, slug, table

_ABOUT = (
    "This page is for operators. It lists the CSV files that hold every setting: variable, default, unit and range, "
    "meaning. To find one setting, search the folder: `grep -r MAX_CONNECTIONS docs/reference/settings`.\n\n"
    "Each process reads its settings from environment variables, once, when it starts. A required setting has no "
    "default. If a required variable is missing or a value is out of range, the process exits with a message that "
    "names the setting. A variable whose name is unknown is ignored, so check the spelling. Secrets are in files and "
    "never in the environment: a variable whose name ends in `_FILE` holds the path."
)
_HEAD = ("variable", "default", "takes", "meaning")
# The process that reads a class, and how it is started.
_PROCESSES = {
    "GatewaySettings": ("Gateway", "`python -m functions.gateway`"),
    "RegistrySettings": ("Registry", "`python -m functions.registry`"),
    "ReplicaSettings": ("Agent", "`python -m functions.replica`, one beside each engine"),
    "NodeFetchSettings": (
        "Node fetcher",
        "`python -m functions.replica.node_fetch`, which downloads base weights to a node",
    ),
    "AdapterCacheSettings": (
        "Adapter cache",
        "`python -m functions.replica.adapter_cache`, one a region, between agents and the store",
    ),
    "ControllerSettings": ("Controller, local", "`python -m functions.controller`, started by `shoal up`"),
    "KubernetesSettings": ("Controller, Kubernetes", "`python -m functions.controller.kubernetes`"),
    "LocalStoreSettings": ("Trace store, local", "`python -m functions.telemetry.store`, started by `shoal up`"),
    "TraceStoreAccess": ("Command line, traces", "`shoal trace` and `shoal traces`"),
    "LocalSettings": ("Local fleet", "the `shoal` command and the local controller"),
    "RegistryAccess": ("Command line", "`shoal` commands that call a registry"),
}
_UNITS = (
    ("_bytes_per_s", "bytes/s"),
    ("_per_minute", "a minute"),
    ("_per_second", "a second"),
    ("_per_s", "a second"),
    ("_bytes", "bytes"),
    ("_ms", "ms"),
    ("_s", "s"),
    ("_days", "days"),
    ("_ratio", "ratio"),
    ("_share", "share"),
    ("_tokens", "tokens"),
    ("port", "port"),
    ("_url", "URL"),
    ("_file", "file"),
    ("_files", "files"),
    ("_dir", "folder"),
)
_TYPES = {int: "number", float: "number", bool: "true or false", str: "text", Path: "path"}


def classes() -> list[type[BaseSettings]]:
    """Return every settings class of the product in the order of `_PROCESSES`."""
    found: dict[str, type[BaseSettings]] = {}
    for module in pkgutil.walk_packages(functions.__path__, "functions."):
        if not module.name.endswith("__main__") and "settings" in _text(module):
            for _, value in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
                if issubclass(value, BaseSettings) and value.__module__ == module.name:
                    found[value.__name__] = value
    order = list(_PROCESSES)
    return sorted(found.values(), key=lambda one: (order.index(one.__name__), one.__name__))


def variables() -> set[str]:
    """Return the environment variables of all settings classes."""
    return {_variable(one, name) for one in classes() for name in one.model_fields}


def settings_files() -> dict[str, str]:
    """Return the page and one CSV file for each settings class."""
    rows = [
        (_PROCESSES[one.__name__][0], _PROCESSES[one.__name__][1], link(file_of(one)), str(len(one.model_fields)))
        for one in classes()
    ]
    files = table(("process", "started as, or used by", "file", "settings"), rows)
    text = page("Settings", _ABOUT, f"## Files\n\n{files}", f"## Required settings\n\n{_required()}")
    return {"settings.md": text, **{file_of(one): csv_file(_HEAD, _rows(one)) for one in classes()}}


def file_of(of: type[BaseSettings]) -> str:
    """Return the path of the class's CSV file below docs/reference."""
    return f"settings/{slug(_PROCESSES[of.__name__][0])}.csv"


def _required() -> str:
    needed = {one: [name for name, field in one.model_fields.items() if field.is_required()] for one in classes()}
    rows = [
        (_PROCESSES[one.__name__][0], ", ".join(code(_variable(one, name)) for name in names))
        for one, names in needed.items()
        if names
    ]
    return table(("process", "variables"), rows)


def _text(module: pkgutil.ModuleInfo) -> str:
    """Return "settings" for modules that define settings classes; others are not imported, since some run on import."""
    spec = module.module_finder.find_spec(module.name, None)
    path = spec.origin if spec is not None else None
    text = Path(path).read_text() if path is not None and path.endswith(".py") else ""
    return "settings" if "(BaseSettings)" in text else ""


def _rows(of: type[BaseSettings]) -> list[tuple[str, str, str, str]]:
    return [
        (_variable(of, name), _default(field), _takes(name, field), sentence(field.description or ""))
        for name, field in of.model_fields.items()
    ]


def _variable(of: type[BaseSettings], name: str) -> str:
    return f"{of.model_config.get('env_prefix', '')}{name}".upper()


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value is PydanticUndefined or value in ("", ()):
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value >= 1024 * 1024 and value % (1024 * 1024) == 0:
        return f"{value} ({value // (1024 * 1024)} MiB)"
    return str(getattr(value, "value", value))


def _takes(name: str, field: FieldInfo) -> str:
    units = () if field.annotation is bool else _UNITS
    unit = next((unit for ending, unit in units if f"_{name}".endswith(ending)), _type(field.annotation))
    return ", ".join(part for part in (unit, _bounds(field)) if part)


def _type(annotation: Any) -> str:
    if annotation in _TYPES:
        return _TYPES[annotation]
    inner = [one for one in getattr(annotation, "__args__", ()) if one is not type(None)]
    literals = [one for one in inner if isinstance(one, str)]
    if literals and len(literals) == len(inner):
        return "one of " + ", ".join(literals)
    return _type(inner[0]) if len(inner) == 1 else "text"


def _bounds(field: FieldInfo) -> str:
    return ", ".join(_bound(one) for one in field.metadata if _bound(one))


def _bound(constraint: Any) -> str:
    signs = (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))
    found = (f"{words} {number(getattr(constraint, name))}" for name, words in signs if hasattr(constraint, name))
    return next(found, "")
