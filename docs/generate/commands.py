"""The `shoal` command: every command, argument and option, as its functions declare them."""

import enum
import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

from docs.generate.markdown import code, page, sentence, table
from functions.cli.main import app

_ABOUT = (
    "Exit status: 0 good, 1 refused or failed, 2 wrong usage. `-o json` prints what programs read. "
    "`shoal COMMAND --help` says the same as this page. `--region NAME` (`SHOAL_REGION`), before a command or behind "
    "it, chooses one of several installations on this machine ([several regions](../how-to/regions.md))."
)
_TYPES = {int: "INTEGER", float: "NUMBER", str: "TEXT", Path: "PATH"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument or option of a command."""

    spellings: tuple[str, ...]  # of an option; none of an argument
    takes: str  # what stands behind it; empty: nothing
    default: Any
    help: str
    variable: str  # of the environment
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
    """Every command that does something, by its whole name."""
    yield from _below("shoal", app)


def commands_page() -> str:
    return page("The command line", _ABOUT, *(_section(command) for command in commands()))


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
    """Whether it may be given several times, and what each is."""
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


def _section(command: Command) -> str:
    rows = [(code(one.spelled), _default(one), sentence(_help(one))) for one in command.parameters]
    parts = [f"## {command.name}", f"`{command.usage}`", _paragraphs(command.help)]
    return "\n\n".join([*parts, *([table(("argument or option", "default", "meaning"), rows)] if rows else [])])


def _paragraphs(text: str) -> str:
    parts = text.replace("\b", "").replace("\f", "").split("\n\n")
    return "\n\n".join(sentence(part) for part in parts if part.strip())


def _default(parameter: Parameter) -> str:
    if parameter.required:
        return "**required**"
    value = getattr(parameter.default, "value", parameter.default)
    return "" if value in (None, False, (), []) else code(str(value))


def _help(parameter: Parameter) -> str:
    return f"{sentence(parameter.help)} Also `{parameter.variable}`." if parameter.variable else parameter.help
