"""The `shoal` command: names and options of the commands. Implementations are imported on use, which keeps help fast.

Exit status: 0 success, 1 refused or failed, 2 wrong usage.
"""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from functions.cli import main_cluster, main_files, main_local
from functions.cli.main_drill import drill
from functions.cli.main_models import adapter_app, key_app, rollout_app, usage
from functions.cli.main_simulate import simulate_app
from functions.cli.options import (
    FleetOption,
    ModelsNamespaceOption,
    NamespaceOption,
    Output,
    OutputOption,
    TenantOption,
    with_registry_options,
)

app = typer.Typer(
    name="shoal",
    help="Multi-tenant LLM serving: one base model, a shoal of adapters, one fleet.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"shoal {version('shoal')}")
        raise typer.Exit


@app.callback()
def choose(
    *,
    region: Annotated[
        str | None,
        typer.Option(
            envvar="SHOAL_REGION",
            help="Which local installation to use, if several run here; may also follow the command.",
        ),
    ] = None,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=lambda wanted: _print_version(wanted=wanted),
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """Multi-tenant LLM serving: one base model, a shoal of adapters, one fleet."""
    if region is not None:
        os.environ["SHOAL_REGION"] = region  # every command's settings read this variable


def status(
    *,
    context: FleetOption = None,
    namespace: NamespaceOption = "shoal",
    models_namespace: ModelsNamespaceOption = "shoal-models",
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the running revision, each object's condition and its reason, replicas and processes."""
    if context is not None:
        main_cluster.status(context, namespace, models_namespace, as_json=output is Output.JSON)
        return
    from functions.cli import status as command

    command.status(as_json=output is Output.JSON)


def chat(
    model: Annotated[str, typer.Argument(help="Model id, such as acme/support-bot or smollm2-135m.")],
    *,
    once: Annotated[str | None, typer.Option(help="Prompt to send; prints one answer and exits.")] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, max=8192, help="Maximum number of tokens in an answer.")] = 256,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="Sampling temperature.")] = 0.0,
    tenant: TenantOption = None,
) -> None:
    """Chat with a model and stream its answers; standard input that is not a terminal is one prompt."""
    from functions.cli import chat as command

    command.chat(model, once=once, system=system, max_tokens=max_tokens, temperature=temperature, tenant=tenant)


def logs(
    name: Annotated[
        str,
        typer.Argument(help="Process name from `shoal status`; on a cluster also a pool, a pod or POD/CONTAINER."),
    ],
    *,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Print new lines until interrupted.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, max=10_000, help="Number of lines to print.")] = 50,
    context: FleetOption = None,
    namespace: NamespaceOption = "shoal",
    models_namespace: ModelsNamespaceOption = "shoal-models",
) -> None:
    """Print the end of a process's log."""
    if context is not None:
        main_cluster.logs(context, namespace, models_namespace, name, follow=follow, lines=lines)
        return
    from functions.cli import local_commands as command

    command.logs(name, follow=follow, lines=lines)


@with_registry_options
def top(
    *,
    every_s: Annotated[float, typer.Option("--every", min=0.5, max=60.0, help="Seconds between two refreshes.")] = 2.0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show pools, replicas, adapters by tier and rollouts live; only once if the output is not a terminal."""
    from functions.cli import top as command

    command.top(every_s, as_json=output is Output.JSON)


def trace(
    request_id: Annotated[str, typer.Argument(help="x-request-id of the answer.")],
    *,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Directory of trace files to read instead of the trace store.")
    ] = None,
    context: FleetOption = None,
    namespace: NamespaceOption = "shoal",
    output: OutputOption = Output.TABLE,
) -> None:
    """Show where one request's time went, and why its replica was chosen."""
    from functions.cli import trace as command

    command.trace(request_id, directory, cluster=context, namespace=namespace, as_json=output is Output.JSON)


def traces(
    *,
    tenant: Annotated[str | None, typer.Option(help="Tenant of the requests.")] = None,
    model: Annotated[str | None, typer.Option(help="Model that answered: tenant/name, or tenant/name@version.")] = None,
    pool: Annotated[str | None, typer.Option(help="Pool of the requests.")] = None,
    replica: Annotated[str | None, typer.Option(help="Replica of the last attempt.")] = None,
    trace_id: Annotated[str | None, typer.Option("--trace-id", help="Trace id from a `traceparent` header.")] = None,
    errors: Annotated[
        bool, typer.Option("--errors", help="Show only requests answered with a status of 400 or above.")
    ] = False,
    slow: Annotated[bool, typer.Option("--slow", help="Slowest requests first, instead of newest.")] = False,
    over: Annotated[str | None, typer.Option(help="Minimum total duration, such as 2s or 500ms.")] = None,
    since: Annotated[str, typer.Option(help="Maximum age, such as 90s, 15m, 2h or 7d.")] = "1h",
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=10_000, help="Maximum number of requests.")] = 50,
    context: FleetOption = None,
    namespace: NamespaceOption = "shoal",
    output: OutputOption = Output.TABLE,
) -> None:
    """Search requests by tenant, model, pool, replica, duration or error."""
    from functions.cli import trace as command
    from functions.telemetry.store.questions import Search

    asked = Search(
        command.since(since), tenant=tenant, model=model, pool=pool, replica=replica, trace_id=trace_id,
        errors=errors, over_ms=command.over_ms(over), slowest_first=slow, limit=limit,
    )  # fmt: skip
    command.traces(asked, cluster=context, namespace=namespace, as_json=output is Output.JSON)


_COMMANDS = (  # in the order of the help text
    usage,
    main_cluster.doctor,
    main_cluster.secrets,
    main_cluster.events,
    main_cluster.console,
    drill,
    main_local.up,
    main_local.prepare,
    main_local.down,
    main_local.front,
    main_local.env,
    status,
    chat,
    main_local.restart,
    main_cluster.drain,
    main_local.clear_accelerator,
    main_local.suspend,
    main_local.resume,
    main_local.reconcile,
    main_files.diff,
    main_files.plan,
    logs,
    main_files.validate,
    main_files.schema,
    top,
    main_files.promote,
    trace,
    traces,
    main_files.capacity,
)
for group in (adapter_app, rollout_app, key_app, main_cluster.base_app, simulate_app):
    app.add_typer(group)
for command in _COMMANDS:
    app.command()(command)


def main() -> None:
    from functions.cli.on_a_cluster import refuse_local_commands
    from functions.cli.refused import CommandRefused

    try:
        refuse_local_commands(sys.argv[1:])
        app(_region_first(sys.argv[1:]))
    except CommandRefused as error:
        sys.stderr.write(f"shoal: {error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of the output has exited
        sys.exit(1)


def _region_first(arguments: list[str]) -> list[str]:
    """Move `--region` to the front, so that it may also follow the command: `up --region a` becomes `--region a up`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    for index, argument in enumerate(arguments[:end]):
        taken = 2 if argument == "--region" else 1
        if argument == "--region" or argument.startswith("--region="):
            return [*arguments[index : index + taken], *arguments[:index], *arguments[index + taken :]]
    return arguments


if __name__ == "__main__":
    main()
