"""`shoal simulate`: names and options of what is tried in virtual time.

Neighbours: `main` and `main_models` have the other commands; as there, what one does is imported when it is called.
"""

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
    from functions.cli import simulate_cascade as command

    command.cascade(trace, threshold or [], as_json=output is Output.JSON)


@simulate_app.command("fleet")
def simulate_fleet(
    *,
    trace: Annotated[
        Path | None, typer.Option(help="Mooncake's .jsonl or Azure's .csv, .gz or not. None: synthetic chats.")
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, max=10_000)] = 8,
    profile: Annotated[
        str, typer.Option(help="What a replica is: h100-8b, a100-8b, l40s-8b, 4xh100-70b, sim, vllm-cpu-smollm2.")
    ] = "h100-8b",
    router: Annotated[
        list[str] | None,
        typer.Option(help="shoal, oracle, dynamo, llm-d, ... (a wrong one lists them); repeat. None: all."),
    ] = None,
    load: Annotated[
        list[float] | None, typer.Option(help="Share of what the fleet can do; repeat. None: 0.6, 0.8 and 0.95.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100)] = 3,
    requests: Annotated[int, typer.Option(min=100, max=10_000_000, help="Of each run.")] = 5_000,
    output: OutputOption = Output.TABLE,
) -> None:
    """Routers side by side on a fleet in virtual time."""
    from functions.cli import simulate_fleet as command

    command.fleet(
        trace=trace,
        replicas=replicas,
        profile=profile,
        routers=router or [],
        loads=load or [0.6, 0.8, 0.95],
        seeds=seeds,
        requests=requests,
        as_json=output is Output.JSON,
    )


@simulate_app.command("table")
def simulate_table(
    results: Annotated[Path, typer.Argument(help="Where the runs are kept, as JSON lines; gone on with if it exists.")],
    *,
    traces_dir: Annotated[
        Path, typer.Option(envvar="SHOAL_TRACES_DIR", help="The folder with mooncake_fast25/, azure_2023/, ...")
    ] = Path("traces"),
    trace: Annotated[
        list[str] | None,
        typer.Option(help="chats, adapters, mooncake, azure, servegen, agents; repeat. None: all."),
    ] = None,
    router: Annotated[list[str] | None, typer.Option(help="As of `simulate fleet`; repeat. None: all.")] = None,
    load: Annotated[
        list[float] | None, typer.Option(help="Share of what the fleet can do; repeat. None: 0.6, 0.8 and 0.95.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100)] = 5,
    requests: Annotated[int, typer.Option(min=100, max=1_000_000, help="Of each run.")] = 4_000,
    processes: Annotated[int, typer.Option(min=1, max=2)] = 2,
    report: Annotated[Path | None, typer.Option(help="Write the tables there, as Markdown.")] = None,
    plot: Annotated[Path | None, typer.Option(help="A picture of them: .svg or .png.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Every router on every trace at three loads: who is ahead where."""
    from functions.cli import simulate_table as command

    command.table(
        results,
        traces_dir=traces_dir,
        trials=trace or [],
        routers=router or [],
        loads=load or [0.6, 0.8, 0.95],
        seeds=seeds,
        requests=requests,
        processes=processes,
        report=report,
        plot=plot,
        as_json=output is Output.JSON,
    )


@simulate_app.command("scale")
def simulate_scale(
    *,
    requests_per_s: Annotated[float, typer.Option(min=1, max=1_000_000, help="Of all regions.")] = 100_000,
    replicas: Annotated[int, typer.Option(min=2, max=100_000, help="Of all regions.")] = 5_000,
    seconds: Annotated[float, typer.Option(min=1, max=86_400, help="Of virtual time.")] = 60,
    regions: Annotated[int, typer.Option(min=1, max=32)] = 4,
    pools: Annotated[int, typer.Option(min=1, max=200, help="Base models.")] = 20,
    models: Annotated[int, typer.Option(min=0, max=200_000, help="Base models and adapters.")] = 10_000,
    tenants: Annotated[int, typer.Option(min=1, max=1_000_000)] = 50_000,
    gateways: Annotated[int, typer.Option(min=1, max=64, help="Of each region.")] = 4,
    profile: Annotated[
        str | None, typer.Option(help="What a replica is. None: 8B on H100, estimated by its data sheet.")
    ] = None,
    lose_region_at: Annotated[
        float | None, typer.Option(min=0.1, help="Seconds: the last region is gone then.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    processes: Annotated[int, typer.Option(min=1, max=64, help="Regions at once.")] = 2,
    plot: Annotated[Path | None, typer.Option(help="A picture of it over time: .svg or .png.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """The planned scale: regions of many pools, and what happens when one is lost."""
    from functions.cli import simulate_scale as command

    command.scale(
        command.wanted(
            requests_per_s=requests_per_s, replicas=replicas, seconds=seconds, regions=regions, pools=pools,
            models=models, tenants=tenants, gateways=gateways, profile=profile, lost_at_s=lose_region_at, seed=seed,
        ),
        processes=processes,
        plot=plot,
        as_json=output is Output.JSON,
    )  # fmt: skip


@simulate_app.command("calibrate")
def simulate_calibrate(
    url: Annotated[str, typer.Option(help="The engine's own address, such as http://127.0.0.1:8000.")],
    *,
    model: Annotated[str, typer.Option(help="None: the first that it serves.")] = "",
    api_key_file: Annotated[Path | None, typer.Option(help="Where one is asked for.")] = None,
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


@simulate_app.command("spike")
def simulate_spike(
    *,
    way: Annotated[
        list[str] | None, typer.Option(help="ladder, room, hpa, kpa; repeat for several. None: all.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100)] = 3,
    factor: Annotated[float, typer.Option(min=1.0, max=50.0, help="How many times as many requests.")] = 5.0,
    start: Annotated[float, typer.Option(min=60.0, max=3600.0, help="Seconds until a started replica serves.")] = 300.0,
    lasts: Annotated[float, typer.Option(min=30.0, max=7200.0, help="Seconds at its height.")] = 480.0,
    plot: Annotated[Path | None, typer.Option(help="A picture of the first seed: a name in .svg or .png.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Many more requests within half a minute: the overload ladder beside HPA and KPA."""
    from functions.cli import simulate_spike as command

    command.spike(
        arms=way or [],
        seeds=seeds,
        factor=factor,
        start_s=start,
        lasts_s=lasts,
        plot=plot,
        as_json=output is Output.JSON,
    )


@simulate_app.command("scaling")
def simulate_scaling(
    traces_dir: Annotated[
        Path, typer.Option(envvar="SHOAL_TRACES_DIR", help="The folder that has servegen/ with the recorded rates.")
    ],
    *,
    traffic: Annotated[str, typer.Option(help="Which of ServeGen's pools.")] = "language_m-large",
    day: Annotated[int, typer.Option(min=0, max=13, help="Of the recording, from 0.")] = 7,
    hours: Annotated[int, typer.Option(min=1, max=24, help="Of that day, from its beginning.")] = 24,
    lessons: Annotated[int, typer.Option(min=0, max=13, help="Days before it that the forecast has learnt from.")] = 0,
    share: Annotated[float, typer.Option(min=0.001, max=100.0, help="Of the recorded requests a second.")] = 1.0,
    startup: Annotated[int, typer.Option(min=1, max=7200, help="Seconds until a new replica serves.")] = 300,
    slack: Annotated[float, typer.Option(min=0.05, max=600.0, help="Seconds that a request may wait.")] = 1.0,
    profile: Annotated[str, typer.Option(help="What a replica is: h100-8b, a100-8b, l40s-8b, ...")] = "h100-8b",
    scale_down: Annotated[
        list[str] | None, typer.Option(help="A scaleDown rule; repeat. None: utilization < 78% for 2m: -1.")
    ] = None,
    scaler: Annotated[
        list[str] | None, typer.Option(help="oracle, shoal, reactive, rules, static, hpa, kpa; repeat. None: all.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="A picture of it: a name that ends in .svg or .png.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """A recorded day under autoscalers: who was served in time, and what it cost. Minutes for a whole day."""
    from functions.cli import simulate_scaling as command

    command.scaling(
        traces_dir=traces_dir,
        traffic_pool=traffic,
        day=day,
        hours=hours,
        lessons=lessons,
        share=share,
        startup_s=startup,
        slack_s=slack,
        profile=profile,
        scale_down=scale_down or [],
        scalers=scaler or [],
        plot=plot,
        as_json=output is Output.JSON,
    )


@simulate_app.command("scaling-fleet")
def simulate_scaling_fleet(
    traces_dir: Annotated[
        Path, typer.Option(envvar="SHOAL_TRACES_DIR", help="The folder that has servegen/ with the recorded rates.")
    ],
    *,
    traffic: Annotated[str, typer.Option(help="Which of ServeGen's pools.")] = "language_m-large",
    day: Annotated[int, typer.Option(min=0, max=13, help="Of the recording, from 0.")] = 7,
    from_minute: Annotated[int, typer.Option(min=0, max=1439, help="Of that day.")] = 610,
    minutes: Annotated[int, typer.Option(min=1, max=1440, help="How many.")] = 25,
    share: Annotated[float, typer.Option(min=0.001, max=100.0, help="Of the recorded requests a second.")] = 1.0,
    startup: Annotated[int, typer.Option(min=1, max=7200, help="Seconds until a new replica serves.")] = 300,
    slo: Annotated[
        float, typer.Option(min=0.05, max=600.0, help="Seconds to the first token that are promised.")
    ] = 5.0,
    profile: Annotated[str, typer.Option(help="What a replica is: h100-8b, a100-8b, l40s-8b, ...")] = "h100-8b",
    output: OutputOption = Output.TABLE,
) -> None:
    """Minutes of a recorded day under shoal's autoscaler, request by request."""
    from functions.cli import simulate_scaling as command

    command.fleet_scaling(
        traces_dir=traces_dir,
        traffic_pool=traffic,
        day=day,
        from_minute=from_minute,
        minutes=minutes,
        share=share,
        startup_s=startup,
        slo_s=slo,
        profile=profile,
        as_json=output is Output.JSON,
    )


@simulate_app.command("forecast")
def simulate_forecast(
    traces_dir: Annotated[
        Path, typer.Option(envvar="SHOAL_TRACES_DIR", help="The folder that has servegen/ and azure_2023/.")
    ],
    *,
    horizon: Annotated[list[int] | None, typer.Option(help="Seconds ahead; repeat. None: 60, 300 and 900.")] = None,
    days: Annotated[
        int, typer.Option(min=1, max=14, help="Of ServeGen's recording; the first is only learnt from.")
    ] = 14,
    output: OutputOption = Output.TABLE,
) -> None:
    """How well each way to foresee would have done on recorded traffic."""
    from functions.cli import simulate_scaling as command

    command.forecast(
        traces_dir=traces_dir, horizons_s=horizon or [60, 300, 900], days=days, as_json=output is Output.JSON
    )
