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

adapter_app = typer.Typer(name="adapter", help="Publish adapters.", no_args_is_help=True)
rollout_app = typer.Typer(name="rollout", help="Watch and control rollouts.", no_args_is_help=True)
key_app = typer.Typer(name="key", help="Manage API keys of tenants.", no_args_is_help=True)


@adapter_app.command("push")
@with_registry_options
def adapter_push(
    target: Annotated[str, typer.Argument(help="Model and version: tenant/name@version, such as acme/support-bot@v3.")],
    directory: Annotated[Path, typer.Argument(help="Folder with adapter_config.json and the weights.")],
    *,
    promote_it: Annotated[bool, typer.Option("--promote", help="Move the channel to the version.")] = False,
    base: Annotated[str | None, typer.Option(help="Base model, if the model is new.")] = None,
    channel: ChannelOption = "stable",
    rollout: Annotated[
        str | None, typer.Option(help="RolloutPolicy that moves the model's channels from now on.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until gateways know the version, at most a minute.")] = True,
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
    every: Annotated[bool, typer.Option("--all", help="Include rollouts that ended.")] = False,
    model: Annotated[str | None, typer.Option(help="Model of the rollouts.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List active rollouts, or with --all also those that ended."""
    from functions.cli import rollout as command

    command.ls(every=every, model=model, as_json=output is Output.JSON)


@rollout_app.command("watch")
@with_registry_options
def rollout_watch(rollout: RolloutArgument, output: OutputOption = Output.TABLE) -> None:
    """Show both groups side by side until the rollout ends; exit status 1 if it was rolled back."""
    from functions.cli import rollout as command

    command.watch(rollout, as_json=output is Output.JSON)


@rollout_app.command("pause")
@with_registry_options
def rollout_pause(rollout: RolloutArgument, output: OutputOption = Output.TABLE) -> None:
    """Hold a rollout at its current stage until it is resumed."""
    from functions.cli import rollout as command

    command.send_action(rollout, "pause", "", as_json=output is Output.JSON)


@rollout_app.command("resume")
@with_registry_options
def rollout_resume(rollout: RolloutArgument, output: OutputOption = Output.TABLE) -> None:
    """Continue a paused rollout, or restart one that was rolled back."""
    from functions.cli import rollout as command

    command.send_action(rollout, "resume", "", as_json=output is Output.JSON)


@rollout_app.command("promote")
@with_registry_options
def rollout_promote(rollout: RolloutArgument, output: OutputOption = Output.TABLE) -> None:
    """Send all traffic to the new version now, regardless of the stages."""
    from functions.cli import rollout as command

    command.send_action(rollout, "promote", "", as_json=output is Output.JSON)


@rollout_app.command("rollback")
@with_registry_options
def rollout_rollback(rollout: RolloutArgument, reason: ReasonOption = "", output: OutputOption = Output.TABLE) -> None:
    """Return all traffic to the old version now."""
    from functions.cli import rollout as command

    command.send_action(rollout, "rollback", reason, as_json=output is Output.JSON)


@key_app.command("create")
@with_registry_options
def key_create(
    tenant: Annotated[str, typer.Argument(help="Tenant of the key.")],
    *,
    key_id: Annotated[str | None, typer.Option("--id", help="Public part of the key; random by default.")] = None,
    scopes: Annotated[
        list[Scope] | None, typer.Option("--scope", help="Permission of the key; repeatable. Default: inference.")
    ] = None,
    max_class: Annotated[PriorityClass, typer.Option(help="Highest class that the key may request.")] = (
        PriorityClass.INTERACTIVE
    ),
    expires: Annotated[str | None, typer.Option(help="Last day (2027-06-30) or a time, in UTC.")] = None,
    limits: Annotated[
        list[str] | None,
        typer.Option("--limit", help="Limit of this key alone, such as requestsPerMinute=60; repeatable."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a key and print it. It is never shown again."""
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
def key_ls(
    tenant: Annotated[str, typer.Argument(help="Tenant of the keys.")], output: OutputOption = Output.TABLE
) -> None:
    """List the keys that the registry created for a tenant, without their secrets."""
    from functions.cli import key as command

    command.ls(tenant, as_json=output is Output.JSON)


@key_app.command("mint")
def key_mint(
    *,
    key_id: Annotated[str, typer.Option("--id", help="Public part of the key, unique in the installation.")],
    pepper_file: Annotated[str, typer.Option(help="File with the installation's pepper, or - for standard input.")],
    environment: Annotated[str, typer.Option(help="Environment name in the key's text.")] = "live",
    scopes: Annotated[
        list[Scope] | None, typer.Option("--scope", help="Permission of the key; repeatable. Default: inference.")
    ] = None,
    max_class: Annotated[PriorityClass, typer.Option(help="Highest class that the key may request.")] = (
        PriorityClass.INTERACTIVE
    ),
    expires: Annotated[str | None, typer.Option(help="Last day (2027-06-30) or a time, in UTC.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a key without a registry, and print the entry for the Tenant's YAML."""
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
    tenant: Annotated[str, typer.Argument(help="Tenant of the key.")],
    key_id: Annotated[str, typer.Argument(help="Id of the key, as printed by `key create`.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Revoke a key."""
    from functions.cli import key as command

    command.revoke(tenant, key_id, as_json=output is Output.JSON)


@with_registry_options
def usage(
    *,
    tenant: Annotated[str | None, typer.Option(help="Tenant whose usage to show.")] = None,
    model: Annotated[str | None, typer.Option(help="Model whose usage to show.")] = None,
    pool: Annotated[str | None, typer.Option(help="Pool whose usage to show.")] = None,
    by: Annotated[
        str, typer.Option(help="Groups, comma-separated: tenant, model, version, pool, class, day, hour.")
    ] = "tenant,model",
    since: Annotated[str, typer.Option(help="Start: 24h or 7d ago, a date, or 2027-06-30T18:00:00Z.")] = "30d",
    until: Annotated[str | None, typer.Option(help="End, in the same formats; by default now.")] = None,
    pools: Annotated[bool, typer.Option("--pools", help="Show paid, used and idle time of pools.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show requests, tokens, accelerator-seconds and cost by tenant, model, day or other groups."""
    from functions.cli import usage as command

    as_json = output is Output.JSON
    if pools:
        command.pools(since=since, until=until, as_json=as_json)
    else:
        command.usage(tenant=tenant, model=model, pool=pool, by=by, since=since, until=until, as_json=as_json)
