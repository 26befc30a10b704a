"""Fan-out of a file in virtual time: near the limit of the links and reproducible, whatever goes wrong."""

from dataclasses import replace
from random import Random

import pytest

from functions.simulator.events import Events
from studies.fan_out.assumptions import Assumptions
from studies.fan_out.node import Link
from studies.fan_out.simulation import simulate

MB = 1_000_000
SMALL = Assumptions(
    nodes=8,
    size_bytes=64 * MB,
    chunk_bytes=1 * MB,
    down_bytes_per_s=8.0 * MB,
    up_bytes_per_s=8.0 * MB,
    store_bytes_per_s=40.0 * MB,
)


def test_link_serves_transfers_in_sequence() -> None:
    link = Link(1.0 * MB)
    assert [link.reserve(1.0 * MB, 0.0) for _ in range(4)] == [1.0, 2.0, 3.0, 4.0]
    assert link.reserve(1.0 * MB, 10.0) == 11.0


def test_events_run_in_order_and_never_in_the_past() -> None:
    events, seen = Events(), []
    events.at(1.0, lambda: seen.append("a"))
    events.at(1.0, lambda: (seen.append("b"), events.at(0.0, lambda: seen.append("c"))))
    events.at(1.0, lambda: seen.append("d"))
    events.run(lambda: len(seen) == 4, 10.0)
    assert (seen, events.now_s) == (["a", "b", "d", "c"], 1.0)
    with pytest.raises(TimeoutError):
        events.run(lambda: False, 10.0)


def test_same_seed_gives_the_same_run() -> None:
    assert simulate(SMALL) == simulate(SMALL)
    assert simulate(SMALL) != simulate(replace(SMALL, seed=2))


@pytest.mark.parametrize("nodes", [1, 2, 8, 32, pytest.param(64, marks=pytest.mark.soak)])
def test_fan_out_is_near_the_link_limit_and_reads_the_store_once(nodes: int) -> None:
    outcome = simulate(replace(SMALL, nodes=nodes))
    assert len(outcome.finished_s) == nodes
    assert SMALL.least_s <= outcome.slowest_s + SMALL.start_spread_s
    assert outcome.slowest_s < 1.6 * SMALL.least_s
    assert outcome.store_bytes <= 1.05 * SMALL.size_bytes
    assert outcome.peer_bytes + outcome.store_bytes >= nodes * SMALL.size_bytes


def test_without_a_swarm_the_store_limits_the_fan_out() -> None:
    outcome = simulate(replace(SMALL, nodes=32, swarm=False))
    assert outcome.store_bytes == 32 * SMALL.size_bytes
    assert outcome.slowest_s == pytest.approx(32 * 64 / 40, rel=0.1)


def test_other_nodes_finish_after_kills() -> None:
    outcome = simulate(replace(SMALL, killed=((0, 3.0), (5, 6.0))))
    assert len(outcome.finished_s) == 6
    assert outcome.store_bytes < 1.6 * SMALL.size_bytes


def test_each_node_detects_a_corrupt_sender() -> None:
    outcome = simulate(replace(SMALL, corrupt=frozenset({3})))
    assert len(outcome.finished_s) == 8
    assert 1 <= outcome.failures["corrupt"] <= 7 * 2  # chunks requested from it before the first arrived
    assert outcome.slowest_s < 3 * SMALL.least_s


def test_corrupt_first_sender_costs_few_store_reads() -> None:
    """The corrupt sender is granted a quarter, and must not read all of it once others have detected it."""
    plan = replace(SMALL, nodes=32, size_bytes=128 * MB, down_bytes_per_s=4.0 * MB, up_bytes_per_s=4.0 * MB)
    rng = Random(plan.seed)
    began_s = [(rng.random(), rng.random())[0] for _ in range(plan.nodes)]  # as drawn in the simulation
    outcome = simulate(replace(plan, corrupt=frozenset({began_s.index(min(began_s))})))
    assert outcome.store_bytes <= 1.15 * plan.size_bytes


def test_a_store_that_is_down_for_ten_seconds_costs_about_that() -> None:
    outcome = simulate(replace(SMALL, store_down=(0.5, 10.5)))
    assert outcome.slowest_s < SMALL.least_s + 10 + 10
    assert outcome.store_bytes <= 1.2 * SMALL.size_bytes
