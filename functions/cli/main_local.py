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
    detach: Annotated[bool, typer.Option("--detach", help="Return as soon as the controller runs.")] = False,
) -> None:
    """Start the local fleet, or change the running one to these options, and show a first answer."""
    from functions.cli import up as command

    command.up(engine.value, replicas, detach=detach)


def prepare(engine: EngineOption = EngineChoice.VLLM) -> None:
    """Prepare what the fleet needs (engine environment, base model, certificates …) without starting it."""
    from functions.cli import up

    up.prepare(engine.value)


def down() -> None:
    """Drain and stop all processes of the local fleet."""
    from functions.cli import up as command

    command.down()


def front(
    print_only: Annotated[
        bool, typer.Option("--print", help="Print haproxy's configuration instead of starting it.")
    ] = False,
) -> None:
    """Run haproxy in the foreground as one address for all regions of this machine."""
    from functions.cli import front as command

    command.front(print_only=print_only)


def env(tenant: TenantOption = None, output: OutputOption = Output.TABLE) -> None:
    """Print environment variables for OpenAI clients of the local fleet: eval "$(shoal env)"."""
    from functions.cli import local_commands as command

    command.env(tenant, as_json=output is Output.JSON)


def restart(
    name: Annotated[
        str,
        typer.Argument(help="Process or replica from `shoal status`; on a cluster a process or a pool."),
    ],
    context: FleetOption = None,
    namespace: NamespaceOption = "shoal",
    models_namespace: ModelsNamespaceOption = "shoal-models",
) -> None:
    """Restart one process or replica. It drains first, and the gateway refuses no connection meanwhile.

    On a cluster the pods are replaced in a rolling update, for a pool one replica after the other.
    """
    if context is not None:
        from functions.cli.cluster.access import ClusterChoice
        from functions.cli.cluster.restart import restart as in_cluster

        in_cluster(ClusterChoice(context, namespace, models_namespace), name)
        return
    from functions.cli import local_commands as command

    command.restart(name)


def clear_accelerator(
    replica: Annotated[str, typer.Argument(help="Replica that is out of service because of its accelerator.")],
) -> None:
    """Return a replica to service after its failed accelerator was repaired. On Kubernetes annotate the node."""
    from functions.cli import local_commands as command

    command.clear_accelerator(replica)


def suspend(
    reason: Annotated[str, typer.Option(help="Reason, which `shoal status` shows.")] = "",
    context: FleetOption = None,
    namespace: NamespaceOption = "shoal",
) -> None:
    """Stop following the branch, or a cluster's objects. Running processes continue unchanged."""
    if context is not None:
        from functions.cli.cluster import orders
        from functions.cli.cluster.access import ClusterChoice

        orders.suspend(ClusterChoice(context, namespace), reason)
        return
    from functions.cli import local_commands

    local_commands.suspend(reason)


def resume(context: FleetOption = None, namespace: NamespaceOption = "shoal") -> None:
    """Follow the branch or objects again, and apply the changes made meanwhile."""
    if context is not None:
        from functions.cli.cluster import orders
        from functions.cli.cluster.access import ClusterChoice

        orders.resume(ClusterChoice(context, namespace))
        return
    from functions.cli import local_commands

    local_commands.resume()


def reconcile(context: FleetOption = None, namespace: NamespaceOption = "shoal") -> None:
    """Reconcile now: apply the declared configuration and correct deviations."""
    if context is not None:
        from functions.cli.cluster import orders
        from functions.cli.cluster.access import ClusterChoice

        orders.reconcile(ClusterChoice(context, namespace))
        return
    from functions.cli import local_commands

    local_commands.reconcile()
