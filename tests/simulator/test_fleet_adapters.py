"""Adapters: loaded by the first request, shared by later ones, evicted by others, and cached on disk."""

from typing import Any

import pytest

from functions.simulator.fleet.adapter_tiers import ReplicaAdapterTiers, demand_of, engine_name_of
from functions.simulator.fleet.outcome import Outcome
from functions.simulator.fleet.setting import POOL, AdapterTimes
from functions.simulator.fleet.simulation import Simulation
from studies.routers.simulated import ROUTERS
from tests.simulator.rigs import lost, pool, rig, served, shed, stream

NAMES = tuple(f"acme/m{number}" for number in range(12))
TIMES = AdapterTimes(names=NAMES, cpu_slots=4, gpu_slots=2)


def run(per_s: float, seconds: float, models: int, times: AdapterTimes = TIMES, **setting: Any) -> Simulation:
    workload = stream(per_s, seconds, adapter=lambda number: NAMES[number % models])
    simulation = rig(workload, pools=(pool(replicas=setting.pop("replicas", 2), adapters=times),), **setting)
    simulation.run()
    return simulation


def cold(outcome: Outcome) -> int:
    return sum(band.cold_starts for band in outcome.bands)


def test_adapters_that_all_fit_are_prefetched_without_cold_starts() -> None:
    simulation = run(8.0, 20.0, models=4, times=AdapterTimes(names=NAMES[:4], cpu_slots=4))
    assert cold(simulation.outcome) == 0
    assert served(simulation.outcome) == 160
    for replica in simulation.lifecycle.replicas.values():
        assert replica.adapters is not None
        assert len(replica.adapters.advertised) == 4


def test_new_replica_loads_adapters_after_its_start() -> None:
    workload = stream(8.0, 40.0, adapter=lambda number: NAMES[number % 4])
    few = AdapterTimes(names=NAMES[:4], cpu_slots=4)
    simulation = rig(
        workload, (1.0, lambda it: it.start_replica(POOL, "disk")), pools=(pool(replicas=1, adapters=few),)
    )
    outcome = simulation.run()
    assert outcome.adapter_loads == 4
    assert list(simulation.lifecycle.replicas.values())[1].engine.finished > 20


def test_many_requests_for_one_cold_adapter_are_one_load() -> None:
    workload = stream(100.0, 0.2, adapter=NAMES[11])
    simulation = rig(workload, pools=(pool(replicas=1, adapters=TIMES),))
    outcome = simulation.run()
    assert served(outcome) == 20
    assert cold(outcome) == 20
    fastest_ms = outcome.bands[0].ttft.quantile(0.0)
    assert fastest_ms is not None
    assert fastest_ms > 1000  # store, disk and prompt; the disk alone would take 300
    assert outcome.adapter_loads <= 4 + 1


def test_more_adapters_than_slots_evict_each_other() -> None:
    crowded, ample = run(2.0, 60.0, models=12), run(2.0, 60.0, models=12, times=AdapterTimes(names=NAMES, cpu_slots=12))
    assert cold(crowded.outcome) > 2 * cold(ample.outcome)
    assert crowded.outcome.adapter_loads > ample.outcome.adapter_loads
    assert served(crowded.outcome) > 0.8 * 120
    for replica in crowded.lifecycle.replicas.values():
        assert replica.adapters is not None
        assert len(replica.adapters.advertised) <= 4


def test_adapter_on_disk_reloads_faster() -> None:
    tiers = ReplicaAdapterTiers(TIMES, demand_of(TIMES))
    name = engine_name_of(NAMES[5])
    answer, begun = tiers.request_load(name, 100.0, 1.0)
    assert answer == "accepted"
    first = next(loading for loading in begun if loading.name == name)
    assert first.ready_s == pytest.approx(1.0 + TIMES.disk_s + TIMES.store_s)
    tiers.reset_engine()
    again = next(loading for loading in tiers.request_load(name, 100.0, 50.0)[1] if loading.name == name)
    assert again.ready_s == pytest.approx(50.0 + TIMES.disk_s)


def test_adapter_outside_accelerator_slots_is_moved_there_first() -> None:
    tiers = ReplicaAdapterTiers(TIMES, demand_of(TIMES))
    names = [engine_name_of(name) for name in NAMES[:3]]
    assert [tiers.acquire_slot(name) for name in (names[0], names[0], names[1], names[2], names[0])] == [
        TIMES.gpu_s, 0.0, TIMES.gpu_s, TIMES.gpu_s, TIMES.gpu_s,
    ]  # fmt: skip


def test_unknown_adapter_is_refused() -> None:
    workload = stream(5.0, 4.0, adapter="acme/unheard-of")
    outcome = rig(workload, pools=(pool(adapters=TIMES),)).run()
    assert shed(outcome) == {"adapter_not_loaded": 20}


def test_adapter_prompt_does_not_hit_the_bases_cache() -> None:
    """Equal prompts for the base hit its cache; an adapter's equal prompt does not."""

    def hits(**changes: Any) -> int:
        workload = stream(1.0, 2.0, blocks=(1, 2, 3, 4, 5), **changes)
        return rig(workload, pools=(pool(replicas=1, adapters=TIMES),)).run().hit_tokens

    assert hits() == 320
    assert hits(adapter=lambda number: (None, NAMES[0])[number % 2]) == 0


@pytest.mark.parametrize("router", ["shoal", "least-loaded", "cache-aware"])
def test_every_router_finds_a_replica_that_can_load(router: str) -> None:
    outcome = run(4.0, 15.0, models=6, router=ROUTERS[router]).outcome
    assert served(outcome) + sum(shed(outcome).values()) == 60
    assert served(outcome) > 50


def test_a_lost_holder_is_replaced_by_a_load_elsewhere() -> None:
    workload = stream(4.0, 40.0, adapter=NAMES[0], output_tokens=20)
    simulation = rig(workload, pools=(pool(replicas=2, adapters=TIMES),))

    def lose_the_holder() -> None:
        name = engine_name_of(NAMES[0])
        holder = next(
            replica
            for replica in simulation.lifecycle.replicas.values()
            if replica.adapters is not None and replica.adapters.has(name)
        )
        simulation.crash(holder.id)

    simulation.events.at(10.0, lose_the_holder)
    outcome = simulation.run()
    assert simulation.counts(POOL).lost == 1
    assert served(outcome) + sum(shed(outcome).values()) + sum(lost(outcome).values()) == 160
    assert served(outcome) > 140


def test_resident_fleet_holds_every_adapter() -> None:
    """Every adapter is loaded somewhere, with as many copies as fit."""
    times = AdapterTimes(names=NAMES, cpu_slots=6, resident=True)
    simulation = rig(stream(5.0, 4.0, adapter=NAMES[0]), pools=(pool(adapters=times, replicas=4),))
    outcome = simulation.run()
    assert cold(outcome) == 0
    tiers = [replica.adapters for replica in simulation.lifecycle.replicas.values() if replica.adapters is not None]
    held = {name for each in tiers for name in each.advertised}
    assert {engine_name_of(name) for name in NAMES} <= held
