"""Several pools: fallback between them, steering, sessions and closed loops; and results do not depend on chance."""

import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise

import pytest

from functions.api.ids import PoolName, TenantId
from functions.api.snapshot import FallbackEntry, RoutingEntry
from functions.simulator.fleet.simulation import Simulation
from functions.simulator.fleet.steering import Shed
from functions.simulator.workload.request import WorkloadRequest
from tests.simulator.rigs import lost, pool, rig, served, shed, stream

SMALL, LARGE = PoolName("small"), PoolName("large")


def falls_back(when: str) -> RoutingEntry:
    return RoutingEntry(
        name="test",
        pools=("*",),
        fallback=(FallbackEntry(when=when, source_pool=LARGE, target_pool=SMALL),),  # type: ignore[arg-type]
    )


def finished(simulation: Simulation, name: PoolName) -> int:
    """Count the finished requests of the pool's present replicas, in their present incarnation."""
    return sum(replica.engine.finished for replica in simulation.lifecycle.members[name].values())


def test_unavailable_pool_falls_back_to_another() -> None:
    happens = [(10.0, lambda it: [it.crash(each) for each in it.ready_ids(LARGE)])]
    pools = (pool(LARGE, replicas=1, routing=falls_back("unavailable")), pool(SMALL))
    simulation = rig(stream(4.0, 40.0), *happens, pools=pools)
    outcome = simulation.run()
    assert served(outcome) > 150
    assert finished(simulation, SMALL) > 100
    assert sum(band.degraded for band in outcome.bands) == finished(simulation, SMALL)


def test_full_pool_falls_back_instead_of_refusing() -> None:
    def run(*, with_fallback: bool) -> Simulation:
        routing = falls_back("saturated") if with_fallback else None
        simulation = rig(stream(50.0, 20.0), pools=(pool(LARGE, replicas=1, routing=routing), pool(SMALL, replicas=4)))
        simulation.run()
        return simulation

    alone, together = run(with_fallback=False), run(with_fallback=True)
    assert sum(shed(alone.outcome).values()) > 100
    assert sum(shed(together.outcome).values()) < 0.2 * sum(shed(alone.outcome).values())
    assert finished(alone, SMALL) == 0


def test_unknown_pool_in_a_workload_is_an_error() -> None:
    with pytest.raises(KeyError, match="elsewhere"):
        rig(stream(1.0, 2.0, pool="elsewhere"), pools=(pool(SMALL),)).run()


class _Steering:
    def steer(self, asked: WorkloadRequest, pool: PoolName, now_s: float) -> Shed | PoolName | None:
        if asked.band == 2:
            return Shed("ladder")
        return SMALL if asked.tenant == "t1" else None


def test_steering_may_refuse_and_redirect() -> None:
    workload = stream(4.0, 10.0, band=lambda number: (0, 0, 2, 0)[number % 4])
    simulation = rig(workload, pools=(pool(LARGE), pool(SMALL)))
    simulation.context.steering = _Steering()
    outcome = simulation.run()
    assert shed(outcome) == {"ladder": 10}
    assert (finished(simulation, SMALL), finished(simulation, LARGE)) == (10, 20)


def test_session_returns_to_its_last_replica() -> None:
    """Prompt texts are unknown here, so only the session decides."""
    workload = stream(2.0, 60.0, session=lambda number: f"s{number % 5}", tenant="acme", output_tokens=20)
    simulation = rig(workload, replicas=5)
    outcome = simulation.run()
    assert outcome.routes["session"] > 100


def test_closed_loop_sends_the_next_request_after_an_answer() -> None:
    ended_s: list[float] = []

    def then(now_s: float) -> Sequence[WorkloadRequest]:
        ended_s.append(now_s)
        if len(ended_s) == 4:
            return ()
        after = WorkloadRequest(now_s + 5.0, TenantId("acme"), 100, 20)
        after.then = then
        return (after,)

    first = WorkloadRequest(1.0, TenantId("acme"), 100, 20)
    first.then = then
    outcome = rig(iter([first])).run()
    assert served(outcome) == 4
    gaps = [later - earlier for earlier, later in pairwise(ended_s)]
    assert gaps == pytest.approx([gaps[0]] * 3, abs=0.02)
    assert gaps[0] > 5.0


_SCRIPT = """
from functions.api.snapshot import QuotaEntry, QuotaLimitsPart
from functions.simulator.fleet.setting import AdapterTimes
from tests.simulator.rigs import pool, stream, rig
names = tuple(f"acme/m{n}" for n in range(9))
pools = (pool("a", adapters=AdapterTimes(names=names, cpu_slots=4), warm=1), pool("b"))
def run():
    happens = (
        (3.0, lambda it: it.crash(it.replica_ids()[0])), (5.0, lambda it: it.restart(it.replica_ids()[0])),
        (6.0, lambda it: it.restart_gateway(1)), (7.0, lambda it: it.promote("a")),
        (8.0, lambda it: it.slow(it.replica_ids()[1], 3.0, 5.0)), (9.0, lambda it: it.partition(0, 3.0)),
    )
    workload = stream(
        12.0, 12.0, adapter=lambda n: names[n % 9] if n % 3 else None, pool=lambda n: "a" if n % 3 else "b",
        session=lambda n: f"s{n % 20}", blocks=lambda n: tuple(range(n % 7, n % 7 + 4)),
    )
    quota = QuotaEntry("all", 1.0, QuotaLimitsPart(input_tokens_per_minute=90_000))
    return rig(workload, *happens, pools=pools, gateways=2, quota=quota, seed=3).run().figures()
first = run()
assert first == run()
print(first)
"""


def test_the_same_seed_gives_the_same_figures_in_any_process() -> None:
    """Figures are equal byte for byte, whatever the order of sets of names."""

    def figures(hash_seed: str) -> bytes:
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.run(
            [sys.executable, "-c", _SCRIPT], env=environment, capture_output=True, check=True, timeout=300
        ).stdout

    first = figures("1")
    assert b"ttft_p99_ms" in first
    assert first == figures("2")


def test_no_request_is_lost_without_faults() -> None:
    outcome = rig(stream(8.0, 20.0), gateways=3).run()
    assert served(outcome) == 160
    assert not lost(outcome)
    assert not shed(outcome)
