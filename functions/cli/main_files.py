"""Names and options of the commands for configuration files. Implementations are imported on use, as in `main`."""

from pathlib import Path
from typing import Annotated

import typer

from functions.cli.options import (
    ChannelOption,
    FleetOption,
    ModelsNamespaceOption,
    NamespaceOption,
    Output,
    OutputOption,
    with_registry_options,
)
from functions.simulator.fleet.start_times import StartSource


@with_registry_options
def diff(
    path: Annotated[
        Path | None, typer.Argument(help="A folder or a file; by default the folder that you are in.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """What a configuration would change in what the fleet runs now."""
    from functions.cli import diff as command

    command.diff(path, as_json=output is Output.JSON)


def plan(
    path: Annotated[
        Path | None, typer.Argument(help="A folder, or a repository with --rev; by default the folder that you are in.")
    ] = None,
    *,
    base: Annotated[
        str | None,
        typer.Option(help="A revision to compare with. None: what the cluster or the local fleet runs, else HEAD."),
    ] = None,
    revision: Annotated[
        str | None, typer.Option("--rev", help="Plan this revision instead of the files of the working tree.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Requests to play. None: the fleet's own last hour, else made up."),
    ] = None,
    pool: Annotated[
        list[str] | None, typer.Option(help="Pools of a trace that names none; repeat. None: those that change.")
    ] = None,
    load: Annotated[
        list[str] | None,
        typer.Option(help="Of a trace that is not the fleet's own: 0.7 of what its replicas can do, or POOL=0.7."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=50, help="Windows of the traffic, each played on both sides.")] = 5,
    requests: Annotated[int, typer.Option(min=50, max=200_000, help="Of a window, at most.")] = 4_000,
    start: Annotated[
        StartSource,
        typer.Option(help="What a replica that is started waits for: an accelerator (cold), or its weights."),
    ] = "cold",
    plot: Annotated[Path | None, typer.Option(help="Draw queue, first tokens and replicas: .svg or .png.")] = None,
    context: FleetOption = None,
    namespace: NamespaceOption = "shoal",
    models_namespace: ModelsNamespaceOption = "shoal-models",
    output: OutputOption = Output.TABLE,
) -> None:
    """What a configuration would do to first tokens, refusals and cost, simulated; exit 1 where it breaks a promise."""
    from functions.cli import plan as command
    from functions.cli.cluster.access import ClusterChoice

    cluster = ClusterChoice(context, namespace, models_namespace) if context is not None else None
    command.plan(
        path,
        command.PlanRequest(
            base=base, revision=revision, trace=trace, pools=pool or [], loads=load or [], seeds=seeds,
            requests=requests, start=start, plot=plot, cluster=cluster, as_json=output is Output.JSON,
        ),
    )  # fmt: skip


def validate(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Files and folders of YAML, or - for standard input.")
    ] = None,
    *,
    crds: Annotated[
        Path | None,
        typer.Option(envvar="SHOAL_CRDS_DIR", help="A folder with KServe's CRDs: judge InferenceServices by them too."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check a configuration: what is wrong, in which file and line, and how to put it right.

    Without a path: inferenceservices/, policies/ and registry/ of this folder, as `shoal up` takes them.
    """
    from functions.cli import validate as command

    command.validate(paths or [], crds_dir=crds, as_json=output is Output.JSON)


def schema(
    *,
    kind: Annotated[str | None, typer.Option(help="One kind only, such as Tenant.")] = None,
    crd: Annotated[bool, typer.Option("--crd", help="CustomResourceDefinitions, as YAML.")] = False,
    write: Annotated[Path | None, typer.Option(help="With --crd: write a file for each into this folder.")] = None,
) -> None:
    """Print the kinds as JSON Schema, which editors understand, or as CustomResourceDefinitions for Kubernetes."""
    from functions.cli import schema as command

    command.schema(kind=kind, crd=crd, write=write)


@with_registry_options
def promote(
    model: Annotated[str, typer.Argument(help="tenant/name.")],
    version: Annotated[str, typer.Argument(help="A version that the model has.")],
    channel: ChannelOption = "stable",
    output: OutputOption = Output.TABLE,
) -> None:
    """Move a channel to another version: edits the YAML for you to commit, or asks the registry."""
    from functions.cli import promote as command

    command.promote(model, version, channel, as_json=output is Output.JSON)


def capacity(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="InferenceServices: files or folders. None: inferenceservices/.")
    ] = None,
    *,
    pool: Annotated[list[str] | None, typer.Option(help="Only these pools; repeat.")] = None,
    model_dir: Annotated[Path | None, typer.Option(help="The model's folder: its config.json is read.")] = None,
    on: Annotated[
        list[str] | None,
        typer.Option("--accelerator", help="PRODUCT or POOL=PRODUCT; NAME=GiB:TB/s:TFLOPS16:TFLOPS8 for another."),
    ] = None,
    load: Annotated[list[str] | None, typer.Option(help="POOL=REQUESTS/S: how many replicas does it take?")] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, max=1_000_000, help="Median, of the load.")] = 1000,
    output_tokens: Annotated[int, typer.Option(min=1, max=100_000, help="Median, of the load.")] = 200,
    ttft_slo: Annotated[str, typer.Option(help="For 99 of 100 first tokens.")] = "1500ms",
    itl_slo: Annotated[str | None, typer.Option(help="The same between tokens, such as 100ms. None: any.")] = None,
    nodes: Annotated[
        list[str] | None, typer.Option(help="Where to place them: 16x8xNVIDIA-H100-80GB-HBM3; repeat.")
    ] = None,
    price: Annotated[
        list[str] | None, typer.Option(help="PRICE or PRODUCT=PRICE of an accelerator an hour, in your money.")
    ] = None,
    api_price: Annotated[
        float | None, typer.Option(min=0.000001, help="What a million tokens cost elsewhere, for the break-even.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """What models need of memory, how many replicas a load takes, where they fit, what a million tokens cost."""
    from functions.cli import capacity_options
    from functions.cli.capacity import capacity as command

    wanted = capacity_options.capacity_request(
        pools=pool or [], model_dir=model_dir, products=on or [], loads=load or [], prompt_tokens=prompt_tokens,
        output_tokens=output_tokens, ttft_slo=ttft_slo, itl_slo=itl_slo, nodes=nodes or [], prices=price or [],
        api_price=api_price,
    )  # fmt: skip
    command(paths or [], wanted, as_json=output is Output.JSON)
