"""The `shoal` command: names and options. What a command does is imported when it is called, so that help is fast.

Exit status: 0 good, 1 refused or failed, 2 wrong usage.
"""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from functions.cli import main_cluster
from functions.cli.main_drill import drill
from functions.cli.main_models import adapter_app, key_app, rollout_app, usage
from functions.cli.main_simulate import simulate_app
from functions.cli.options import (
    ChannelOption,
    Engine,
    EngineOption,
    FleetOption,
    ModelsNamespaceOption,
    NamespaceOption,
    Output,
    OutputOption,
    ReplicasOption,
    TenantOption,
)

app = typer.Typer(
    name="shoal",
    help="One base model, a shoal of adapters, one fleet.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def choose(
    region: Annotated[
        str | None,
        typer.Option(
            envvar="SHOAL_REGION",
            help="Of several installations on this machine, the one that is meant; may stand behind the command, too.",
        ),
    ] = None,
) -> None:
    """One base model, a shoal of adapters, one fleet."""
    if region is not None:
        os.environ["SHOAL_REGION"] = region  # as every command's settings read it


app.add_typer(adapter_app)
app.add_typer(rollout_app)
app.add_typer(key_app)
app.add_typer(main_cluster.base_app)
app.add_typer(simulate_app)
app.command()(usage)
app.command()(main_cluster.doctor)
app.command()(main_cluster.secrets)
app.command()(main_cluster.events)
app.command()(main_cluster.console)
app.command()(drill)


@app.command()
def up(
    engine: EngineOption = Engine.VLLM,
    replicas: ReplicasOption = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return once the controller runs.")] = False,
) -> None:
    """Start the local fleet, or bring the running one to what is asked; ends with a first answer."""
    from functions.cli import up as command

    command.up(engine.value, replicas, detach=detach)


@app.command()
def prepare(engine: EngineOption = Engine.VLLM) -> None:
    """Make what the fleet needs (engine environment, base model, certificates …) and start nothing."""
    from functions.cli import up

    up.prepare(engine.value)


@app.command()
def down() -> None:
    """Drain and stop the local fleet; nothing is left running, whoever started it."""
    from functions.cli import up as command

    command.down()


@app.command()
def front(
    print_only: Annotated[
        bool, typer.Option("--print", help="Show haproxy's configuration and start nothing.")
    ] = False,
) -> None:
    """One address for all regions of this machine: haproxy, in the foreground, until it is ended."""
    from functions.cli import front as command

    command.front(print_only=print_only)


@app.command()
def env(tenant: TenantOption = None, output: OutputOption = Output.TABLE) -> None:
    """Print the exports with which any OpenAI client talks to the local fleet: eval "$(shoal env)"."""
    from functions.cli import local_commands as command

    command.env(tenant, as_json=output is Output.JSON)


@app.command()
def status(
    *,
    context: FleetOption = None,
    namespace: NamespaceOption = "shoal",
    models_namespace: ModelsNamespaceOption = "shoal-models",
    output: OutputOption = Output.TABLE,
) -> None:
    """The revision that runs, the condition of every object and why it is not ready, replicas and processes."""
    if context is not None:
        main_cluster.status(context, namespace, models_namespace, as_json=output is Output.JSON)
        return
    from functions.cli import status as command

    command.status(as_json=output is Output.JSON)


@app.command()
def chat(
    model: Annotated[str, typer.Argument(help="A model id, such as acme/support-bot or smollm2-135m.")],
    *,
    once: Annotated[str | None, typer.Option(help="One prompt, one answer.")] = None,
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, max=8192)] = 256,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0)] = 0.0,
    tenant: TenantOption = None,
) -> None:
    """Talk to a model, streaming; reads one prompt from standard input when that is not a terminal."""
    from functions.cli import chat as command

    command.chat(model, once=once, system=system, max_tokens=max_tokens, temperature=temperature, tenant=tenant)


@app.command()
def restart(name: Annotated[str, typer.Argument(help="A process or a replica, as `shoal status` names it.")]) -> None:
    """Restart one process or replica: drained first; the gateway without refusing a connection."""
    from functions.cli import local_commands as command

    command.restart(name)


@app.command("clear-accelerator")
def clear_accelerator(
    replica: Annotated[str, typer.Argument(help="The replica that is out for its accelerator.")],
) -> None:
    """A failed accelerator was looked after: its replica takes requests again. On Kubernetes annotate the node."""
    from functions.cli import local_commands as command

    command.clear_accelerator(replica)


@app.command()
def suspend(reason: Annotated[str, typer.Option(help="Why, for whoever looks at `shoal status`.")] = "") -> None:
    """Stop following the branch: what runs goes on, nothing is changed."""
    from functions.cli import local_commands

    local_commands.suspend(reason)


@app.command()
def resume() -> None:
    """Follow the branch again, beginning with what came meanwhile."""
    from functions.cli import local_commands

    local_commands.resume()


@app.command()
def reconcile() -> None:
    """Look at the branch now, and make sure that everything is as it says."""
    from functions.cli import local_commands

    local_commands.reconcile()


@app.command()
def diff(
    path: Annotated[
        Path | None, typer.Argument(help="A folder or a file; by default the folder that you are in.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """What a configuration would change in what the fleet runs now."""
    from functions.cli import diff as command

    command.diff(path, as_json=output is Output.JSON)


@app.command()
def plan(
    path: Annotated[
        Path | None, typer.Argument(help="A folder, or a repository with --rev; by default the folder that you are in.")
    ] = None,
    *,
    base: Annotated[
        str | None, typer.Option(help="A revision to compare with. None: what the local fleet runs, else HEAD.")
    ] = None,
    revision: Annotated[
        str | None, typer.Option("--rev", help="Plan this revision instead of the files of the working tree.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Requests to play. None: the fleet's own last hour, else made up."),
    ] = None,
    pool: Annotated[
        list[str] | None, typer.Option(help="Who is asked where the trace does not say; repeat. None: what changes.")
    ] = None,
    load: Annotated[
        list[str] | None,
        typer.Option(help="Of a trace that is not the fleet's own: 0.7 of what its replicas can do, or POOL=0.7."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=50, help="Windows of the traffic, each played on both sides.")] = 5,
    requests: Annotated[int, typer.Option(min=50, max=200_000, help="Of a window, at most.")] = 4_000,
    plot: Annotated[Path | None, typer.Option(help="Draw queue, first tokens and replicas: .svg or .png.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """What a configuration would do to first tokens, refusals and cost, simulated; exit 1 where it breaks a promise."""
    from functions.cli import plan as command

    command.plan(
        path,
        command.PlanRequest(
            base=base, revision=revision, trace=trace, pools=pool or [], loads=load or [], seeds=seeds,
            requests=requests, plot=plot, as_json=output is Output.JSON,
        ),
    )  # fmt: skip


@app.command()
def logs(
    name: Annotated[
        str,
        typer.Argument(help="A process, as `shoal status` names it; on a cluster a pool or pod too, or POD/CONTAINER."),
    ],
    *,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on printing what is added.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, max=10_000)] = 50,
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


@app.command()
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


@app.command()
def schema(
    *,
    kind: Annotated[str | None, typer.Option(help="One kind only, such as Tenant.")] = None,
    crd: Annotated[bool, typer.Option("--crd", help="CustomResourceDefinitions, as YAML.")] = False,
    write: Annotated[Path | None, typer.Option(help="With --crd: write a file for each into this folder.")] = None,
) -> None:
    """Print the kinds as JSON Schema, which editors understand, or as CustomResourceDefinitions for Kubernetes."""
    from functions.cli import schema as command

    command.schema(kind=kind, crd=crd, write=write)


@app.command()
def top(
    *,
    every_s: Annotated[float, typer.Option("--every", min=0.5, max=60.0, help="Seconds between two looks.")] = 2.0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Pools, replicas, adapters by tier and rollouts, live; one look where there is no terminal."""
    from functions.cli import top as command

    command.top(every_s, as_json=output is Output.JSON)


@app.command()
def promote(
    model: Annotated[str, typer.Argument(help="tenant/name.")],
    version: Annotated[str, typer.Argument(help="A version that the model has.")],
    channel: ChannelOption = "stable",
    output: OutputOption = Output.TABLE,
) -> None:
    """Move a channel to another version: edits the YAML for you to commit, or asks the registry."""
    from functions.cli import promote as command

    command.promote(model, version, channel, as_json=output is Output.JSON)


@app.command()
def trace(
    request_id: Annotated[str, typer.Argument(help="The x-request-id of an answer.")],
    *,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Only these trace files, such as another gateway's.")
    ] = None,
    context: FleetOption = None,
    namespace: NamespaceOption = "shoal",
    output: OutputOption = Output.TABLE,
) -> None:
    """One request's waterfall: where its time went, and why it went to that replica."""
    from functions.cli import trace as command

    command.trace(request_id, directory, cluster=context, namespace=namespace, as_json=output is Output.JSON)


@app.command()
def traces(
    *,
    tenant: Annotated[str | None, typer.Option(help="Of this tenant alone.")] = None,
    model: Annotated[str | None, typer.Option(help="Answered by it: tenant/name, or tenant/name@version.")] = None,
    pool: Annotated[str | None, typer.Option(help="Of this pool alone.")] = None,
    replica: Annotated[str | None, typer.Option(help="Last asked of this replica.")] = None,
    trace_id: Annotated[str | None, typer.Option("--trace-id", help="Of one trace: of a `traceparent`.")] = None,
    errors: Annotated[bool, typer.Option("--errors", help="Answered with a status of 400 or above.")] = False,
    slow: Annotated[bool, typer.Option("--slow", help="The slowest first, instead of the newest.")] = False,
    over: Annotated[str | None, typer.Option(help="That took at least so long in all, such as 2s or 500ms.")] = None,
    since: Annotated[str, typer.Option(help="Not older than 90s, 15m, 2h or 7d.")] = "1h",
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=10_000)] = 50,
    context: FleetOption = None,
    namespace: NamespaceOption = "shoal",
    output: OutputOption = Output.TABLE,
) -> None:
    """Requests by what became of them: who asked, what answered, how long it took, what went wrong."""
    from functions.cli import trace as command
    from functions.telemetry.store.questions import Search

    asked = Search(
        command.since(since), tenant=tenant, model=model, pool=pool, replica=replica, trace_id=trace_id,
        errors=errors, over_ms=command.over_ms(over), slowest_first=slow, limit=limit,
    )  # fmt: skip
    command.traces(asked, cluster=context, namespace=namespace, as_json=output is Output.JSON)


@app.command()
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


def main() -> None:
    from functions.cli.refused import Refused

    try:
        app(_region_first(sys.argv[1:]))
    except Refused as error:
        sys.stderr.write(f"shoal: {error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has gone: nothing is left to tell
        sys.exit(1)


def _region_first(arguments: list[str]) -> list[str]:
    """`up --region a` as `--region a up`: it is said of every command, and reads better behind it."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    for index, argument in enumerate(arguments[:end]):
        taken = 2 if argument == "--region" else 1
        if argument == "--region" or argument.startswith("--region="):
            return [*arguments[index : index + taken], *arguments[:index], *arguments[index + taken :]]
    return arguments


if __name__ == "__main__":
    main()
