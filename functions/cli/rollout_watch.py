"""`shoal rollout watch`: a rollout until it ends. Live on a terminal; a line a change elsewhere, or a JSON object.

Exit status 0 where it was completed or superseded, 1 where it was rolled back. The registry away is waited out.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from functions.cli.place import here
from functions.cli.refused import Refused
from functions.cli.registry_client import Registry, Unreachable
from functions.cli.rollout import resolved
from functions.cli.rollout_tables import Picture, drawn, line, picture_of
from functions.cli.terminal import PLAIN_LINE_EVERY_S, make_console

POLL_S = 1.0  # as often as the controller judges
PATIENCE_S = 60.0  # a registry that is restarted is back long before


def watch(name: str, *, as_json: bool) -> None:
    with Registry(here(clones=True)) as registry:
        id_ = resolved(registry, name)
        looks = _looks(lambda: registry.get(f"/v1/rollouts/{id_}"))
        console = make_console()
        if as_json:
            last = _as_json(looks)
        elif console.is_terminal:
            last = _live(looks, console)
        else:
            last = _lines(looks, console)
    if last.rollout.state == "rolled_back":
        raise typer.Exit(1)


Look = tuple[dict[str, Any], Picture, str]  # the answer, what it says, and what is the matter meanwhile


def _looks(ask: Callable[[], dict[str, Any]]) -> Iterator[Look]:
    """A look each second until the rollout ends."""
    answer: dict[str, Any] | None = None
    heard_s = time.monotonic()
    while True:
        trouble = ""
        try:
            answer, heard_s = ask(), time.monotonic()
        except Unreachable as error:
            if answer is None or time.monotonic() - heard_s > PATIENCE_S:
                raise
            trouble = str(error)
        picture = picture_of(answer, time.time())
        yield answer, picture, trouble
        if not picture.rollout.is_active:
            return
        time.sleep(POLL_S)


def _live(looks: Iterator[Look], console: Console) -> Picture:
    last: Picture | None = None
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
        for _, last, trouble in looks:
            live.update(Group(drawn(last), *([Text(trouble, "red")] if trouble else [])), refresh=True)
    return _seen(last)


def _lines(looks: Iterator[Look], console: Console) -> Picture:
    """A line for every step of the rollout; one now and then for figures that only grew."""
    last: Picture | None = None
    said: object = None
    said_s = 0.0
    for _, last, trouble in looks:
        step = trouble or (last.rollout.lock_version, last.rollout.state)
        if step != said or time.monotonic() - said_s >= PLAIN_LINE_EVERY_S:
            said, said_s = step, time.monotonic()
            console.print(Text(f"{time.strftime('%H:%M:%S')} {trouble or line(last)}"), soft_wrap=True)
    return _seen(last)


def _as_json(looks: Iterator[Look]) -> Picture:
    """An object whenever the registry tells something new."""
    last: Picture | None = None
    said: dict[str, Any] | None = None
    for answer, last, _ in looks:
        if answer != said:
            said = answer
            typer.echo(json.dumps({**answer, "figures": asdict(last.figures)}))
    return _seen(last)


def _seen(last: Picture | None) -> Picture:
    if last is None:
        raise Refused("there was nothing to watch")
    return last
