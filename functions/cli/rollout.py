"""`shoal rollout ls`, and the words that change one: pause, resume, promote, rollback.

A rollout is named by its id, or by its model: then its newest one is meant. Where another command changed it meanwhile,
that is told, and nothing is done twice.
"""

import json
import re
from itertools import islice
from typing import Any

import typer
from rich.markup import escape

from functions.api.ids import DEFAULT_CHANNEL, parse_model_ref
from functions.cli.place import here
from functions.cli.refused import Refused
from functions.cli.registry_client import Registry
from functions.cli.rollout_tables import STATE_COLOURS, rollout_of, rollout_table, stage_words
from functions.cli.terminal import make_console

LISTED_MAX = 1000
_ID = re.compile(r"ro-[0-9a-z]{8,32}")


def ls(*, every: bool, model: str | None, as_json: bool) -> None:
    params = {} if every else {"active": "true"}
    if model is not None:
        params["model"] = model
    with Registry(here(clones=True)) as registry:
        rows = list(islice(registry.pages("/v1/rollouts", params), LISTED_MAX))
    if as_json:
        typer.echo(json.dumps({"rollouts": rows}, indent=2))
    elif rows:
        make_console().print(rollout_table(rows))
    else:
        make_console().print("no rollout is on its way" if not every else "there was none yet")


def act(name: str, verb: str, reason: str, *, as_json: bool) -> None:
    with Registry(here(clones=True)) as registry:
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
    """The id that is meant: itself, or the newest rollout of a model's channel."""
    if _ID.fullmatch(name):
        return name
    ref = parse_model_ref(name)
    if ref is None or ref.version or ref.digest:
        raise Refused(
            f"{name[:160]!r} is neither a rollout's id (ro-…) nor a model; `shoal rollout ls --all` lists them"
        )
    channel = ref.channel or DEFAULT_CHANNEL
    newest = next(registry.pages("/v1/rollouts", {"model": ref.id, "channel": channel}), None)
    if newest is None:
        raise Refused(f"{ref.id}:{channel} has had no rollout; a policy with one stage makes a flip, not a rollout")
    return str(newest["id"])
