"""`python -m studies`: names and options of the studies; the README says which question each answers."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from functions.cli.options import Output, OutputOption
from functions.cli.refused import CommandRefused

app = typer.Typer(
    name="studies", help="Compare shoal with other systems, and run it at sizes that no local machine has.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
)  # fmt: skip


@app.command("routers")
def routers(
    *,
    trace: Annotated[
        Path | None,
        typer.Option(help="Trace file: Mooncake's .jsonl or Azure's .csv, .gz or not. Default: synthetic chats."),
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, max=10_000)] = 8,
    profile: Annotated[
        str, typer.Option(help="Profile of a replica: h100-8b, a100-8b, l40s-8b, 4xh100-70b, sim, vllm-cpu-smollm2.")
    ] = "h100-8b",
    router: Annotated[
        list[str] | None,
        typer.Option(
            help="Router: shoal, oracle, dynamo, llm-d, ... (an unknown name lists them); repeatable. Default: all."
        ),
    ] = None,
    load: Annotated[
        list[float] | None,
        typer.Option(help="Load as a share of the fleet's capacity; repeatable. Default: 0.6, 0.8 and 0.95."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100)] = 3,
    requests: Annotated[int, typer.Option(min=100, max=10_000_000, help="Number of requests of each run.")] = 5_000,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare routers on a simulated fleet."""
    from studies.routers import command

    command.routers(
        router or [],
        trace=trace,
        replicas=replicas,
        profile=profile,
        loads=load or [0.6, 0.8, 0.95],
        seeds=seeds,
        requests=requests,
        as_json=output is Output.JSON,
    )


@app.command("table")
def table(
    results: Annotated[Path, typer.Argument(help="File of the runs, as JSON lines; resumed if it exists.")],
    *,
    traces_dir: Annotated[
        Path, typer.Option(envvar="SHOAL_TRACES_DIR", help="Folder with mooncake_fast25/, azure_2023/, ...")
    ] = Path("traces"),
    trace: Annotated[
        list[str] | None,
        typer.Option(help="Trace: chats, adapters, mooncake, azure, servegen, agents; repeatable. Default: all."),
    ] = None,
    router: Annotated[list[str] | None, typer.Option(help="Router, as in `routers`; repeatable. Default: all.")] = None,
    load: Annotated[
        list[float] | None,
        typer.Option(help="Load as a share of the fleet's capacity; repeatable. Default: 0.6, 0.8 and 0.95."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100)] = 5,
    requests: Annotated[int, typer.Option(min=100, max=1_000_000, help="Number of requests of each run.")] = 4_000,
    processes: Annotated[int, typer.Option(min=1, max=2)] = 2,
    report: Annotated[Path | None, typer.Option(help="File for the tables, as Markdown.")] = None,
    plot: Annotated[Path | None, typer.Option(help="File for a plot of them: .svg or .png.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run every router on every trace at three loads, and show the best of each."""
    from studies.router_table import command

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


@app.command("scale")
def scale(
    *,
    requests_per_s: Annotated[
        float, typer.Option(min=1, max=1_000_000, help="Requests per second in all regions.")
    ] = 100_000,
    replicas: Annotated[int, typer.Option(min=2, max=100_000, help="Number of replicas in all regions.")] = 5_000,
    seconds: Annotated[float, typer.Option(min=1, max=86_400, help="Duration in virtual time.")] = 60,
    regions: Annotated[int, typer.Option(min=1, max=32)] = 4,
    pools: Annotated[int, typer.Option(min=1, max=200, help="Number of pools, one per base model.")] = 20,
    models: Annotated[int, typer.Option(min=0, max=200_000, help="Number of base models and adapters.")] = 10_000,
    tenants: Annotated[int, typer.Option(min=1, max=1_000_000)] = 50_000,
    gateways: Annotated[int, typer.Option(min=1, max=64, help="Number of gateways in each region.")] = 4,
    profile: Annotated[
        str | None, typer.Option(help="Profile of a replica. Default: 8B on H100, estimated from its data sheet.")
    ] = None,
    lose_region_at: Annotated[
        float | None, typer.Option(min=0.1, help="Time in seconds at which the last region is lost.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    processes: Annotated[int, typer.Option(min=1, max=64, help="Regions simulated in parallel.")] = 2,
    plot: Annotated[Path | None, typer.Option(help="File for a plot over time: .svg or .png.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Simulate the planned scale: regions of many pools, and the loss of one region."""
    from studies.scale import command

    command.scale(
        command.wanted(
            requests_per_s=requests_per_s, replicas=replicas, seconds=seconds, regions=regions, pools=pools,
            models=models, tenants=tenants, gateways=gateways, profile=profile, lost_at_s=lose_region_at, seed=seed,
        ),
        processes=processes,
        plot=plot,
        as_json=output is Output.JSON,
    )  # fmt: skip


@app.command("spike")
def spike(
    *,
    way: Annotated[
        list[str] | None, typer.Option(help="Arm: ladder, room, hpa, kpa; repeatable. Default: all.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100)] = 3,
    factor: Annotated[float, typer.Option(min=1.0, max=50.0, help="Factor by which the requests grow.")] = 5.0,
    start: Annotated[float, typer.Option(min=60.0, max=3600.0, help="Seconds until a started replica serves.")] = 300.0,
    lasts: Annotated[float, typer.Option(min=30.0, max=7200.0, help="Duration of the peak in seconds.")] = 480.0,
    plot: Annotated[Path | None, typer.Option(help="File for a plot of the first seed: .svg or .png.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare the overload ladder with HPA and KPA when requests multiply within half a minute."""
    from studies.spike import command

    command.spike(
        arms=way or [],
        seeds=seeds,
        factor=factor,
        start_s=start,
        lasts_s=lasts,
        plot=plot,
        as_json=output is Output.JSON,
    )


@app.command("scaling")
def scaling(
    traces_dir: Annotated[
        Path, typer.Option(envvar="SHOAL_TRACES_DIR", help="Folder that contains servegen/ with the recorded rates.")
    ],
    *,
    traffic: Annotated[str, typer.Option(help="Pool of the ServeGen recording.")] = "language_m-large",
    day: Annotated[int, typer.Option(min=0, max=13, help="Day of the recording, from 0.")] = 7,
    hours: Annotated[int, typer.Option(min=1, max=24, help="Hours of that day, from its beginning.")] = 24,
    lessons: Annotated[
        int, typer.Option(min=0, max=13, help="Number of earlier days that the forecast learns from.")
    ] = 0,
    share: Annotated[
        float, typer.Option(min=0.001, max=100.0, help="Share of the recorded requests per second.")
    ] = 1.0,
    startup: Annotated[int, typer.Option(min=1, max=7200, help="Seconds until a new replica serves.")] = 300,
    slack: Annotated[
        float, typer.Option(min=0.05, max=600.0, help="Longest wait of a request that counts as in time, in seconds.")
    ] = 1.0,
    profile: Annotated[str, typer.Option(help="Profile of a replica: h100-8b, a100-8b, l40s-8b, ...")] = "h100-8b",
    scale_down: Annotated[
        list[str] | None, typer.Option(help="A scaleDown rule; repeatable. Default: utilization < 78% for 2m: -1.")
    ] = None,
    scaler: Annotated[
        list[str] | None,
        typer.Option(help="Autoscaler: oracle, shoal, reactive, rules, static, hpa, kpa; repeatable. Default: all."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="File for a plot: .svg or .png.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Simulate a recorded day under autoscalers: share served in time, and cost. Takes minutes for a whole day."""
    from studies.scaling import command

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


@app.command("scaling-fleet")
def scaling_fleet(
    traces_dir: Annotated[
        Path, typer.Option(envvar="SHOAL_TRACES_DIR", help="Folder that contains servegen/ with the recorded rates.")
    ],
    *,
    traffic: Annotated[str, typer.Option(help="Pool of the ServeGen recording.")] = "language_m-large",
    day: Annotated[int, typer.Option(min=0, max=13, help="Day of the recording, from 0.")] = 7,
    from_minute: Annotated[int, typer.Option(min=0, max=1439, help="First minute of that day.")] = 610,
    minutes: Annotated[int, typer.Option(min=1, max=1440, help="Number of minutes.")] = 25,
    share: Annotated[
        float, typer.Option(min=0.001, max=100.0, help="Share of the recorded requests per second.")
    ] = 1.0,
    startup: Annotated[int, typer.Option(min=1, max=7200, help="Seconds until a new replica serves.")] = 300,
    slo: Annotated[
        float, typer.Option(min=0.05, max=600.0, help="Target for the time to the first token, in seconds.")
    ] = 5.0,
    profile: Annotated[str, typer.Option(help="Profile of a replica: h100-8b, a100-8b, l40s-8b, ...")] = "h100-8b",
    output: OutputOption = Output.TABLE,
) -> None:
    """Simulate minutes of a recorded day under shoal's autoscaler, request by request."""
    from studies.scaling import command

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


@app.command("forecast")
def forecast(
    traces_dir: Annotated[
        Path, typer.Option(envvar="SHOAL_TRACES_DIR", help="Folder that contains servegen/ and azure_2023/.")
    ],
    *,
    horizon: Annotated[
        list[int] | None, typer.Option(help="Forecast horizon in seconds; repeatable. Default: 60, 300 and 900.")
    ] = None,
    days: Annotated[
        int, typer.Option(min=1, max=14, help="Number of days of ServeGen's recording; the first is only learnt from.")
    ] = 14,
    output: OutputOption = Output.TABLE,
) -> None:
    """Backtest each forecast method on recorded traffic."""
    from studies.scaling import command

    command.forecast(
        traces_dir=traces_dir, horizons_s=horizon or [60, 300, 900], days=days, as_json=output is Output.JSON
    )


def main() -> None:
    try:
        app()
    except CommandRefused as error:
        sys.stderr.write(f"studies: {error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
