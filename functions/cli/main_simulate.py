"""Names and options of `shoal simulate`. Implementations are imported on use, as in `main`."""

from pathlib import Path
from typing import Annotated

import typer

from functions.cli.options import Output, OutputOption

simulate_app = typer.Typer(name="simulate", help="What would happen, tried in virtual time.", no_args_is_help=True)


@simulate_app.command("cascade")
def simulate_cascade(
    trace: Annotated[Path, typer.Option(help="A trace file, or a directory of them.")],
    *,
    threshold: Annotated[
        list[float] | None, typer.Option(help="In nats; repeat for several. None: such as give round shares.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Which threshold would have escalated how many of the answers that were judged."""
    from functions.cli import simulate_tables as command

    command.cascade(trace, threshold or [], as_json=output is Output.JSON)


@simulate_app.command("fleet")
def simulate_fleet(
    *,
    trace: Annotated[
        Path | None, typer.Option(help="Mooncake's .jsonl or Azure's .csv, .gz or not. None: synthetic chats.")
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, max=10_000)] = 8,
    profile: Annotated[
        str,
        typer.Option(help="A replica: h100-8b, h100-8b-vllm, a100-8b, l40s-8b, 4xh100-70b, sim, vllm-cpu-smollm2."),
    ] = "h100-8b",
    load: Annotated[
        list[float] | None, typer.Option(help="Share of what the fleet can do; repeat. None: 0.6, 0.8 and 0.95.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100)] = 3,
    requests: Annotated[int, typer.Option(min=100, max=10_000_000, help="Of each run.")] = 5_000,
    output: OutputOption = Output.TABLE,
) -> None:
    """A fleet in virtual time at shares of what it can do."""
    from functions.cli import simulate_fleet as command

    command.fleet(
        trace=trace,
        replicas=replicas,
        profile=profile,
        loads=load or [0.6, 0.8, 0.95],
        seeds=seeds,
        requests=requests,
        as_json=output is Output.JSON,
    )


@simulate_app.command("prefill")
def simulate_prefill(
    *,
    profile: Annotated[
        str,
        typer.Option(
            help="An accelerator: h100-8b, h100-8b-vllm, a100-8b, l40s-8b, 4xh100-70b, sim, vllm-cpu-smollm2."
        ),
    ] = "h100-8b",
    accelerators: Annotated[int, typer.Option(min=2, max=64)] = 4,
    prompt_tokens: Annotated[
        list[int] | None, typer.Option(min=256, max=1_000_000, help="Repeat. None: 1024, 4096 and 16384.")
    ] = None,
    load: Annotated[
        list[float] | None, typer.Option(min=0.01, max=2.0, help="Share of what they can do; repeat. None: 0.3 to 0.9.")
    ] = None,
    kv_bytes_per_token: Annotated[int, typer.Option(min=1, max=16_777_216, help="That are handed over.")] = 131_072,
    gigabits_per_s: Annotated[float, typer.Option(min=0.1, max=10_000.0, help="Between two replicas.")] = 100.0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Where a prefill pool pays, beside one pool of the same accelerators."""
    from functions.cli import simulate_tables as command

    command.prefill(
        profile=profile,
        accelerators=accelerators,
        lengths=prompt_tokens or [1024, 4096, 16384],
        loads=load or [0.3, 0.6, 0.9],
        kv_bytes_per_token=kv_bytes_per_token,
        gigabits_per_s=gigabits_per_s,
        as_json=output is Output.JSON,
    )


@simulate_app.command("offload")
def simulate_offload(
    *,
    profile: Annotated[str, typer.Option(help="What a replica is, as for `shoal simulate fleet`.")] = "h100-8b-vllm",
    replicas: Annotated[int, typer.Option(min=1, max=64)] = 2,
    requests_per_s: Annotated[
        list[float] | None, typer.Option(min=0.01, max=1000.0, help="Of all replicas; repeat. None: 2, 4 and 8.")
    ] = None,
    host_gib: Annotated[
        list[float] | None, typer.Option(min=1.0, max=16_384.0, help="Of a replica; repeat. None: 64 and 256.")
    ] = None,
    gigabytes_per_s: Annotated[
        list[float] | None, typer.Option(min=0.1, max=1000.0, help="From host memory; repeat. None: 5 and 25.")
    ] = None,
    thinking_s: Annotated[float, typer.Option(min=0.0, max=3600.0, help="Between two turns of a chat.")] = 120.0,
    seconds: Annotated[float, typer.Option(min=60.0, max=86_400.0, help="Of traffic.")] = 1200.0,
    kv_bytes_per_token: Annotated[int, typer.Option(min=1, max=16_777_216, help="Of the KV cache.")] = 131_072,
    output: OutputOption = Output.TABLE,
) -> None:
    """Where host memory for KV blocks pays: chats that come back when their blocks have left the accelerator."""
    from functions.cli import simulate_tables as command

    command.offload(
        experiment=command.host_experiment(profile, replicas, thinking_s, seconds, kv_bytes_per_token),
        loads=requests_per_s or [2.0, 4.0, 8.0],
        sizes_gib=host_gib or [64.0, 256.0],
        links=gigabytes_per_s or [5.0, 25.0],
        as_json=output is Output.JSON,
    )


@simulate_app.command("calibrate")
def simulate_calibrate(
    url: Annotated[str, typer.Option(help="The engine's own address, such as http://127.0.0.1:8000.")],
    *,
    model: Annotated[str, typer.Option(help="None: the first that it serves.")] = "",
    api_key_file: Annotated[Path | None, typer.Option(help="Where the engine needs one.")] = None,
    step_budget_tokens: Annotated[int, typer.Option(min=2, help="Its --max-num-batched-tokens.")] = 2048,
    max_sequences: Annotated[int, typer.Option(min=1, help="Its --max-num-seqs.")] = 256,
    kv_tokens: Annotated[int | None, typer.Option(min=1, help="None: as the engine's metrics say.")] = None,
    requests: Annotated[int, typer.Option(min=10, max=10_000, help="Held out, to find the error.")] = 60,
    seconds: Annotated[float, typer.Option(min=1.0, max=3600.0, help="Over which those come.")] = 60.0,
    output: OutputOption = Output.TABLE,
) -> None:
    """An engine's step costs, measured and fitted, and how far off they are; takes minutes of the engine."""
    from functions.cli import simulate_calibrate as command

    command.calibrate(
        url=url,
        model=model,
        api_key_file=api_key_file,
        step_budget_tokens=step_budget_tokens,
        max_sequences=max_sequences,
        kv_tokens=kv_tokens,
        requests=requests,
        seconds=seconds,
        as_json=output is Output.JSON,
    )
