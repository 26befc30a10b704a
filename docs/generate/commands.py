"""The `shoal` command: every command, argument and option, as its functions declare them."""

import enum
import inspect
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

from docs.generate.markdown import code, csv_file, page, sentence, table
from functions.cli.main import app

_ABOUT = (
    "This page is for users of the `shoal` command. It lists every command in one line; brackets mark what may be left "
    "out. All {parameters} arguments and options, with default, environment variable and meaning, are in "
    "[{file}]({file}). `shoal COMMAND --help` prints the same for one command.\n\n"
    "- Exit status: 0 success, 1 refused or failed, 2 wrong usage.\n"
    "- `-o json` prints JSON for programs.\n"
    "- `--context NAME` selects a cluster by a context of the kubeconfig; the commands marked *yes* have it. Without "
    "it, `doctor`, `secrets`, `events` and `console` use the current context, and the others use the local fleet or "
    "the registry that `SHOAL_CLI_*` names ([settings](settings.md)).\n"
    "- `--region NAME` (`SHOAL_REGION`), before or after a command, selects one of several installations on this "
    "machine ([several regions](../how-to/regions.md))."
)
_FILE = "commands.csv"
_HEAD = ("command", "argument or option", "default", "environment variable", "meaning")
# Commands by purpose; a group's name stands for all of its commands.
_GROUPS = {
    "The fleet on this machine": ("prepare", "up", "down", "front", "env"),
    "State of a fleet": ("status", "top", "logs", "events", "console", "trace", "traces", "usage", "chat"),
    "Operations": ("restart", "drain", "clear-accelerator", "suspend", "resume", "reconcile", "drill"),
    "Configuration": ("validate", "schema", "diff", "plan", "promote"),
    "Models": ("adapter", "base"),
    "Rollouts": ("rollout",),
    "API keys": ("key",),
    "Capacity": ("capacity", "simulate"),
    "Installation on a cluster": ("doctor", "secrets"),
}
_TYPES = {int: "INTEGER", float: "NUMBER", str: "TEXT", Path: "PATH"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument or option of a command."""

    spellings: tuple[str, ...]  # empty for an argument
    takes: str  # placeholder of the value; empty if there is none
    default: Any
    help: str
    variable: str  # environment variable, or empty
    required: bool
    repeated: bool

    @property
    def spelled(self) -> str:
        several = " …" if self.repeated else ""
        return " ".join(part for part in (", ".join(self.spellings), self.takes) if part) + several


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    help: str
    parameters: tuple[Parameter, ...]

    @property
    def usage(self) -> str:
        arguments = (one for one in self.parameters if not one.spellings)
        places = (one.spelled if one.required else f"[{one.spelled}]" for one in arguments)
        options = ["[OPTIONS]"] if any(one.spellings for one in self.parameters) else []
        return " ".join([self.name, *options, *places])

    @property
    def options(self) -> set[str]:
        return {spelling for one in self.parameters for spelling in one.spellings}


def commands() -> Iterator[Command]:
    """Yield every command of `shoal` with its full name."""
    yield from _below("shoal", app)


def commands_files() -> dict[str, str]:
    """Return the page, one line a command, and the CSV file of all arguments and options."""
    groups = {
        name: [one for word in words for one in commands() if one.name.split()[1] == word]
        for name, words in _GROUPS.items()
    }
    missing = {one.name for one in commands()} - {one.name for group in groups.values() for one in group}
    assert not missing, f"_GROUPS lacks {missing}"
    rows = [row for group in groups.values() for one in group for row in _rows(one)]
    about = _ABOUT.format(parameters=len(rows), file=_FILE)
    sections = [f"## {name}\n\n{_group(group)}" for name, group in groups.items()]
    return {"commands.md": page("The command line", about, *sections), _FILE: csv_file(_HEAD, rows)}


def _below(name: str, of: typer.Typer) -> Iterator[Command]:
    for one in of.registered_commands:
        function = one.callback
        assert function is not None
        word = one.name or function.__name__.replace("_", "-")
        hints = get_type_hints(function, include_extras=True)
        signature = inspect.signature(function).parameters.values()
        found = tuple(_parameter(each, hints[each.name]) for each in signature)
        yield Command(f"{name} {word}", one.help or inspect.getdoc(function) or "", found)
    for group in of.registered_groups:
        inner = group.typer_instance
        assert inner is not None
        yield from _below(f"{name} {group.name or inner.info.name}", inner)


def _parameter(parameter: inspect.Parameter, hint: Any) -> Parameter:
    kind, info = get_args(hint)[0], get_args(hint)[1]
    assert isinstance(info, OptionInfo | ArgumentInfo)
    default = None if parameter.default is inspect.Parameter.empty else parameter.default
    required = parameter.default is inspect.Parameter.empty
    repeated, inner = _inner(kind)
    variable = info.envvar if isinstance(info.envvar, str) else ""
    more = (default, info.help or "", variable, required, repeated)
    if isinstance(info, ArgumentInfo):
        return Parameter((), str(info.metavar or parameter.name.upper()), *more)
    first = (info.default,) if isinstance(info.default, str) else ()  # where Annotated has it
    spellings = (*first, *(info.param_decls or ())) or (f"--{parameter.name.replace('_', '-')}",)
    return Parameter(spellings, "" if inner is bool else str(info.metavar or _takes(inner, info)), *more)


def _inner(kind: Any) -> tuple[bool, Any]:
    """Return whether the parameter may be repeated, and the type of one value."""
    if get_origin(kind) in (Union, types.UnionType):
        return _inner(next(one for one in get_args(kind) if one is not type(None)))
    if get_origin(kind) in (list, tuple):
        return True, get_args(kind)[0]
    return False, kind


def _takes(kind: Any, info: OptionInfo) -> str:
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "|".join(str(one.value) for one in kind)
    if info.min is not None and info.max is not None:
        return f"{info.min:g}..{info.max:g}"
    return _TYPES.get(kind, "VALUE")


def _group(group: Iterable[Command]) -> str:
    rows = [(code(one.usage), _plain(one.help), "yes" if "--context" in one.options else "") for one in group]
    return table(("command", "does", "cluster"), rows)


def _rows(command: Command) -> Iterator[tuple[str, str, str, str, str]]:
    for one in command.parameters:
        yield command.name, one.spelled, _default(one), one.variable, sentence(one.help)


def _plain(text: str) -> str:
    """Return a command's help as one paragraph, without typer's marks for line breaks."""
    parts = text.replace("\b", "").replace("\f", "").split("\n\n")
    return " ".join(sentence(part) for part in parts if part.strip())


def _default(parameter: Parameter) -> str:
    if parameter.required:
        return "required"
    value = getattr(parameter.default, "value", parameter.default)
    return "" if value in (None, False, (), []) else str(value)
