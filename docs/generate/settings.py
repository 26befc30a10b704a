"""Settings of every process: each pydantic-settings class of the product, found by walking its packages."""

import importlib
import inspect
import pkgutil
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

import functions
from docs.generate.markdown import code, number, page, sentence, table

_ABOUT = (
    "Each process reads its settings from the environment, once, at its start. A setting without a default has to be "
    "given. A value that is out of range, or a name with the prefix that does not exist, ends the process with a "
    "message that names it. Secrets are in files, never in the environment: `…_FILE` names one."
)
# Who reads a class: the process, and how it is started.
_PROCESSES = {
    "GatewaySettings": ("Gateway", "`python -m functions.gateway`"),
    "RegistrySettings": ("Registry", "`python -m functions.registry`"),
    "ReplicaSettings": ("Agent", "`python -m functions.replica`, one beside each engine"),
    "NodeFetchSettings": (
        "Node fetcher",
        "`python -m functions.replica.node_fetch`, which brings base weights to a node",
    ),
    "AdapterCacheSettings": (
        "Adapter cache",
        "`python -m functions.replica.adapter_cache`, one a region, before the store",
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
    """Every settings class, whichever module it is in."""
    found: dict[str, type[BaseSettings]] = {}
    for module in pkgutil.walk_packages(functions.__path__, "functions."):
        if not module.name.endswith("__main__") and "settings" in _text(module):
            for _, value in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
                if issubclass(value, BaseSettings) and value.__module__ == module.name:
                    found[value.__name__] = value
    order = list(_PROCESSES)
    return sorted(found.values(), key=lambda one: (order.index(one.__name__), one.__name__))


def variables() -> set[str]:
    return {_variable(one, name) for one in classes() for name in one.model_fields}


def settings_page() -> str:
    return page("Settings", _ABOUT, *(_section(one) for one in classes()))


def _text(module: pkgutil.ModuleInfo) -> str:
    """Only modules that speak of settings classes are imported: some others begin to work when they are."""
    spec = module.module_finder.find_spec(module.name, None)
    path = spec.origin if spec is not None else None
    text = Path(path).read_text() if path is not None and path.endswith(".py") else ""
    return "settings" if "(BaseSettings)" in text else ""


def _section(of: type[BaseSettings]) -> str:
    title, who = _PROCESSES[of.__name__]
    rows = [
        (code(_variable(of, name)), _default(field), _takes(name, field), sentence(field.description or ""))
        for name, field in of.model_fields.items()
    ]
    return f"## {title}\n\n{who[0].upper()}{who[1:]}.\n\n" + table(("variable", "default", "takes", "meaning"), rows)


def _variable(of: type[BaseSettings], name: str) -> str:
    return f"{of.model_config.get('env_prefix', '')}{name}".upper()


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.get_default(call_default_factory=True)
    if value is None or value is PydanticUndefined or value in ("", ()):
        return "unset"
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, int) and value >= 1024 * 1024 and value % (1024 * 1024) == 0:
        return f"{code(str(value))} ({value // (1024 * 1024)} MiB)"
    return code(str(getattr(value, "value", value)))


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
        return "one of " + ", ".join(code(one) for one in literals)
    return _type(inner[0]) if len(inner) == 1 else "text"


def _bounds(field: FieldInfo) -> str:
    return ", ".join(_bound(one) for one in field.metadata if _bound(one))


def _bound(constraint: Any) -> str:
    signs = (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))
    found = (f"{words} {number(getattr(constraint, name))}" for name, words in signs if hasattr(constraint, name))
    return next(found, "")
