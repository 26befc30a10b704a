"""Runs of all regions, each in its own process, and their reports.

The region that will be lost runs first, up to the loss. Its requests in flight are added to the other regions, which
then run in parallel. Seconds, memory and events of the run are of this machine; all other figures are the same on
any.
"""

import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context

from functions.decisions.quantile_sketch import QuantileSketch
from functions.simulator.fleet.simulation import Simulation
from functions.simulator.fleet.token_gaps import TokenGaps
from functions.simulator.workload.request import WorkloadRequest
from studies.scale.setting import Scale, region_setting, requests_of

EVERY_S = 2.0  # virtual time between two points of a plot
_DRAIN_S = 30.0  # after the last request


@dataclass(slots=True)
class Point:
    """Counts since the previous point."""

    at_s: float
    asked: int = 0
    served: int = 0
    refused: int = 0  # shed or lost
    ttft: dict[int, int] = field(default_factory=dict)  # buckets of a QuantileSketch
    busy_ratio: float = 0.0

    @property
    def ttft_p99_ms(self) -> float | None:
        return QuantileSketch.from_buckets(
            {bucket: count for bucket, count in self.ttft.items() if count > 0}
        ).quantile(0.99)


@dataclass(slots=True)
class RegionReport:
    region: int
    asked: int
    served: int
    in_time: int
    shed: dict[str, int]
    lost: dict[str, int]
    ttft: QuantileSketch
    gaps: TokenGaps
    busy_ratio: float
    hit_ratio: float | None
    adapter_loads: int
    points: list[Point]
    broken: list[WorkloadRequest]  # in flight when the region was lost
    seconds: float  # virtual time
    events: int
    wall_s: float
    cpu_s: float
    memory_bytes: int  # peak memory of its process


def run_region(scale: Scale, region: int, broken: list[WorkloadRequest]) -> RegionReport:
    """Run one region to its end, or to its loss."""
    began_s, cpu_s = time.perf_counter(), time.process_time()
    is_lost = region == scale.lost_region
    until_s = scale.lost_at_s if is_lost and scale.lost_at_s is not None else scale.seconds + _DRAIN_S
    simulation = Simulation(region_setting(scale, region, until_s=until_s), requests_of(scale, region, broken))
    points = _recorded(simulation)
    outcome = simulation.run()
    figures = outcome.figures()
    ttft, gaps = QuantileSketch(), TokenGaps()
    for band in outcome.bands:
        ttft.merge(band.ttft)
    gaps.merge(outcome.gaps)
    shed: dict[str, int] = {}
    lost: dict[str, int] = {}
    for band in outcome.bands:
        for into, counts in ((shed, band.shed), (lost, band.lost)):
            for reason, count in counts.items():
                into[reason] = into.get(reason, 0) + count
    return RegionReport(
        region=region,
        asked=sum(band.asked for band in outcome.bands),
        served=sum(band.served for band in outcome.bands),
        in_time=sum(band.in_time for band in outcome.bands),
        shed=shed,
        lost=lost,
        ttft=ttft,
        gaps=gaps,
        busy_ratio=figures["utilization_ratio"] or 0.0,
        hit_ratio=figures["hit_ratio"],
        adapter_loads=outcome.adapter_loads,
        points=points,
        broken=list(_under_way(simulation)) if is_lost else [],
        seconds=outcome.seconds,
        events=outcome.events,
        wall_s=time.perf_counter() - began_s,
        cpu_s=time.process_time() - cpu_s,
        memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def run(scale: Scale, processes: int, progress: Callable[[str], None]) -> list[RegionReport]:
    """Return the reports by region. Each region runs in a fresh process, so that its memory figure is its own."""
    reports: dict[int, RegionReport] = {}
    broken: list[WorkloadRequest] = []
    others = [region for region in range(scale.regions) if region != scale.lost_region]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        if scale.lost_region is not None:
            progress(f"the region that is lost, up to {scale.lost_at_s:.0f} s")
            report = pool.submit(run_region, scale, scale.lost_region, broken).result()
            reports[report.region], broken = report, report.broken
        progress(f"{len(others)} regions, {processes} at once")
        for future in as_completed([pool.submit(run_region, scale, region, broken) for region in others]):
            report = future.result()
            reports[report.region] = report
            progress(f"region {report.region} is done, {len(reports)} of {scale.regions}")
    return [reports[region] for region in sorted(reports)]


def _under_way(simulation: Simulation) -> Iterator[WorkloadRequest]:
    """Yield the requests in flight, which clients will retry, without their former routing."""
    for asked in simulation.requests_under_way():
        yield WorkloadRequest(
            asked.at_s, asked.tenant, asked.prompt_tokens, asked.output_tokens, band=asked.band, blocks=asked.blocks,
            session=asked.session, adapter=asked.adapter, pool=asked.pool,
        )  # fmt: skip


def _recorded(simulation: Simulation) -> list[Point]:
    """Return the list of points, which fills while the simulation runs."""
    points: list[Point] = []
    former = Point(0.0)
    former_busy_s = 0.0

    def record_point() -> None:
        nonlocal former, former_busy_s
        total = _total(simulation)
        replicas = simulation.lifecycle.replicas.values()
        busy_s = sum(replica.busy_s for replica in replicas)
        spent_s = max(1e-9, (total.at_s - former.at_s) * len(replicas))
        points.append(
            Point(
                total.at_s,
                total.asked - former.asked,
                total.served - former.served,
                total.refused - former.refused,
                {bucket: count - former.ttft.get(bucket, 0) for bucket, count in total.ttft.items()},
                (busy_s - former_busy_s) / spent_s,
            )
        )
        former, former_busy_s = total, busy_s
        simulation.events.after(EVERY_S, record_point)

    simulation.events.at(EVERY_S, record_point)
    return points


def _total(simulation: Simulation) -> Point:
    point = Point(simulation.events.now_s)
    for band in simulation.outcome.bands:
        point.asked += band.asked
        point.served += band.served
        point.refused += sum(band.shed.values()) + sum(band.lost.values())
        for bucket, count in band.ttft.buckets().items():
            point.ttft[bucket] = point.ttft.get(bucket, 0) + count
    return point
