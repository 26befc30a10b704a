"""Simulation of both sides of a plan: the prepared changes get their intended verdicts, small enough for every test
run.

`tests/cli/test_plan.py` runs the command itself on all prepared changes, at full size.
"""

from pathlib import Path

import pytest

from functions.api.ids import PoolName, TenantId
from functions.simulator.fleet.simulation import Simulation
from functions.simulator.plan.entry import Entry
from functions.simulator.plan.experiment import Played, play
from functions.simulator.plan.figures import IN_TIME, Key
from functions.simulator.plan.measure import Meter, figures_for, measured
from functions.simulator.plan.notes import notes_of
from functions.simulator.plan.pace import Load
from functions.simulator.plan.planned_fleet import PlannedFleet
from functions.simulator.plan.settings import Beginning, setting_of
from functions.simulator.plan.traffic import PlanTraffic, made_up
from functions.simulator.workload.request import WorkloadRequest
from tests.simulator.plan.prepared import CASES, planned, written

CHAT = "chat-8b"
TENANTS = (TenantId("acme"), TenantId("globex"))


def traffic_for(fleet: PlannedFleet, requests: int = 350, windows: int = 2) -> PlanTraffic:
    pools = [pool for pool in fleet.generating if pool.name == CHAT]
    return made_up(pools, TENANTS, Load(), windows=windows, requests=requests)


def played(folder: Path, name: str, requests: int = 200, windows: int = 2) -> Played:
    before = planned(CASES / "base")
    return play(before, planned(written(folder, name)), traffic_for(before, requests, windows), lambda words: None)


def test_change_without_effect_changes_no_figure(tmp_path: Path) -> None:
    found = played(tmp_path, "tenant-added")
    assert found.verdict == "same"
    assert found.before.runs == found.after.runs
    assert found.compared[Key(CHAT, "interactive", IN_TIME)].before == 1.0
    assert {each.state for each in found.promises} == {"kept"}
    (note,) = [note for note in notes_of(found, traffic_for(found.before.fleet), 2) if "initech" in note]
    assert "send no requests" in note


@pytest.mark.soak
def test_too_few_replicas_break_the_promise(tmp_path: Path) -> None:
    found = played(tmp_path, "fewer-replicas", 900, 3)
    assert found.verdict == "breaks"
    (promise,) = found.promises
    assert (promise.pool, promise.band, promise.slo_ms, promise.state) == (CHAT, "interactive", 2000.0, "broken")
    shed = found.compared[Key(CHAT, "interactive", "shed_ratio")]
    assert shed.marked == "worse"
    assert shed.difference is not None
    assert shed.difference.low > 0.05
    hours = found.compared[Key(CHAT, "", "accelerator_hours")]
    assert hours.marked == "better"


def test_removed_pool_breaks_its_promise(tmp_path: Path) -> None:
    before = planned(CASES / "base")
    after = PlannedFleet(tuple(pool for pool in before.pools if pool.name != CHAT), before.tenants)
    found = play(before, after, traffic_for(before, 100), lambda words: None)
    assert found.verdict == "breaks"
    assert found.compared[Key(CHAT, "interactive", "shed_ratio")].after == 1.0


def test_both_sides_get_the_same_requests_and_a_timeline(tmp_path: Path) -> None:
    said: list[str] = []
    before = planned(CASES / "base")
    traffic = traffic_for(before, 200)
    found = play(before, planned(written(tmp_path, "fp8-cache")), traffic, said.append)
    assert said[:3] == ["window 1 of 2, requests", "window 1 of 2, before", "window 1 of 2, after"]
    assert found.before.requests == found.after.requests == sum(1 for w in (0, 1) for _ in traffic.requests(w))
    for side in (found.before, found.after):
        points = side.timeline.points[PoolName(CHAT)]
        assert len(points) >= 5
        assert all(0 < point.ready <= 8 for point in points)


def test_cost_of_a_million_tokens() -> None:
    """Expected: accelerator-hours x price, divided by the tokens of the answered requests."""
    fleet = planned(CASES / "base")
    traffic = traffic_for(fleet, 100, 1)
    entry, meter = Entry(fleet, is_own=False), Meter()
    rows = [WorkloadRequest(each * 1.0, TENANTS[0], 900, 100, pool=CHAT) for each in range(41)]
    beginning = Beginning.of(rows)
    actors = ((beginning.last_s, meter),)
    simulation = Simulation(setting_of(fleet, traffic, beginning, 0), entry.entering(rows), actors)
    simulation.run()
    found = measured(simulation, fleet, entry, meter)
    hours = 6 * 40 / 3600  # six replicas until the last arrival
    assert found[Key(CHAT, "", "accelerator_hours")] == pytest.approx(hours)
    assert found[Key(CHAT, "", "cost_per_million")] == pytest.approx(hours / (41 * 1000) * 1e6)
    assert found[Key(CHAT, "interactive", IN_TIME)] == 1.0
    assert Key("large-32b", "interactive", IN_TIME) not in found
    assert set(found) <= set(figures_for(fleet, fleet))
