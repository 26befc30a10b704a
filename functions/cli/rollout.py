"""`shoal rollout`: list, watch, pause, resume, promote, roll back.

A rollout is named by its id, or by its model, which means the model's newest rollout.
"""

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from typing import Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from functions.api.ids import DEFAULT_CHANNEL, parse_model_ref
from functions.cli.context import current_context
from functions.cli.refused import CommandRefused
from functions.cli.registry_client import Registry, RegistryUnreachable
from functions.cli.rollout_tables import (
    STATE_COLOURS,
    Picture,
    drawn,
    line,
    picture_of,
    rollout_of,
    rollout_table,
    stage_words,
)
from functions.cli.terminal import PLAIN_LINE_EVERY_S, make_console

LISTED_MAX = 1000
_ID = re.compile(r"ro-[0-9a-z]{8,32}")


def ls(*, every: bool, model: str | None, as_json: bool) -> None:
    params = {} if every else {"active": "true"}
    if model is not None:
        params["model"] = model
    with Registry(current_context(clones=True)) as registry:
        rows = list(islice(registry.pages("/v1/rollouts", params), LISTED_MAX))
    if as_json:
        typer.echo(json.dumps({"rollouts": rows}, indent=2))
    elif rows:
        make_console().print(rollout_table(rows))
    else:
        make_console().print("no rollouts are active" if not every else "no rollouts exist")


def send_action(name: str, verb: str, reason: str, *, as_json: bool) -> None:
    with Registry(current_context(clones=True)) as registry:
        id_ = resolved(registry, name)
        body = {"reason": reason} if reason else None
        row: dict[str, Any] = registry.send("POST", f"/v1/rollouts/{id_}/{verb}", body)
    if as_json:
        typer.echo(json.dumps(row, indent=2))
        return
    it = rollout_of(row)
    state = f"[{STATE_COLOURS[it.state]}]{it.state.replace('_', ' ')}[/]"
    where = f", {stage_words(it)}" if it.is_active else f": {escape(it.reason)}"
    console = make_console()
    console.print(
        f"{escape(f'{it.model}:{it.channel}')} {escape(it.from_version)} → {escape(it.to_version)} is {state}{where}"
    )


def resolved(registry: Registry, name: str) -> str:
    """Return the rollout's id: `name` itself, or the newest rollout of the model's channel. Fail if it is neither, or
    if the channel has had none."""
    if _ID.fullmatch(name):
        return name
    ref = parse_model_ref(name)
    if ref is None or ref.version or ref.digest:
        raise CommandRefused(
            f"{name[:160]!r} is neither a rollout's id (ro-…) nor a model; `shoal rollout ls --all` lists them"
        )
    channel = ref.channel or DEFAULT_CHANNEL
    newest = next(registry.pages("/v1/rollouts", {"model": ref.id, "channel": channel}), None)
    if newest is None:
        raise CommandRefused(
            f"{ref.id}:{channel} has had no rollout; a policy with one stage moves the channel without one"
        )
    return str(newest["id"])


POLL_S = 1.0  # the controller evaluates rollouts at the same interval
PATIENCE_S = 60.0  # a restarted registry is back long before


def watch(name: str, *, as_json: bool) -> None:
    """Follow a rollout until it ends: live on a terminal, elsewhere a line or a JSON object per change.

    Exit status 0 if it was completed or superseded, 1 if it was rolled back. An outage of the registry is tolerated for
    PATIENCE_S.
    """
    with Registry(current_context(clones=True)) as registry:
        id_ = resolved(registry, name)
        looks = _polls(lambda: registry.get(f"/v1/rollouts/{id_}"))
        console = make_console()
        if as_json:
            last = _as_json(looks)
        elif console.is_terminal:
            last = _live(looks, console)
        else:
            last = _lines(looks, console)
    if last.rollout.state == "rolled_back":
        raise typer.Exit(1)


RolloutPoll = tuple[dict[str, Any], Picture, str]  # answer, decoded rollout, and the current error or ""


def _polls(ask: Callable[[], dict[str, Any]]) -> Iterator[RolloutPoll]:
    """Poll the rollout every POLL_S until it ends. Yield the last answer, its picture, and the error if the registry is
    unreachable; raise it after PATIENCE_S."""
    answer: dict[str, Any] | None = None
    heard_s = time.monotonic()
    while True:
        trouble = ""
        try:
            answer, heard_s = ask(), time.monotonic()
        except RegistryUnreachable as error:
            if answer is None or time.monotonic() - heard_s > PATIENCE_S:
                raise
            trouble = str(error)
        picture = picture_of(answer, time.time())
        yield answer, picture, trouble
        if not picture.rollout.is_active:
            return
        time.sleep(POLL_S)


def _live(looks: Iterator[RolloutPoll], console: Console) -> Picture:
    last: Picture | None = None
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
        for _, last, trouble in looks:
            live.update(Group(drawn(last), *([Text(trouble, "red")] if trouble else [])), refresh=True)
    return _seen(last)


def _lines(looks: Iterator[RolloutPoll], console: Console) -> Picture:
    """Print a line for every change of the rollout, and otherwise one every PLAIN_LINE_EVERY_S. Return the last
    picture."""
    last: Picture | None = None
    said: object = None
    said_s = 0.0
    for _, last, trouble in looks:
        step = trouble or (last.rollout.lock_version, last.rollout.state)
        if step != said or time.monotonic() - said_s >= PLAIN_LINE_EVERY_S:
            said, said_s = step, time.monotonic()
            console.print(Text(f"{time.strftime('%H:%M:%S')} {trouble or line(last)}"), soft_wrap=True)
    return _seen(last)


def _as_json(looks: Iterator[RolloutPoll]) -> Picture:
    """Print a JSON object whenever the registry's answer changes. Return the last picture."""
    last: Picture | None = None
    said: dict[str, Any] | None = None
    for answer, last, _ in looks:
        if answer != said:
            said = answer
            typer.echo(json.dumps({**answer, "figures": asdict(last.figures)}))
    return _seen(last)


def _seen(last: Picture | None) -> Picture:
    if last is None:
        raise CommandRefused("there was nothing to watch")
    return last
