"""Replay the traces of an overloaded gateway process in the simulator: it serves as many requests."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from functions.simulator.fleet.engine_profile import EngineProfile
from functions.simulator.fleet.setting import PoolSetting, Setting
from functions.simulator.fleet.simulation import simulate
from functions.simulator.workload.traces import block_tokens_of, read_trace
from functions.telemetry.trace_row import rows
from tests.gateway.processes import valkey
from tests.gateway.recorded_run import BLOCKS, REPLICAS, SECTIONS, SHORT, TracedGateway, record
from tests.gateway.rig import POOL

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]  # starts several processes and waits for each

REQUESTS = 200
ENGINE = EngineProfile(  # the flags of `recorded_run`
    step_ms=20.0, prefill_ms_per_token=0.05, decode_ms_per_sequence=0.1, decode_ms_per_kv_token=0.0,
    step_budget_tokens=512, max_sequences=8, kv_tokens=BLOCKS * 16,
)  # fmt: skip


@pytest.fixture(scope="module")
def run(
    tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]
) -> Iterator[tuple[TracedGateway, list[int]]]:
    folder = tmp_path_factory.mktemp("recorded")
    with valkey(folder) as bus_url:
        gateway = TracedGateway(folder, bus_url, certificate, sections=SECTIONS)
        yield gateway, asyncio.run(record(gateway, REQUESTS))


@pytest.mark.soak
def test_traces_replay_the_recorded_requests(run: tuple[TracedGateway, list[int]]) -> None:
    gateway, statuses = run
    found, recorded = list(read_trace(gateway.traces)), list(rows(gateway.traces))
    assert len(found) == len(recorded) == len(statuses)
    assert found[0].at_s == 0.0
    assert Counter((str(asked.tenant), asked.band) for asked in found) == Counter(
        (row.tenant_id, ("interactive", "near-real-time", "batch").index(row.class_)) for row in recorded
    )
    served = sum(row.prompt_tokens for row in recorded if row.prompt_tokens is not None)
    known = sum(1 for row in recorded if row.prompt_tokens is not None)
    assert known == statuses.count(200)
    asked_tokens = sum(asked.prompt_tokens for asked in found)
    assert asked_tokens == pytest.approx(served * len(found) / known, rel=0.15)  # the rejected: as long as others


@pytest.mark.soak
def test_simulation_of_traces_matches_served_and_cached(run: tuple[TracedGateway, list[int]]) -> None:
    gateway, statuses = run
    block_tokens = block_tokens_of(gateway.traces)
    pool = PoolSetting(name=POOL, profile=ENGINE, replicas=REPLICAS)
    setting = Setting(pools=(pool,), admission=SHORT, block_tokens=block_tokens)
    outcome = simulate(setting, read_trace(gateway.traces))
    recorded = [row for row in rows(gateway.traces) if row.prompt_tokens and row.cached_tokens is not None]
    hit_ratio = sum(row.cached_tokens or 0 for row in recorded) / sum(row.prompt_tokens or 0 for row in recorded)
    figures = outcome.figures()
    served = sum(band.served for band in outcome.bands)
    print(f"served {served} of {statuses.count(200)}, hits {figures['hit_ratio']} of {hit_ratio:.3f}")
    assert served == pytest.approx(statuses.count(200), rel=0.4)
    assert figures["hit_ratio"] == pytest.approx(hit_ratio, abs=0.25)
