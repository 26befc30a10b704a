"""10,000 requests of 20 tenants for one model in fourteen pools, full and failing: none comes to another's replica."""

from collections import Counter

from functions.api.ids import PoolName, TenantId
from functions.api.snapshot import FallbackEntry, PlacementEntry, PoolUse, RoutingEntry
from functions.simulator.fleet.setting import AdapterTimes, PoolSetting
from functions.simulator.fleet.simulation import Simulation
from functions.simulator.fleet.upstream import Connection
from functions.simulator.workload.asked import Asked
from tests.simulator.worlds import pool, served, shed, stream, world

TENANTS = [TenantId(f"t{number}") for number in range(20)]
DEDICATED, PREFERRED, SHARED = TENANTS[:5], TENANTS[5:10], TENANTS[10:]
MODEL, SPOT, SMALL = PoolName("m"), PoolName("m-spot"), PoolName("small")
OWN = {PoolName(f"m-{tenant}"): tenant for tenant in (*DEDICATED, *PREFERRED)}
ADAPTERS = AdapterTimes(names=tuple(f"bot{number}" for number in range(20)), cpu_slots=8)
REQUESTS = 10_000
ROUTING = RoutingEntry(
    "test",
    ("*",),
    hedge_after_s=0.5,
    fallback=tuple(FallbackEntry(when, MODEL, SMALL) for when in ("saturated", "unavailable")),
    placement=(
        PlacementEntry(SPOT, classes=("batch",)),
        PlacementEntry(SPOT, min_prompt_tokens=1000, min_predicted_ttft_ms=200),
        PlacementEntry(PoolName("m-t0"), tenants=(TenantId("t19"),)),  # which is not t19's
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


def drill() -> tuple[Simulation, Counter[tuple[TenantId, PoolName]]]:
    uses: dict[TenantId, PoolUse] = dict.fromkeys(DEDICATED, "dedicated") | dict.fromkeys(PREFERRED, "preferred")
    workload = stream(
        250.0,
        REQUESTS / 250.0,
        tenant=lambda number: TENANTS[number % 20],
        band=lambda number: (0, 0, 1, 2)[number // 20 % 4],
        adapter=lambda number: f"bot{number % 20}" if number // 40 % 2 else None,
        session=lambda number: f"s{number % 400}",
        prompt_tokens=800,
        output_tokens=150,
    )
    own = list(OWN)
    happens = [
        (5.0, lambda it: crash(it, own[0], own[5], MODEL)),
        (12.0, lambda it: crash(it, own[1], own[6], SPOT, SPOT)),
        (20.0, lambda it: crash(it, MODEL, MODEL, SMALL)),
        (25.0, lambda it: [it.restart(each) for each in it.ready_ids(own[2])]),
    ]
    simulation = world(workload, *happens, pools=pools(), routing=ROUTING, pool_use=uses, gateways=2)
    came: Counter[tuple[TenantId, PoolName]] = Counter()
    engines = simulation.lifecycle.engines
    send = engines.send

    def seen(connection: Connection) -> None:
        asked: Asked = connection.asking.asked
        came[asked.tenant, simulation.lifecycle.replicas[connection.replica_id].pool.name] += 1
        send(connection)

    engines.send = seen  # type: ignore[method-assign]
    simulation.run()
    return simulation, came


def test_ten_thousand_requests_and_none_on_anothers_replica() -> None:
    simulation, came = drill()
    strangers = {(tenant, name): count for (tenant, name), count in came.items() if OWN.get(name, tenant) != tenant}
    assert strangers == {}
    by_tenant = {tenant: {name for whose, name in came if whose == tenant} for tenant in TENANTS}
    for tenant in DEDICATED:
        assert by_tenant[tenant] == {PoolName(f"m-{tenant}")}, "full or gone, it takes no other"
    for tenant in PREFERRED:
        assert by_tenant[tenant] > {PoolName(f"m-{tenant}")}, "what its own cannot take goes to the shared ones"
    outcome = simulation.outcome
    assert sum(band.asked for band in outcome.bands) == REQUESTS
    assert served(outcome) > REQUESTS / 4
    assert sum(shed(outcome).values()) > 500, "it was saturated"
    assert outcome.retries > 0 and outcome.adapter_loads > 0
    assert came[TENANTS[10], SMALL] > 0, "the fallback was taken"
