"""Names and options of `shoal simulate`. Implementations are imported on use, as in `main`."""

from pathlib import Path
from typing import Annotated

import typer

from functions.cli.options import Output, OutputOption

simulate_app = typer.Typer(name="simulate", help="Simulate fleets and engines in virtual time.", no_args_is_help=True)


@simulate_app.command("cascade")
def simulate_cascade(
    trace: Annotated[Path, typer.Option(help="Trace file, or a directory of trace files.")],
    *,
    threshold: Annotated[
        list[float] | None, typer.Option(help="Threshold in nats; repeatable. Default: thresholds of round shares.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the share of judged answers that each threshold would have escalated."""
    from functions.cli import simulate_tables as command

    command.cascade(trace, threshold or [], as_json=output is Output.JSON)


@simulate_app.command("fleet")
def simulate_fleet(
    *,
    trace: Annotated[
        Path | None, typer.Option(help="Trace: Mooncake's .jsonl or Azure's .csv, also .gz. Default: synthetic chats.")
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, max=10_000, help="Number of replicas.")] = 8,
    profile: Annotated[
        str,
        typer.Option(
            help="Replica profile: h100-8b, h100-8b-vllm, a100-8b, l40s-8b, 4xh100-70b, sim, vllm-cpu-smollm2."
        ),
    ] = "h100-8b",
    load: Annotated[
        list[float] | None, typer.Option(help="Load as a share of capacity; repeatable. Default: 0.6, 0.8 and 0.95.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Number of runs for each load.")] = 3,
    requests: Annotated[int, typer.Option(min=100, max=10_000_000, help="Requests in each run.")] = 5_000,
    output: OutputOption = Output.TABLE,
) -> None:
    """Simulate a fleet at shares of its capacity."""
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
            help="Accelerator profile: h100-8b, h100-8b-vllm, a100-8b, l40s-8b, 4xh100-70b, sim, vllm-cpu-smollm2."
        ),
    ] = "h100-8b",
    accelerators: Annotated[int, typer.Option(min=2, max=64, help="Number of accelerators.")] = 4,
    prompt_tokens: Annotated[
        list[int] | None,
        typer.Option(min=256, max=1_000_000, help="Prompt length; repeatable. Default: 1024, 4096 and 16384."),
    ] = None,
    load: Annotated[
        list[float] | None,
        typer.Option(min=0.01, max=2.0, help="Load as a share of capacity; repeatable. Default: 0.3, 0.6, 0.9."),
    ] = None,
    kv_bytes_per_token: Annotated[
        int, typer.Option(min=1, max=16_777_216, help="Transferred bytes of a token.")
    ] = 131_072,
    gigabits_per_s: Annotated[
        float, typer.Option(min=0.1, max=10_000.0, help="Bandwidth between two replicas.")
    ] = 100.0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show for which prompts and loads a prefill pool pays, against one pool of as many accelerators."""
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
    profile: Annotated[str, typer.Option(help="Replica profile, as for `shoal simulate fleet`.")] = "h100-8b-vllm",
    replicas: Annotated[int, typer.Option(min=1, max=64, help="Number of replicas.")] = 2,
    requests_per_s: Annotated[
        list[float] | None,
        typer.Option(min=0.01, max=1000.0, help="Rate over all replicas; repeatable. Default: 2, 4 and 8."),
    ] = None,
    host_gib: Annotated[
        list[float] | None,
        typer.Option(min=1.0, max=16_384.0, help="Host memory of a replica; repeatable. Default: 64 and 256."),
    ] = None,
    gigabytes_per_s: Annotated[
        list[float] | None,
        typer.Option(min=0.1, max=1000.0, help="Bandwidth of host memory; repeatable. Default: 5 and 25."),
    ] = None,
    thinking_s: Annotated[float, typer.Option(min=0.0, max=3600.0, help="Pause between two turns of a chat.")] = 120.0,
    seconds: Annotated[float, typer.Option(min=60.0, max=86_400.0, help="Duration of the traffic.")] = 1200.0,
    kv_bytes_per_token: Annotated[
        int, typer.Option(min=1, max=16_777_216, help="KV cache bytes of a token.")
    ] = 131_072,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show for which loads host memory for KV blocks pays: chats that return after their blocks were evicted."""
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
    url: Annotated[str, typer.Option(help="Address of the engine itself, such as http://127.0.0.1:8000.")],
    *,
    model: Annotated[str, typer.Option(help="Model to measure; by default the first one served.")] = "",
    api_key_file: Annotated[Path | None, typer.Option(help="File with the engine's API key.")] = None,
    step_budget_tokens: Annotated[int, typer.Option(min=2, help="The engine's --max-num-batched-tokens.")] = 2048,
    max_sequences: Annotated[int, typer.Option(min=1, help="The engine's --max-num-seqs.")] = 256,
    kv_tokens: Annotated[int | None, typer.Option(min=1, help="KV cache size; by default from its metrics.")] = None,
    requests: Annotated[int, typer.Option(min=10, max=10_000, help="Held-out requests for the error.")] = 60,
    seconds: Annotated[float, typer.Option(min=1.0, max=3600.0, help="Duration of these requests.")] = 60.0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Measure an idle engine for some minutes, fit its step costs and report their errors."""
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
