"""Names and options of the commands for the local fleet. Implementations are imported on use, as in `main`."""

from typing import Annotated

import typer

from functions.cli.options import (
    EngineChoice,
    EngineOption,
    FleetOption,
    ModelsNamespaceOption,
    NamespaceOption,
    Output,
    OutputOption,
    ReplicasOption,
    TenantOption,
)


def up(
    engine: EngineOption = EngineChoice.VLLM,
    replicas: ReplicasOption = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return once the controller runs.")] = False,
) -> None:
    """Start the local fleet, or bring the running one to these options; ends with a first answer."""
    from functions.cli import up as command

    command.up(engine.value, replicas, detach=detach)


def prepare(engine: EngineOption = EngineChoice.VLLM) -> None:
    """Make what the fleet needs (engine environment, base model, certificates …) and start nothing."""
    from functions.cli import up

    up.prepare(engine.value)


def down() -> None:
    """Drain and stop the local fleet; nothing is left running, whoever started it."""
    from functions.cli import up as command

    command.down()


def front(
    print_only: Annotated[
        bool, typer.Option("--print", help="Show haproxy's configuration and start nothing.")
    ] = False,
) -> None:
    """One address for all regions of this machine: haproxy, in the foreground, until it is ended."""
    from functions.cli import front as command

    command.front(print_only=print_only)


def env(tenant: TenantOption = None, output: OutputOption = Output.TABLE) -> None:
    """Print the exports with which any OpenAI client talks to the local fleet: eval "$(shoal env)"."""
    from functions.cli import local_commands as command

    command.env(tenant, as_json=output is Output.JSON)


def restart(
    name: Annotated[
        str,
        typer.Argument(help="A process or a replica, as `shoal status` names it; on a cluster a process or a pool."),
    ],
    context: FleetOption = None,
    namespace: NamespaceOption = "shoal",
    models_namespace: ModelsNamespaceOption = "shoal-models",
) -> None:
    """Restart one process or replica: drained first; the gateway without refusing a connection. On a cluster, as its
    kind rolls pods: a pool one replica after the other."""
    if context is not None:
        from functions.cli.cluster.access import ClusterChoice
        from functions.cli.cluster.restart import restart as in_cluster

        in_cluster(ClusterChoice(context, namespace, models_namespace), name)
        return
    from functions.cli import local_commands as command

    command.restart(name)


def clear_accelerator(
    replica: Annotated[str, typer.Argument(help="The replica that is out for its accelerator.")],
) -> None:
    """A failed accelerator was looked after: its replica takes requests again. On Kubernetes annotate the node."""
    from functions.cli import local_commands as command

    command.clear_accelerator(replica)


def suspend(
    reason: Annotated[str, typer.Option(help="Why, for whoever looks at `shoal status`.")] = "",
    context: FleetOption = None,
    namespace: NamespaceOption = "shoal",
) -> None:
    """Stop following the branch, or a cluster's objects: what runs goes on, nothing is changed."""
    if context is not None:
        from functions.cli.cluster import orders
        from functions.cli.cluster.access import ClusterChoice

        orders.suspend(ClusterChoice(context, namespace), reason)
        return
    from functions.cli import local_commands

    local_commands.suspend(reason)


def resume(context: FleetOption = None, namespace: NamespaceOption = "shoal") -> None:
    """Follow again, beginning with what came meanwhile."""
    if context is not None:
        from functions.cli.cluster import orders
        from functions.cli.cluster.access import ClusterChoice

        orders.resume(ClusterChoice(context, namespace))
        return
    from functions.cli import local_commands

    local_commands.resume()


def reconcile(context: FleetOption = None, namespace: NamespaceOption = "shoal") -> None:
    """Look now, and make sure that everything is as declared."""
    if context is not None:
        from functions.cli.cluster import orders
        from functions.cli.cluster.access import ClusterChoice

        orders.reconcile(ClusterChoice(context, namespace))
        return
    from functions.cli import local_commands

    local_commands.reconcile()
