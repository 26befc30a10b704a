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
        Path | None, typer.Argument(help="Folder or file of the configuration; by default the current folder.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what a configuration would change in the running fleet."""
    from functions.cli import diff as command

    command.diff(path, as_json=output is Output.JSON)


def plan(
    path: Annotated[
        Path | None, typer.Argument(help="Folder, or with --rev a repository; by default the current folder.")
    ] = None,
    *,
    base: Annotated[
        str | None,
        typer.Option(help="Revision to compare with; by default what the cluster or the local fleet runs, else HEAD."),
    ] = None,
    revision: Annotated[
        str | None, typer.Option("--rev", help="Revision to plan instead of the working tree's files.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Trace of requests to simulate; by default the fleet's own last hour, else synthetic ones."),
    ] = None,
    pool: Annotated[
        list[str] | None,
        typer.Option(help="Pool for requests of a trace without pools; repeatable. Default: pools that change."),
    ] = None,
    load: Annotated[
        list[str] | None,
        typer.Option(help="Load as a share of capacity (0.7, or POOL=0.7); ignored for the fleet's own trace."),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=50, help="Number of traffic windows, each simulated on both sides.")
    ] = 5,
    requests: Annotated[int, typer.Option(min=50, max=200_000, help="Maximum number of requests in a window.")] = 4_000,
    start: Annotated[
        StartSource,
        typer.Option(help="Start of a new replica: it waits for an accelerator (cold), or only for its weights."),
    ] = "cold",
    plot: Annotated[
        Path | None, typer.Option(help="File (.svg or .png) for a chart of queue, first tokens and replicas.")
    ] = None,
    context: FleetOption = None,
    namespace: NamespaceOption = "shoal",
    models_namespace: ModelsNamespaceOption = "shoal-models",
    output: OutputOption = Output.TABLE,
) -> None:
    """Simulate how a configuration changes first tokens, rejections and cost; exit 1 if it breaks a promise."""
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
        typer.Option(
            envvar="SHOAL_CRDS_DIR", help="Folder with KServe's CRDs, to check InferenceServices against them too."
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check a configuration, and report each problem with its file, line and correction.

    Without a path, check inferenceservices/, policies/ and registry/ in the current folder, like `shoal up`.
    """
    from functions.cli import validate as command

    command.validate(paths or [], crds_dir=crds, as_json=output is Output.JSON)


def schema(
    *,
    kind: Annotated[str | None, typer.Option(help="Kind to print, such as Tenant; by default all.")] = None,
    crd: Annotated[bool, typer.Option("--crd", help="Print CustomResourceDefinitions as YAML.")] = False,
    write: Annotated[Path | None, typer.Option(help="With --crd: folder in which to write a file for each.")] = None,
) -> None:
    """Print the kinds as JSON Schema, which editors understand, or as CustomResourceDefinitions for Kubernetes."""
    from functions.cli import schema as command

    command.schema(kind=kind, crd=crd, write=write)


@with_registry_options
def promote(
    model: Annotated[str, typer.Argument(help="Model id: tenant/name.")],
    version: Annotated[str, typer.Argument(help="Version of the model.")],
    channel: ChannelOption = "stable",
    output: OutputOption = Output.TABLE,
) -> None:
    """Move a channel to another version: edit the YAML for you to commit, or call the registry."""
    from functions.cli import promote as command

    command.promote(model, version, channel, as_json=output is Output.JSON)


def capacity(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Files or folders of InferenceServices; by default inferenceservices/.")
    ] = None,
    *,
    pool: Annotated[list[str] | None, typer.Option(help="Pool to include; repeatable. Default: all.")] = None,
    model_dir: Annotated[Path | None, typer.Option(help="Folder of the model, whose config.json is read.")] = None,
    on: Annotated[
        list[str] | None,
        typer.Option("--accelerator", help="PRODUCT or POOL=PRODUCT; NAME=GiB:TB/s:TFLOPS16:TFLOPS8 if unlisted."),
    ] = None,
    load: Annotated[list[str] | None, typer.Option(help="Load for which to count replicas: POOL=REQUESTS/S.")] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, max=1_000_000, help="Median prompt tokens of a request.")] = 1000,
    output_tokens: Annotated[int, typer.Option(min=1, max=100_000, help="Median output tokens of a request.")] = 200,
    ttft_slo: Annotated[str, typer.Option(help="Time to first token that 99 % of requests must meet.")] = "1500ms",
    itl_slo: Annotated[
        str | None, typer.Option(help="Time between tokens for 99 %, such as 100ms. Default: none.")
    ] = None,
    nodes: Annotated[
        list[str] | None, typer.Option(help="Nodes for placement, such as 16x8xNVIDIA-H100-80GB-HBM3; repeatable.")
    ] = None,
    price: Annotated[
        list[str] | None, typer.Option(help="Price of an accelerator an hour: PRICE or PRODUCT=PRICE; any currency.")
    ] = None,
    api_price: Annotated[
        float | None, typer.Option(min=0.000001, help="Price of a million tokens elsewhere, for the break-even.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compute the memory of models, replicas for a load, their placement, and the cost of a million tokens."""
    from functions.cli import capacity_options
    from functions.cli.capacity import capacity as command

    wanted = capacity_options.capacity_request(
        pools=pool or [], model_dir=model_dir, products=on or [], loads=load or [], prompt_tokens=prompt_tokens,
        output_tokens=output_tokens, ttft_slo=ttft_slo, itl_slo=itl_slo, nodes=nodes or [], prices=price or [],
        api_price=api_price,
    )  # fmt: skip
    command(paths or [], wanted, as_json=output is Output.JSON)
