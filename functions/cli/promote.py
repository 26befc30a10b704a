"""`shoal promote MODEL VERSION`: move a channel to another version of a model.

If git declares the model, the command edits its YAML in the current working copy, and the user commits the edit. If the
model was created through the API, the command calls the registry, which starts a rollout.
"""

import json
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape

from functions.api.ids import ModelId, parse_model_ref
from functions.cli.catalogue_edit import with_channel
from functions.cli.catalogue_files import DeclaredModel, FileChange, change_file, find_declared, show_change
from functions.cli.context import CliContext, current_context, is_clone_of
from functions.cli.refused import CommandRefused
from functions.cli.registry_client import Registry, RegistryRefusal
from functions.cli.terminal import make_console


def promote(model: str, version: str, channel: str, *, as_json: bool) -> None:
    context = current_context(clones=True)
    model_id = model_id_of(model)
    declared = find_declared(context, model_id)
    if declared is not None:
        _in_git(context, declared, version, channel, as_json=as_json)
        return
    with Registry(context) as registry:
        row = registry.model(model_id)
        if row is None:
            raise CommandRefused(
                f"there is no model {model_id!r} visible to this key; `shoal adapter push` creates one"
            )
        if row.get("declared_in"):
            raise CommandRefused(where_to_edit(context, model_id, str(row["declared_in"])))
        print_channel(set_channel(registry, model_id, channel, version), model_id, channel, version, as_json=as_json)


def model_id_of(text: str) -> ModelId:
    ref = parse_model_ref(text)
    if ref is None or ref.channel or ref.version or ref.digest:
        raise CommandRefused(f"{text[:160]!r} is not a model id: use tenant/name, without a channel or version")
    return ref.id


def set_channel(registry: Registry, model_id: ModelId, channel: str, version: str) -> dict[str, Any]:
    """Point the channel at the version in the registry, and return its answer. If an active rollout prevents that, the
    error names the rollout."""
    try:
        answer: dict[str, Any] = registry.send(
            "POST", f"/v1/models/{model_id}/channels/{channel}", {"version": version}
        )
    except RegistryRefusal as error:
        if error.code == "rollout_active" and error.param:
            words = f"`shoal rollout watch {error.param}` shows it, `shoal rollout rollback {error.param}` ends it"
            raise CommandRefused(f"{error}; {words}") from error
        raise
    return answer


def print_channel(answer: dict[str, Any], model_id: str, channel: str, version: str, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    make_console().print(channel_words(answer, model_id, channel, version), soft_wrap=True)


def channel_words(answer: dict[str, Any], model_id: str, channel: str, version: str) -> str:
    name = escape(f"{model_id}:{channel}")
    rollout = rollout_id_of(answer)
    if rollout is None:
        return f"[green]✓[/] {name} is {escape(version)}"
    watch = escape(f"shoal rollout watch {rollout}")
    return f"[green]✓[/] {name} moves to {escape(version)} by rollout {escape(rollout)}: {watch}"


def rollout_id_of(answer: dict[str, Any]) -> str | None:
    found = answer.get("rollout")
    id_ = found.get("id") if isinstance(found, dict) else found
    return id_ if isinstance(id_, str) else None


def where_to_edit(context: CliContext, model_id: str, declared_in: str) -> str:
    clone = f"git clone {context.layout.gitops_dir}" if context.layout.gitops_dir.is_dir() else "clone its repository"
    return f"{model_id} is declared in git, in {declared_in}: {clone}, and run this command again inside"


def _in_git(context: CliContext, declared: DeclaredModel, version: str, channel: str, *, as_json: bool) -> None:
    spec = declared.model.spec
    names = [each.name for each in spec.versions]
    if version not in names:
        raise CommandRefused(f"{spec.id} has no version {version!r} in {declared.name}; it has {', '.join(names)}")
    change = change_file(context, declared, lambda text: with_channel(text, spec.id, channel, version))
    print_change(context, declared, change, f"{spec.id}: {channel} {version}", as_json=as_json)


def print_change(
    context: CliContext, declared: DeclaredModel, change: FileChange, message: str, *, as_json: bool
) -> None:
    """Print the diff and the command that deploys it, or that there is nothing to change."""
    next_step = deploys(context, declared.root, change.name, message) if change.before != change.after else ""
    if as_json:
        typer.echo(json.dumps({"file": str(declared.file), "diff": change.diff, "next": next_step}, indent=2))
        return
    console = make_console()
    if not next_step:
        console.print(escape(f"{change.name} has this already: nothing to change"))
        return
    show_change(change, console)
    console.print(escape(next_step), soft_wrap=True)


def deploys(context: CliContext, root: Path, name: str, message: str) -> str:
    """Return the instruction that deploys the changed file."""
    if is_clone_of(context.layout.gitops_dir, root):
        return f"to deploy it: git commit -m '{message}' {name} && git push"
    return f"to deploy it, commit {name} as usual in this repository; `shoal up` applies it to a local fleet"
