"""Names and options of `adapter`, `rollout`, `key` and `usage`. Implementations are imported on use, as in `main`."""

from pathlib import Path
from typing import Annotated

import typer

from functions.cli.options import (
    ChannelOption,
    Output,
    OutputOption,
    PriorityClass,
    ReasonOption,
    RolloutArgument,
    Scope,
    with_registry_options,
)

adapter_app = typer.Typer(name="adapter", help="Adapters: from a folder to a model.", no_args_is_help=True)
rollout_app = typer.Typer(name="rollout", help="Rollouts: watched, held, ended.", no_args_is_help=True)
key_app = typer.Typer(name="key", help="API keys of tenants.", no_args_is_help=True)


@adapter_app.command("push")
@with_registry_options
def adapter_push(
    target: Annotated[str, typer.Argument(help="tenant/name@version, such as acme/support-bot@v3.")],
    directory: Annotated[Path, typer.Argument(help="The folder with adapter_config.json and the weights.")],
    *,
    promote_it: Annotated[bool, typer.Option("--promote", help="Move the channel to it at once.")] = False,
    base: Annotated[str | None, typer.Option(help="Of a new model: the base model that it adapts.")] = None,
    channel: ChannelOption = "stable",
    rollout: Annotated[
        str | None, typer.Option(help="The RolloutPolicy by which the model's channels move from now on.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Until gateways know the version; a minute at the most.")] = True,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check an adapter, send it, and register it as a version of a model."""
    from functions.cli import adapter_push as command

    command.push(
        target,
        directory,
        base=base,
        channel=channel if promote_it else None,
        rollout=rollout,
        wait=wait,
        as_json=output is Output.JSON,
    )


@rollout_app.command("ls")
@with_registry_options
def rollout_ls(
    every: Annotated[bool, typer.Option("--all", help="Those that ended, too.")] = False,
    model: Annotated[str | None, typer.Option(help="Of this model only.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """The rollouts that are on their way."""
    from functions.cli import rollout as command

    command.ls(every=every, model=model, as_json=output is Output.JSON)


@rollout_app.command("watch")
@with_registry_options
def rollout_watch(rollout: RolloutArgument, output: OutputOption = Output.TABLE) -> None:
    """Both groups side by side until the rollout ends; exit status 1 where it was rolled back."""
    from functions.cli import rollout as command

    command.watch(rollout, as_json=output is Output.JSON)


@rollout_app.command("pause")
@with_registry_options
def rollout_pause(rollout: RolloutArgument, output: OutputOption = Output.TABLE) -> None:
    """Stay at this stage until it is resumed."""
    from functions.cli import rollout as command

    command.send_action(rollout, "pause", "", as_json=output is Output.JSON)


@rollout_app.command("resume")
@with_registry_options
def rollout_resume(rollout: RolloutArgument, output: OutputOption = Output.TABLE) -> None:
    """Go on after a pause; of one that was rolled back: try again from the beginning."""
    from functions.cli import rollout as command

    command.send_action(rollout, "resume", "", as_json=output is Output.JSON)


@rollout_app.command("promote")
@with_registry_options
def rollout_promote(rollout: RolloutArgument, output: OutputOption = Output.TABLE) -> None:
    """Everything to the new version now, whatever the stages say."""
    from functions.cli import rollout as command

    command.send_action(rollout, "promote", "", as_json=output is Output.JSON)


@rollout_app.command("rollback")
@with_registry_options
def rollout_rollback(rollout: RolloutArgument, reason: ReasonOption = "", output: OutputOption = Output.TABLE) -> None:
    """Everything back to the old version now."""
    from functions.cli import rollout as command

    command.send_action(rollout, "rollback", reason, as_json=output is Output.JSON)


@key_app.command("create")
@with_registry_options
def key_create(
    tenant: Annotated[str, typer.Argument(help="Whose key.")],
    *,
    key_id: Annotated[str | None, typer.Option("--id", help="Its public part; one is made up if absent.")] = None,
    scopes: Annotated[
        list[Scope] | None, typer.Option("--scope", help="What it may do; repeat it for several.")
    ] = None,
    max_class: Annotated[PriorityClass, typer.Option(help="The best class that it may ask for.")] = (
        PriorityClass.INTERACTIVE
    ),
    expires: Annotated[str | None, typer.Option(help="The last day (2027-06-30) or a moment, in UTC.")] = None,
    limits: Annotated[
        list[str] | None,
        typer.Option("--limit", help="requestsPerMinute=60: a limit of this key alone; repeat it for several."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a key and print it, this once."""
    from functions.cli import key as command

    chosen = [scope.value for scope in scopes or [Scope.INFERENCE]]
    command.create(
        tenant,
        key_id=key_id,
        scopes=chosen,
        max_class=max_class.value,
        expires=expires,
        limits=limits or (),
        as_json=output is Output.JSON,
    )


@key_app.command("ls")
@with_registry_options
def key_ls(tenant: Annotated[str, typer.Argument(help="Whose keys.")], output: OutputOption = Output.TABLE) -> None:
    """The keys that the registry made for a tenant; never what they are made of."""
    from functions.cli import key as command

    command.ls(tenant, as_json=output is Output.JSON)


@key_app.command("mint")
def key_mint(
    *,
    key_id: Annotated[str, typer.Option("--id", help="Its public part, unique in the installation.")],
    pepper_file: Annotated[str, typer.Option(help="The installation's pepper; - reads it from standard input.")],
    environment: Annotated[str, typer.Option(help="A word in the key's text, for whoever finds one.")] = "live",
    scopes: Annotated[
        list[Scope] | None, typer.Option("--scope", help="What it may do; repeat it for several.")
    ] = None,
    max_class: Annotated[PriorityClass, typer.Option(help="The best class that it may ask for.")] = (
        PriorityClass.INTERACTIVE
    ),
    expires: Annotated[str | None, typer.Option(help="The last day (2027-06-30) or a moment, in UTC.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a key without a registry, and print what the Tenant's YAML is to list."""
    from functions.cli import key as command

    command.mint(
        key_id,
        pepper_file=pepper_file,
        environment=environment,
        scopes=[scope.value for scope in scopes or [Scope.INFERENCE]],
        max_class=max_class.value,
        expires=expires,
        as_json=output is Output.JSON,
    )


@key_app.command("revoke")
@with_registry_options
def key_revoke(
    tenant: Annotated[str, typer.Argument(help="Whose key.")],
    key_id: Annotated[str, typer.Argument(help="The key's id, as `key create` printed it.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Withdraw a key."""
    from functions.cli import key as command

    command.revoke(tenant, key_id, as_json=output is Output.JSON)


@with_registry_options
def usage(
    *,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    model: Annotated[str | None, typer.Option(help="Only of this model.")] = None,
    pool: Annotated[str | None, typer.Option(help="Only of this pool.")] = None,
    by: Annotated[
        str, typer.Option(help="Comma-separated: tenant, model, version, pool, class, day, hour.")
    ] = "tenant,model",
    since: Annotated[str, typer.Option(help="24h or 7d ago, a date, or 2027-06-30T18:00:00Z.")] = "30d",
    until: Annotated[str | None, typer.Option(help="The same. Default: now.")] = None,
    pools: Annotated[bool, typer.Option("--pools", help="Of each pool: paid, used, idle, and its break-even.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Requests, tokens, accelerator-seconds and cost, by tenant, model, day or what else."""
    from functions.cli import usage as command

    as_json = output is Output.JSON
    if pools:
        command.pools(since=since, until=until, as_json=as_json)
    else:
        command.usage(tenant=tenant, model=model, pool=pool, by=by, since=since, until=until, as_json=as_json)
