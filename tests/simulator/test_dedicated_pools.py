"""20 tenants' requests for one model in twelve pools, full and failing: none reaches another tenant's replica."""

from collections import Counter

import pytest

from functions.api.ids import PoolName, TenantId
from functions.api.snapshot import FallbackEntry, PlacementEntry, PoolUse, RoutingEntry
from functions.simulator.fleet.setting import AdapterTimes, PoolSetting
from functions.simulator.fleet.simulation import Simulation
from functions.simulator.fleet.upstream import ModelledConnection
from functions.simulator.workload.request import WorkloadRequest
from tests.simulator.rigs import pool, rig, served, shed, stream

TENANTS = [TenantId(f"t{number}") for number in range(20)]
DEDICATED, PREFERRED, SHARED = TENANTS[:5], TENANTS[5:10], TENANTS[10:]
MODEL, SPOT, SMALL = PoolName("m"), PoolName("m-spot"), PoolName("small")
OWN = {PoolName(f"m-{tenant}"): tenant for tenant in (*DEDICATED, *PREFERRED)}
ADAPTERS = AdapterTimes(names=tuple(f"bot{number}" for number in range(20)), cpu_slots=8)
PER_S = 250.0
ROUTING = RoutingEntry(
    "test",
    ("*",),
    hedge_after_s=0.5,
    fallback=tuple(FallbackEntry(when, MODEL, SMALL) for when in ("saturated", "unavailable")),
    placement=(
        PlacementEntry(SPOT, classes=("batch",)),
        PlacementEntry(SPOT, min_prompt_tokens=1000, min_predicted_ttft_ms=200),
        PlacementEntry(PoolName("m-t0"), tenants=(TenantId("t19"),)),  # not a pool of t19
    ),
)


def pools() -> tuple[PoolSetting, ...]:
    return (
        pool(MODEL, 3, adapters=ADAPTERS),
        pool(SPOT, 2, model=MODEL, adapters=ADAPTERS),
        pool(SMALL, 1),
        *(pool(name, 1, model=MODEL, dedicated_to=(tenant,), adapters=ADAPTERS) for name, tenant in OWN.items()),
    )


def crash(simulation: Simulation, *names: PoolName) -> None:
    for name in names:
        for replica in simulation.ready_ids(name)[:1]:
            simulation.crash(replica)


def drill(requests: int) -> tuple[Simulation, Counter[tuple[TenantId, PoolName]]]:
    """Run the fleet; also count the requests of each tenant sent to each pool: first attempts, retries and hedges."""
    uses: dict[TenantId, PoolUse] = dict.fromkeys(DEDICATED, "dedicated") | dict.fromkeys(PREFERRED, "preferred")
    seconds = requests / PER_S
    workload = stream(
        PER_S,
        seconds,
        tenant=lambda number: TENANTS[number % 20],
        band=lambda number: (0, 0, 1, 2)[number // 20 % 4],
        adapter=lambda number: f"bot{number % 20}" if number // 40 % 2 else None,
        session=lambda number: f"s{number % 400}",
        prompt_tokens=800,
        output_tokens=150,
    )
    own = list(OWN)
    happens = [
        (seconds / 8, lambda it: crash(it, own[0], own[5], MODEL)),
        (seconds / 3, lambda it: crash(it, own[1], own[6], SPOT, SPOT)),
        (seconds / 2, lambda it: crash(it, MODEL, MODEL, SMALL)),
        (seconds / 1.6, lambda it: [it.restart(each) for each in it.ready_ids(own[2])]),
    ]
    simulation = rig(workload, *happens, pools=pools(), routing=ROUTING, pool_use=uses, gateways=2)
    came: Counter[tuple[TenantId, PoolName]] = Counter()
    engines = simulation.lifecycle.engines
    send = engines.send

    def seen(connection: ModelledConnection) -> None:
        asked: WorkloadRequest = connection.asking.request
        came[asked.tenant, simulation.lifecycle.replicas[connection.replica_id].pool.name] += 1
        send(connection)

    engines.send = seen  # type: ignore[method-assign]
    simulation.run()
    return simulation, came


@pytest.mark.parametrize("requests", [1_000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_no_request_reaches_another_tenants_replica(requests: int) -> None:
    simulation, came = drill(requests)
    strangers = {(tenant, name): count for (tenant, name), count in came.items() if OWN.get(name, tenant) != tenant}
    assert strangers == {}
    for tenant in DEDICATED:
        its = {name for whose, name in came if whose == tenant}
        assert its == {PoolName(f"m-{tenant}")}, "full or gone, it takes no other"
    outcome = simulation.outcome
    assert sum(band.asked for band in outcome.bands) == requests
    assert served(outcome) > requests / 10
    if requests < 10_000:
        return
    for tenant in PREFERRED:
        assert came[tenant, PoolName(f"m-{tenant}")] > 0
        assert any(came[tenant, name] for name in (MODEL, SPOT)), "what its own cannot take goes to the shared ones"
    assert sum(shed(outcome).values()) > 500, "it was saturated"
    assert outcome.retries > 0
    assert outcome.adapter_loads > 0
    assert sum(count for (_, name), count in came.items() if name == SMALL) > 0, "the fallback was taken"
